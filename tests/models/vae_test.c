/* The VAE against diffusers, encoding and decoding, with a height that differs from the width. */
#include "tests/check.h"
#include "tests/models/small/small_models.h"

#include <stdlib.h>

#define ROWS 2

static const struct {
    const char *name;
    double gain;
    int h, w; /* of the latents */
    struct vae_config config;
} cases[] = {
    { "vae_two_layers", 0.3, 3, 4,
        { .in_channels = 3,
            .out_channels = 3,
            .latent_channels = 4,
            .block_count = 3,
            .block_out_channels = { 16, 32, 32 },
            .layers_per_block = 2,
            .norm_num_groups = 8,
            .scaling_factor = 0.18215f } },
    { "vae_one_layer", 0.5, 5, 7,
        { .in_channels = 3,
            .out_channels = 3,
            .latent_channels = 3,
            .block_count = 4,
            .block_out_channels = { 8, 8, 16, 24 },
            .layers_per_block = 1,
            .norm_num_groups = 4,
            .scaling_factor = 0.5f } },
};

struct run {
    const struct vae *vae;
    void (*model)(const struct vae *vae, struct compute *c, const struct tensor *x,
        struct tensor *y); /* vae_decode or vae_encode */
    struct tensor in, out; /* f32 */
};

static void forward(struct compute *c, void *user) {
    struct run *run = user;
    run->model(run->vae, c, &run->in, &run->out);
}

static struct vae *build(
    int index, const struct kernels *kernels, enum dtype dtype, enum vae_parts parts) {
    struct rule_source source = { .gain = cases[index].gain };
    struct vae *vae = NULL;
    struct error err = { 0 };
    const struct weights w = rule_weights(&source, kernels, dtype);
    CHECK(vae_create(&cases[index].config, &w, parts, &vae, &err), "%s", err.message);
    rule_source_finish(&source);
    return vae;
}

/* Checks decoding or encoding, whichever `run` does. `exact` is a VAE in f32, `rough` the same VAE
 * in bf16. Each may lack the half that `run` does not need. */
static void direction_matches(struct safetensors *reference, const struct kernels *kernels,
    const char *name, struct vae *exact, struct vae *rough, struct run run) {
    const int64_t count = tensor_elements(&run.out), row_count = count / ROWS;
    float *out = malloc(sizeof(float) * (size_t)count);
    float *alone = malloc(sizeof(float) * (size_t)row_count);

    run.out.data = out;
    run.vae = exact;
    struct run bf16 = run;
    bf16.vae = rough;
    CHECK(agrees_with_original(reference, kernels, name, forward, &bf16, &run, out, count),
        "%s, %s", name, kernels->name);

    struct run single = run;
    single.in = tensor_rows(&run.in, 1, 1);
    single.out = tensor_rows(&run.out, 1, 1);
    single.out.data = alone;
    run_model(kernels, forward, &single);
    CHECK(memcmp(alone, out + row_count, sizeof(float) * (size_t)row_count) == 0,
        "%s, %s: a row computed alone has other bits", name, kernels->name);
    free(alone);
    free(out);
}

static void matches_diffusers(
    struct safetensors *reference, const struct kernels *kernels, int index) {
    const struct vae_config *config = &cases[index].config;
    const int64_t h = cases[index].h, w = cases[index].w, channels = config->latent_channels;
    char name[64];
    struct vae *both = build(index, kernels, DTYPE_F32, VAE_BOTH);
    struct vae *decoder = build(index, kernels, DTYPE_BF16, VAE_DECODER);
    struct vae *encoder = build(index, kernels, DTYPE_BF16, VAE_ENCODER);
    const int scale = vae_scale(both);
    CHECK(scale == 1 << (config->block_count - 1), "scale %d", scale);
    float *latents = rule_signal("latents", ROWS * h * w * channels);
    float *image = rule_signal("image", ROWS * h * scale * w * scale * 3);
    for (int64_t i = 0; i < ROWS * h * scale * w * scale * 3; i++)
        image[i] /= 2;
    const struct run decode = { .model = vae_decode,
        .in = tensor_4d(latents, DTYPE_F32, ROWS, h, w, channels),
        .out = tensor_4d(NULL, DTYPE_F32, ROWS, h * scale, w * scale, 3) };
    const struct run encode = { .model = vae_encode,
        .in = tensor_4d(image, DTYPE_F32, ROWS, h * scale, w * scale, 3),
        .out = tensor_4d(NULL, DTYPE_F32, ROWS, h, w, 2 * channels) };
    snprintf(name, sizeof(name), "%s.decode", cases[index].name);
    direction_matches(reference, kernels, name, both, decoder, decode);
    snprintf(name, sizeof(name), "%s.encode", cases[index].name);
    direction_matches(reference, kernels, name, both, encoder, encode);
    free(image);
    free(latents);
    vae_destroy(encoder);
    vae_destroy(decoder);
    vae_destroy(both);
}

