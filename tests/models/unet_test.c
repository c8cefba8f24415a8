/* The UNet against diffusers: SD-1.5's, SD-2's, inpainting's and InstructPix2Pix's kinds, three
 * rows with a timestep and a context each, sizes that are odd at every level. */
#include "tests/check.h"
#include "tests/models/small_models.h"

#include <stdlib.h>

#define ROWS 3
#define CONTEXT_DIM 24
#define TOKENS 5

static const float timesteps[ROWS] = { 1.0f, 500.25f, 999.0f };

static const struct {
    const char *name;
    double gain;
    int h, w;
    struct unet_config config;
} cases[] = {
    { "unet_sd1", 0.7, 8, 12,
        { .in_channels = 4,
            .block_count = 3,
            .block_out_channels = { 16, 32, 48 },
            .down_has_attention = { true, true, false },
            .up_has_attention = { false, true, true },
            .layers_per_block = 2,
            .heads = { 4, 4, 4 },
            .norm_num_groups = 8,
            .norm_eps = 1e-5f,
            .flip_sin_to_cos = true } },
    { "unet_sd2", 0.35, 8, 8,
        { .in_channels = 4,
            .block_count = 2,
            .block_out_channels = { 16, 32 },
            .down_has_attention = { true, false },
            .up_has_attention = { false, true },
            .layers_per_block = 1,
            .heads = { 2, 4 },
            .norm_num_groups = 4,
            .norm_eps = 1e-5f,
            .freq_shift = 1,
            .use_linear_projection = true,
            .upcast_attention = true } },
    { "unet_inpaint", 0.5, 13, 7,
        { .in_channels = 9,
            .block_count = 4,
            .block_out_channels = { 16, 16, 32, 32 },
            .down_has_attention = { true, true, true, false },
            .up_has_attention = { false, true, true, true },
            .layers_per_block = 1,
            .heads = { 2, 2, 2, 2 },
            .norm_num_groups = 8,
            .norm_eps = 1e-2f,
            .flip_sin_to_cos = true } },
    { "unet_pix2pix", 0.7, 6, 10,
        { .in_channels = 8,
            .block_count = 2,
            .block_out_channels = { 16, 32 },
            .down_has_attention = { false, true },
            .up_has_attention = { true, false },
            .layers_per_block = 2,
            .heads = { 1, 8 },
            .norm_num_groups = 16,
            .norm_eps = 1e-5f,
            .flip_sin_to_cos = true } },
};

struct run {
    const struct unet *unet;
    struct tensor latents;   /* f32 [n][h][w][in_channels] */
    struct tensor timesteps; /* f32 [n] */
    struct tensor context;   /* f32 [n][t][cross_attention_dim] */
    struct tensor out;       /* f32 [n][h][w][4] */
};

static void forward(struct compute *c, void *user) {
    struct run *run = user;
    const enum dtype dtype = unet_activation_dtype(run->unet);
    const int64_t n = run->context.shape[0];
    struct tensor context = compute_tensor_3d(c, dtype, n, TOKENS, CONTEXT_DIM);
    struct tensor kv = compute_tensor_3d(c, dtype, n, TOKENS, unet_context_channels(run->unet));
    op_convert(c, &(struct convert_args){ .x = &run->context, .y = &context });
    unet_encode_context(run->unet, c, &context, &kv);
    unet_forward(run->unet, c, &run->latents, &run->timesteps, &kv, NULL, &run->out);
}

static struct unet *build(int index, const struct kernels *kernels, enum dtype dtype) {
    struct unet_config config = cases[index].config;
    config.out_channels = 4;
    config.cross_attention_dim = CONTEXT_DIM;
    struct rule_source source = { .gain = cases[index].gain };
    struct unet *unet = NULL;
    struct error err = { 0 };
    const struct weights w = rule_weights(&source, kernels, dtype);
    CHECK(unet_create(&config, &w, &unet, &err), "%s", err.message);
    rule_source_finish(&source);
    return unet;
}

static void matches_diffusers(
    struct safetensors *reference, const struct kernels *kernels, int index) {
    const char *name = cases[index].name;
    const int64_t h = cases[index].h, w = cases[index].w, in = cases[index].config.in_channels;
    const int64_t row_count = h * w * 4, count = ROWS * row_count;
    float *latents = rule_signal("latents", ROWS * h * w * in);
    float *context = rule_signal("context", ROWS * TOKENS * CONTEXT_DIM);
    float *out = malloc(sizeof(float) * (size_t)count);
    float *alone = malloc(sizeof(float) * (size_t)row_count);
    struct unet *unet = build(index, kernels, DTYPE_F32);
    struct unet *rough = build(index, kernels, DTYPE_BF16);

    struct run run = { unet, tensor_4d(latents, DTYPE_F32, ROWS, h, w, in),
        tensor_1d((void *)timesteps, DTYPE_F32, ROWS),
        tensor_3d(context, DTYPE_F32, ROWS, TOKENS, CONTEXT_DIM),
        tensor_4d(out, DTYPE_F32, ROWS, h, w, 4) };
    struct run bf16 = run;
    bf16.unet = rough;
    CHECK(agrees_with_original(reference, kernels, name, forward, &bf16, &run, out, count),
        "%s, %s", name, kernels->name);

    for (int i = 0; i < ROWS; i++) {
        struct run single = { unet, tensor_rows(&run.latents, i, 1),
            tensor_rows(&run.timesteps, i, 1), tensor_rows(&run.context, i, 1),
            tensor_4d(alone, DTYPE_F32, 1, h, w, 4) };
        run_model(kernels, forward, &single);
        CHECK(memcmp(alone, out + i * row_count, sizeof(float) * (size_t)row_count) == 0,
            "%s, %s: row %d is not the same alone", name, kernels->name, i);
    }

    unet_destroy(rough);
    unet_destroy(unet);
    free(alone);
    free(out);
    free(context);
    free(latents);
}

static void heads_must_divide_channels(void) {
    struct unet_config config = cases[0].config;
    struct rule_source source = { .gain = 1 };
    struct unet *unet = NULL;
    struct error err = { 0 };
    const struct weights w = rule_weights(&source, kernels_reference(), DTYPE_F32);
    config.heads[1] = 5;
    CHECK(!unet_create(&config, &w, &unet, &err), "5 heads were accepted for 32 channels");
    CHECK_CONTAINS(err.message, "block_out_channels[1] = 32");
    CHECK(source.count == 0 && !unet, "something was built");
}

int main(int argc, char **argv) {
    struct safetensors *reference = reference_open(argc > 1 ? argv[1] : "small_models.safetensors");
    for (int i = 0; i < 4; i++) {
        matches_diffusers(reference, kernels_reference(), i);
        matches_diffusers(reference, kernels_cpu(), i);
    }
    heads_must_divide_channels();
    safetensors_close(reference);
    return check_done();
}
