/* Checks that oneDNN has a fast kernel for every layer of SD-1.5 at 512x512 that the level's table
 * gives to it, and for the gradient of that layer's input. oneDNN's kernels take milliseconds, its
 * reference code takes seconds. Skipped if the level gives oneDNN no layer. */
#include "kernels/cpu/layers.h"
#include "kernels/cpu/level.h"
#include "tests/check.h"

#include <stdio.h>
#include <string.h>

static int asked;

static void ask_one(const struct dnnl_question *question) {
    char name[64] = "";
    struct error err = { 0 };
    bool ok = dnnl_implementation(question, name, sizeof(name), &err);
    printf("%skind %d phase %d, %lld x %lld, %lld to %lld: %s\n", question->back ? "back " : "",
        (int)question->kind, question->phase, (long long)question->h, (long long)question->w,
        (long long)question->k, (long long)question->n, ok ? name : err.message);
    CHECK(ok, "%s", err.message);
    CHECK(!strstr(name, "ref"), "%skind %d, %lld x %lld, %lld to %lld is computed by %s",
        question->back ? "back " : "", (int)question->kind, (long long)question->h,
        (long long)question->w, (long long)question->k, (long long)question->n, name);
    asked++;
}

/* Asks oneDNN about the layer and about its backward. Does not ask about the backward if another
 * engine computes it, or if the layer is the model's first one. */
static void ask(enum layer_code code, const struct dnnl_question *question) {
    struct dnnl_question back = *question;
    back.back = true;
    if (code != LAYER_ONEDNN && code != LAYER_PHASES)
        return;
    ask_one(question);
    if (code == LAYER_ONEDNN && question->k % 16 == 0)
        ask_one(&back);
}

static void ask_3x3(int64_t size, int64_t k, int64_t n) {
    const struct cpu_level *level = cpu_level();
    enum layer_code code = k % 16            ? level->linear
                           : n >= LEVEL_DEEP ? level->conv3x3_deep
                                             : level->conv3x3;
    for (int residual = 0; residual < 2; residual++)
        ask(code, &(struct dnnl_question){ CONV_3X3, 0, n, k, size, size, residual });
}

static void ask_product(int64_t tokens, int64_t k, int64_t n) {
    for (int residual = 0; residual < 2; residual++)
        ask(cpu_level()->linear, &(struct dnnl_question){ CONV_1X1, 0, n, k, tokens, 1, residual });
}

static void ask_up(int64_t size, int64_t c) {
    for (int phase = 0; phase < 4; phase++)
        ask(cpu_level()->conv3x3_up,
            &(struct dnnl_question){ CONV_3X3_UP, phase, c, c, size, size, false });
}

static void ask_down(enum conv_kind kind, int64_t size, int64_t c) {
    ask(cpu_level()->linear, &(struct dnnl_question){ kind, 0, c, c, size, size, false });
}

/* Asks about one level of the UNet: its transformers and its resnets' second convolutions. */
static void ask_unet_level(int64_t size, int64_t c) {
    const int64_t tokens = size * size;
    ask_3x3(size, c, c);
    ask_product(tokens, c, 3 * c);
    ask_product(tokens, c, c);
    ask_product(128, c, 8 * c); /* GEGLU, computed in parts */
    ask_product(tokens, 4 * c, c);
    ask_product(77, 768, 2 * c);
}

int main(void) {
    const struct cpu_level *level = cpu_level();
    if (!level->multiplies_bf16) {
        printf("level %s gives oneDNN nothing\n", level->name);
        return 77;
    }
    static const struct {
        int64_t size, k, n;
    } resnets[] = { { 64, 4, 320 }, { 64, 960, 320 }, { 64, 640, 320 }, { 64, 320, 4 },
        { 32, 320, 640 }, { 32, 1920, 640 }, { 32, 1280, 640 }, { 32, 960, 640 }, { 16, 640, 1280 },
        { 16, 2560, 1280 }, { 16, 1920, 1280 }, { 8, 2560, 1280 },
        /* VAE */ { 64, 4, 512 }, { 64, 512, 512 }, { 128, 512, 512 }, { 256, 512, 256 },
        { 256, 256, 256 }, { 512, 256, 128 }, { 512, 128, 128 }, { 512, 128, 3 }, { 512, 3, 128 },
        { 256, 128, 256 }, { 128, 256, 512 }, { 64, 512, 8 } };
    for (size_t i = 0; i < sizeof(resnets) / sizeof(*resnets); i++) {
        ask_3x3(resnets[i].size, resnets[i].k, resnets[i].n);
        ask_product(resnets[i].size * resnets[i].size, resnets[i].k, resnets[i].n);
    }
    ask_unet_level(64, 320);
    ask_unet_level(32, 640);
    ask_unet_level(16, 1280);
    ask_unet_level(8, 1280);
    ask_up(8, 1280);
    ask_up(16, 1280);
    ask_up(32, 640);
    ask_up(64, 512);
    ask_up(128, 512);
    ask_up(256, 256);
    ask_down(CONV_3X3_DOWN, 64, 320);
    ask_down(CONV_3X3_DOWN, 32, 640);
    ask_down(CONV_3X3_DOWN, 16, 1280);
    ask_down(CONV_3X3_DOWN_RIGHT, 512, 128);
    ask_down(CONV_3X3_DOWN_RIGHT, 256, 256);
    ask_down(CONV_3X3_DOWN_RIGHT, 128, 512);
    ask_product(4096, 512, 512); /* the VAE's attention */
    ask_product(77, 768, 3072);  /* the text encoder */
    ask_product(77, 3072, 768);
    ask_product(77, 768, 2304);
    ask_product(1, 320, 1280); /* the time embedding */
    ask_product(1, 1280, 1280);
    printf("level %s: %d questions\n", level->name, asked);
    return check_done();
}
