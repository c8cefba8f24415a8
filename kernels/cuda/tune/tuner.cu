/* The tuner's state: the problems that were called or noted, and the choices loaded for them.
 * trial.cu measures. */
#include "kernels/cuda/tune/tuner.h"

#include "base/limits.h"
#include "kernels/cuda/gemm/gemm.h"

extern "C" {
#include "base/list.h"
#include "base/log.h"
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct chosen {
    char key[TUNER_KEY_BYTES], name[TUNER_NAME_BYTES];
};

static struct {
    struct problem *problems; /* owned */
    int problem_count;
    struct chosen *chosen; /* owned */
    int chosen_count;
    bool full;             /* no room for a problem; this was logged */
    const char *preferred; /* borrowed: the start of a name, or NULL */
    int preferred_count;
} tuner;

/* --- problems --- */

static void key_of(const struct tunable *tunable, const void *shape, char key[TUNER_KEY_BYTES]) {
    int used = snprintf(key, TUNER_KEY_BYTES, "%s ", tunable->name);
    tunable->describe(shape, key + used, (size_t)(TUNER_KEY_BYTES - used));
}

static bool select_chosen(const struct problem *p) {
    char name[TUNER_NAME_BYTES];
    for (int i = 0; i < tuner.chosen_count; i++) {
        if (strcmp(tuner.chosen[i].key, p->key) != 0)
            continue;
        for (int c = 0, n = p->tunable->candidates(p->shape); c < n; c++) {
            p->tunable->candidate_name(p->shape, c, name);
            if (strcmp(name, tuner.chosen[i].name) == 0)
                return p->tunable->select(p->shape, c);
        }
    }
    return false;
}

static bool select_preferred(const struct problem *p) {
    char name[TUNER_NAME_BYTES];
    for (int c = 0, n = tuner.preferred ? p->tunable->candidates(p->shape) : 0; c < n; c++) {
        p->tunable->candidate_name(p->shape, c, name);
        if (strncmp(name, tuner.preferred, strlen(tuner.preferred)) != 0)
            continue;
        const bool selected = p->tunable->select(p->shape, c);
        tuner.preferred_count += selected;
        return selected;
    }
    return false;
}

static int prefer(const char *prefix) {
    const int count = tuner.preferred_count;
    tuner.preferred = prefix;
    tuner.preferred_count = 0;
    return count;
}

/* Returns the problem with this key, or NULL. */
static struct problem *find(const char *key) {
    for (int i = 0; i < tuner.problem_count; i++)
        if (strcmp(tuner.problems[i].key, key) == 0)
            return &tuner.problems[i];
    return NULL;
}

static struct problem *add(const struct tunable *tunable, const void *shape, const char *key) {
    if (tunable->shape_bytes > TUNABLE_MAX_SHAPE_BYTES)
        return NULL;
    if (tuner.problem_count == TUNER_SHAPES_MAX ||
        !LIST_ROOM(tuner.problems, tuner.problem_count, "a problem", NULL)) {
        if (!tuner.full)
            log_warning("the tuner has no room beyond %d shapes: later ones are computed by the "
                        "kernels that the rule chooses",
                tuner.problem_count);
        tuner.full = true;
        return NULL;
    }
    struct problem *p = &tuner.problems[tuner.problem_count++];
    memset(p, 0, sizeof(*p));
    p->tunable = tunable;
    snprintf(p->key, sizeof(p->key), "%s", key);
    memcpy(p->shape, shape, tunable->shape_bytes);
    return p;
}

/* Returns the problem of a shape; adds it if it is new. *selected: whether the problem was added
 * and a candidate was selected for it. NULL if there is no room. */
static struct problem *note(const struct tunable *tunable, const void *shape, bool *selected) {
    char key[TUNER_KEY_BYTES];
    key_of(tunable, shape, key);
    struct problem *known = find(key), *p = known ? known : add(tunable, shape, key);
    *selected = p && !known && (select_preferred(p) || select_chosen(p));
    return p;
}

bool tuner_note(const struct tunable *tunable, const void *shape) {
    bool selected;
    (void)note(tunable, shape, &selected);
    return selected;
}

void tuner_note_rows(const struct tunable *tunable, const void *shape, int64_t rows) {
    bool selected;
    struct problem *p = note(tunable, shape, &selected);
    if (p && (!p->rows_min || rows < p->rows_min))
        p->rows_min = rows;
    if (p && rows > p->rows_max)
        p->rows_max = rows;
}

static int problem_count(void) {
    return tuner.problem_count;
}

static void problem_key(int problem, char key[TUNER_KEY_BYTES]) {
    memcpy(key, tuner.problems[problem].key, TUNER_KEY_BYTES);
}

static int candidate_count(int problem) {
    return tuner.problems[problem].tunable->candidates(tuner.problems[problem].shape);
}

static void candidate_name(int problem, int candidate, char name[TUNER_NAME_BYTES]) {
    const struct problem *p = &tuner.problems[problem];
    p->tunable->candidate_name(p->shape, candidate, name);
}

static bool choose(const char *key, const char *name) {
    if (tuner.chosen_count == TUNER_SHAPES_MAX ||
        !LIST_ROOM(tuner.chosen, tuner.chosen_count, "a choice", NULL))
        return false;
    struct chosen *c = &tuner.chosen[tuner.chosen_count++];
    snprintf(c->key, sizeof(c->key), "%s", key);
    snprintf(c->name, sizeof(c->name), "%s", name);
    return true;
}

/* --- identity --- */

/* With the switches that decide which kernels may be chosen and how they cut their work. */
static void identity(char text[TUNER_IDENTITY_BYTES]) {
    const struct cuda_properties *p = cuda_get_properties();
    snprintf(text, TUNER_IDENTITY_BYTES,
        "%s sm_%d x%d, driver %d, runtime %d, workspace of %zu KiB, %s clusters, %s", p->name,
        p->capability, p->multiprocessors, p->driver_version, p->runtime_version,
        p->workspace_bytes >> 10, p->no_clusters ? "no" : "with", cuda_tuned_code);
}

static bool try_candidate(int problem, int candidate, struct tuner_result *out, struct error *err) {
    return trial_of(&tuner.problems[problem], candidate, out, err);
}

static void print_facts(FILE *out) {
    const struct cuda_properties *p = cuda_get_properties();
    fprintf(out, "device: %s, sm_%d, code for sm_%d, %d multiprocessors\n", p->name, p->capability,
        p->code, p->multiprocessors);
    fprintf(out, "shared memory of a block: %zu bytes; L2: %zu bytes\n", p->shared_bytes_per_block,
        p->l2_bytes);
    gemm_hopper_facts(out);
}

const struct tuner cuda_tuner = {
    identity,
    tunables_note,
    problem_count,
    problem_key,
    candidate_count,
    candidate_name,
    try_candidate,
    print_facts,
    trial_end,
    choose,
    prefer,
};
