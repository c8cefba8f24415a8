/* Compares the choices that are made without a tuner with the times that every kernel took on a
 * real GPU: a table of choices_table.py. The device is the emulator's H100; no kernel runs.
 *
 * usage: rule_test TABLE */
extern "C" {
#include "kernels/kernels.h"
}
#include "kernels/cuda/attention/attention_candidates.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/norm/norm_candidates.h"
#include "tests/check.h"
#include "tests/cuda-emulator/emulator.h"

#include <map>
#include <string>

/* The limit for the time of all choices together, relative to the best kernel of each shape. It is
 * not lower because a few of the times are twice those of the same kernel on a neighbouring shape:
 * something else ran then. */
#define MOST 1.07

struct line {
    int rows;
    std::string shape;
    std::map<std::string, double> us;
};

static const char *const kinds[] = { "conv1x1", "conv3x3", "conv3x3-down", "conv3x3-down-right",
    "conv3x3-up" };
static const enum conv_kind conv_kinds[] = { CONV_1X1, CONV_3X3, CONV_3X3_DOWN,
    CONV_3X3_DOWN_RIGHT, CONV_3X3_UP };

static std::string gemm_choice(const char *text, int rows) {
    struct gemm_shape s = {};
    char kind[32], dtype[8];
    long long n, k, h, w, h_out, w_out, shortcut = 0;
    if (sscanf(text, "gemm %31s %7s n%lld k%lld %lldx%lld to %lldx%lld shortcut k%lld", kind, dtype,
            &n, &k, &h, &w, &h_out, &w_out, &shortcut) < 8)
        return "";
    s.dtype = DTYPE_BF16;
    s.geglu = strcmp(kind, "linear-geglu") == 0;
    s.plain = strcmp(kind, "linear") == 0 || strcmp(kind, "conv1x1") == 0;
    for (int i = 0; i < 5; i++)
        if (strcmp(kind, kinds[i]) == 0) {
            s.is_conv = true;
            s.kind = conv_kinds[i];
        }
    s.n = n;
    s.k = k;
    s.h = h;
    s.w = w;
    s.h_out = h_out;
    s.w_out = w_out;
    s.k_shortcut = shortcut;
    const struct gemm_candidate choice = gemm_pick(&s, rows);
    char name[64];
    return gemm_candidate_name(&choice, name, sizeof(name));
}

static std::string attention_choice(const char *text) {
    struct attention_shape s = {};
    char dtype[8];
    long long tq, tk;
    if (sscanf(text, "attention %7s heads%d d%d q%lld k%lld", dtype, &s.heads, &s.head_dim, &tq,
            &tk) != 5)
        return "";
    s.dtype = DTYPE_BF16;
    s.tq = tq;
    s.tk = tk;
    s.causal = strstr(text, "causal") != NULL;
    s.plain_only = strstr(text, "unaligned") != NULL;
    struct attention_candidate all[ATTENTION_MAX_CANDIDATES];
    char name[64];
    attention_candidates(&s, all);
    return attention_candidate_name(&all[0], name, sizeof(name));
}

static std::string group_norm_choice(const char *text) {
    struct group_norm_shape s = {};
    char dtype[8];
    long long pixels, channels;
    if (sscanf(text, "group_norm %7s pixels%lld c%lld groups%d", dtype, &pixels, &channels,
            &s.groups) != 4)
        return "";
    s.dtype = DTYPE_BF16;
    s.pixels = pixels;
    s.channels = channels;
    struct group_norm_candidate all[GROUP_NORM_MAX_CANDIDATES];
    char name[64];
    group_norm_candidates(&s, all);
    return group_norm_candidate_name(&all[0], name, sizeof(name));
}

static std::string choice_of(const struct line &line) {
    const char *text = line.shape.c_str();
    return strncmp(text, "gemm", 4) == 0        ? gemm_choice(text, line.rows)
           : strncmp(text, "attention", 9) == 0 ? attention_choice(text)
                                                : group_norm_choice(text);
}

struct sums {
    double chosen, best;
    int shapes;
};

static void judge(const struct line &line, std::map<std::string, struct sums> *sums) {
    if (line.us.empty())
        return;
    const std::string choice = choice_of(line);
    const auto found = line.us.find(choice);
    CHECK(found != line.us.end(), "%s: \"%s\" was not measured", line.shape.c_str(), choice.c_str());
    if (found == line.us.end())
        return;
    auto best = line.us.begin();
    for (auto i = line.us.begin(); i != line.us.end(); i++)
        if (i->second < best->second)
            best = i;
    struct sums *of = &(*sums)[line.shape.substr(0, line.shape.find(' '))];
    of->chosen += found->second;
    of->best += best->second;
    of->shapes++;
    if (found->second > 1.25 * best->second)
        printf("%s: %s, %.1f us; best: %s, %.1f us\n", line.shape.c_str(), choice.c_str(),
            found->second, best->first.c_str(), best->second);
}

int main(int argc, char **argv) {
    struct error err;
    FILE *f = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (!f) {
        fprintf(stderr, "usage: rule_test TABLE\n");
        return 2;
    }
    emulator_set_multiprocessors(132);
    CHECK(cuda_open(0, &err), "%s", err.message);
    std::map<std::string, struct sums> sums;
    struct line line = {};
    char text[256];
    while (fgets(text, sizeof(text), f)) {
        text[strcspn(text, "\n")] = '\0';
        char *tab = strrchr(text, '\t');
        if (text[0] == '\t') {
            *tab = '\0';
            line.us[text + 1] = strtod(tab + 1, NULL);
        } else if (text[0] != '#') {
            judge(line, &sums);
            const char *shape = strstr(text, " rows ");
            line = { atoi(text), shape ? shape + 6 : "", {} };
        }
    }
    judge(line, &sums);
    fclose(f);
    for (const auto &[name, of] : sums) {
        printf("%s: %d shapes, %.0f us by rule, %.0f us at best: %.3f\n", name.c_str(), of.shapes,
            of.chosen, of.best, of.chosen / of.best);
        CHECK(of.chosen <= MOST * of.best, "%s: %.3f times the best", name.c_str(),
            of.chosen / of.best);
    }
    CHECK(sums.size() == 3 && sums["gemm"].shapes > 50, "%zu kinds", sums.size());
    return check_done();
}
