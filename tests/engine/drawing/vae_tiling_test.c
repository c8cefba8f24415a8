/* Tests the tiled VAE on the bundled checkpoint: its results compared with those of diffusers
 * (tests/reference/vae_tiling.py) and of the untiled VAE, and the memory that it saves. usage:
 * vae_tiling_test CHECKPOINT REFERENCE */
#include "engine/drawing/vae_stage.h"

#include "models/checkpoint/checkpoint.h"
#include "tests/check.h"
#include "tests/models/small/small_models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define H 34
#define W 26
#define SCALE 8
#define IMAGE ((int64_t)H * W * SCALE * SCALE * 3)
#define MOMENTS ((int64_t)H * W * 8)

struct run {
    struct vae_stage stage;
    bool encodes;
    const float *from;
    float *to;
};

static void forward(struct compute *c, void *user) {
    const struct run *run = user;
    if (run->encodes)
        vae_stage_encode(c, &run->stage, run->from, run->to);
    else
        vae_stage_decode(c, &run->stage, run->from, run->to);
}

static struct vae *load(const char *path, const struct kernels *kernels) {
    struct checkpoint *c;
    struct vae *vae = NULL;
    struct error err = { 0 };
    CHECK(checkpoint_open(path, NULL, &c, &err), "%s", err.message);
    const struct weights w = weights_from_checkpoint(c, COMPONENT_VAE, kernels, DTYPE_F32);
    CHECK(vae_create(checkpoint_vae_config(c), &w, VAE_BOTH, &vae, &err), "%s", err.message);
    checkpoint_close(c);
    return vae;
}

/* Returns the relative error of `own`, [height][width][channels]. Only every `rows`th row and every
 * `columns`th column is compared. */
static double error_of(const float *own, int64_t height, int64_t width, int64_t channels, int rows,
    int columns, const float *told) {
    double difference = 0, norm = 0;
    for (int64_t y = 0; y < height; y += rows)
        for (int64_t x = 0; x < width; x += columns)
            for (int64_t k = 0; k < channels; k++, told++) {
                const double value = (double)own[(y * width + x) * channels + k];
                difference += (value - (double)*told) * (value - (double)*told);
                norm += (double)*told * (double)*told;
            }
    return sqrt(difference / norm);
}

static void matches_diffusers(struct safetensors *reference, const struct kernels *kernels,
    const struct vae *vae, bool encodes) {
    const char *name = encodes ? "encode" : "decode";
    const int64_t count = encodes ? MOMENTS : IMAGE, h = encodes ? H : H * SCALE;
    const int64_t w = encodes ? W : W * SCALE, channels = encodes ? 8 : 3;
    const int rows = encodes ? 2 : 7, columns = encodes ? 2 : 5;
    char seam_name[32];
    float *from = encodes ? rule_signal("image", IMAGE)
                          : rule_signal("latents", (int64_t)H * W * 4);
    float *tiled = calloc((size_t)count, sizeof(*tiled)), *whole = calloc((size_t)count, 4);
    for (int64_t i = 0; encodes && i < IMAGE; i++)
        from[i] = tanhf(from[i]);
    struct run run = { { vae, H * SCALE, W * SCALE, true }, encodes, from, tiled };
    run_model(kernels, forward, &run);
    run.stage.tiled = false;
    run.to = whole;
    run_model(kernels, forward, &run);
    const int64_t told = (h + rows - 1) / rows * ((w + columns - 1) / columns) * channels;
    snprintf(seam_name, sizeof(seam_name), "%s.seam", name);
    const double error = error_of(
        tiled, h, w, channels, rows, columns, reference_get(reference, name, told));
    const double seam = relative_error(tiled, whole, count);
    const double theirs = (double)reference_get(reference, seam_name, 2)[0];
    printf("%s, %s: differs from diffusers' tiles by %.1e (allowed 1e-5), from the whole by %.2e "
           "(diffusers' by %.2e)\n",
        name, kernels->name, error, seam, theirs);
    CHECK(error <= 1e-5, "%s: %.2e", name, error);
    CHECK(fabs(seam - theirs) <= 1e-3 * theirs, "%s: the difference at the seam is not diffusers'",
        name);
    free(from);
    free(tiled);
    free(whole);
}

static size_t peak_of(
    const struct kernels *kernels, const struct vae *vae, int64_t side, bool tiled, bool encodes) {
    struct compute c = { .kernels = kernels };
    struct error err = { 0 };
    struct run run = { { vae, side, side, tiled }, encodes, NULL, NULL };
    size_t peak = 0;
    CHECK(arena_create(kernels->memory, &c.arena, &err), "%s", err.message);
    CHECK(compute_measure(&c, forward, &run, &peak, &err), "%s", err.message);
    arena_destroy(c.arena);
    return peak;
}

static void memory_is_bounded(const struct kernels *kernels, const struct vae *vae) {
    for (int encodes = 0; encodes <= 1; encodes++) {
        const size_t tile = peak_of(kernels, vae, 128, false, encodes);
        for (int64_t side = 256; side <= 2048; side *= 2) {
            const size_t tiled = peak_of(kernels, vae, side, true, encodes);
            const size_t whole = peak_of(kernels, vae, side, false, encodes);
            printf("%s %4lld px: %zu KiB in tiles, %zu KiB whole\n", encodes ? "encode" : "decode",
                (long long)side, tiled >> 10, whole >> 10);
            CHECK(tiled == tile && whole > 3 * tile, "decoding in tiles needs more memory than one "
                                                     "tile, or decoding whole needs no more");
        }
    }
    CHECK(!vae_stage_has_tiles(vae, 128, 128) && vae_stage_has_tiles(vae, 128, 136), "sizes");
    CHECK(peak_of(kernels, vae, 128, true, false) == peak_of(kernels, vae, 128, false, false),
        "a picture no larger than a tile is not decoded whole");
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 1;
    struct safetensors *reference = reference_open(argv[2]);
    const struct kernels *kernels = kernels_cpu();
    struct vae *vae = load(argv[1], kernels);
    matches_diffusers(reference, kernels, vae, false);
    matches_diffusers(reference, kernels, vae, true);
    memory_is_bounded(kernels, vae);
    vae_destroy(vae);
    safetensors_close(reference);
    return check_done();
}