static void a_part_that_is_not_loaded_is_an_error(void) {
    struct error err = { 0 };
    struct compute c = { .kernels = kernels_reference() };
    float data[2 * 8 * 8 * 3];
    struct vae *decoder = build(0, c.kernels, DTYPE_F32, VAE_DECODER);
    struct run run = { decoder, vae_encode, tensor_4d(data, DTYPE_F32, 1, 8, 8, 3),
        tensor_4d(data, DTYPE_F32, 1, 2, 2, 8) };
    CHECK(arena_create(c.kernels->memory, &c.arena, &err), "%s", err.message);
    CHECK(!compute_plan(&c, forward, &run, &err), "a VAE without its encoder can encode");
    CHECK_CONTAINS(err.message, "the encoder was not loaded");
    arena_destroy(c.arena);
    vae_destroy(decoder);
}

/* Plans the memory for a 512x512 picture at an eighth of SD-1.5's widths, and measures it in
 * tensors of the last level's size (512x512 pixels, 16 channels). The peak of decoding is four
 * tensors: the last level's input, which has 32 channels and counts as two, its output and one in
 * between. The peak of encoding is three: two and the residual. A hundredth of a tensor more is
 * allowed. */
static void memory_peaks_low(void) {
    static const struct vae_config config = {
        .in_channels = 3,
        .out_channels = 3,
        .latent_channels = 4,
        .block_count = 4,
        .block_out_channels = { 16, 32, 64, 64 },
        .layers_per_block = 2,
        .norm_num_groups = 8,
        .scaling_factor = 0.18215f,
    };
    static float latents[64 * 64 * 8], image[512 * 512 * 3];
    struct error err = { 0 };
    struct rule_source source = { .gain = 1 };
    const struct weights w = rule_weights(&source, kernels_reference(), DTYPE_F32);
    struct vae *vae = NULL;
    CHECK(vae_create(&config, &w, VAE_BOTH, &vae, &err), "%s", err.message);
    rule_source_finish(&source);
    struct run runs[2] = {
        { vae, vae_decode, tensor_4d(latents, DTYPE_F32, 1, 64, 64, 4),
            tensor_4d(image, DTYPE_F32, 1, 512, 512, 3) },
        { vae, vae_encode, tensor_4d(image, DTYPE_F32, 1, 512, 512, 3),
            tensor_4d(latents, DTYPE_F32, 1, 64, 64, 8) },
    };
    for (int i = 0; i < 2; i++) {
        struct compute c = { .kernels = kernels_reference() };
        CHECK(arena_create(c.kernels->memory, &c.arena, &err), "%s", err.message);
        CHECK(compute_plan(&c, forward, &runs[i], &err), "%s", err.message);
        const double tensors = (double)arena_reserved_bytes(c.arena) / (512.0 * 512 * 16 * 4);
        const double bar = i ? 3.01 : 4.01;
        CHECK(tensors <= bar, "%.2f tensors, not %.2f", tensors, bar);
        printf("%s 512x512 plans %.2f tensors of the largest size\n", i ? "encoding" : "decoding",
            tensors);
        arena_destroy(c.arena);
    }
    vae_destroy(vae);
}

int main(int argc, char **argv) {
    struct safetensors *reference = reference_open(argc > 1 ? argv[1] : "small_models.safetensors");
    for (int i = 0; i < 2; i++) {
        matches_diffusers(reference, kernels_reference(), i);
        matches_diffusers(reference, kernels_cpu(), i);
    }
    a_part_that_is_not_loaded_is_an_error();
    memory_peaks_low();
    safetensors_close(reference);
    return check_done();
}
