/* The UNet compared with diffusers', of the kinds of SD-1.5, SD-2, inpainting and
 * InstructPix2Pix. Each call has three rows, each with its own timestep and context. Sizes are
 * odd at every level. */
#include "tests/check.h"
#include "tests/models/small/small_models.h"

#include <stdlib.h>

#define ROWS 3
#define CONTEXT_DIM SMALL_CONTEXT_DIM
#define TOKENS SMALL_TOKENS

static const float timesteps[ROWS] = { 1.0f, 500.25f, 999.0f };

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

static void matches_diffusers(
    struct safetensors *reference, const struct kernels *kernels, int index) {
    const char *name = small_unets[index].name;
    const int64_t h = small_unets[index].h, w = small_unets[index].w,
                  in = small_unets[index].config.in_channels;
    const int64_t row_count = h * w * 4, count = ROWS * row_count;
    float *latents = rule_signal("latents", ROWS * h * w * in);
    float *context = rule_signal("context", ROWS * TOKENS * CONTEXT_DIM);
    float *out = malloc(sizeof(float) * (size_t)count);
    float *alone = malloc(sizeof(float) * (size_t)row_count);
    struct unet *unet = small_unet(&small_unets[index], kernels, DTYPE_F32);
    struct unet *rough = small_unet(&small_unets[index], kernels, DTYPE_BF16);

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
            "%s, %s: row %d computed alone has other bits", name, kernels->name, i);
    }

    unet_destroy(rough);
    unet_destroy(unet);
    free(alone);
    free(out);
    free(context);
    free(latents);
}

static void heads_must_divide_channels(void) {
    struct unet_config config = small_unets[0].config;
    struct rule_source source = { .gain = 1 };
    struct unet *unet = NULL;
    struct error err = { 0 };
    const struct weights w = rule_weights(&source, kernels_reference(), DTYPE_F32);
    config.heads[1] = 5;
    CHECK(!unet_create(&config, &w, &unet, &err), "5 heads were accepted for 32 channels");
    CHECK_CONTAINS(err.message, "block_out_channels[1] = 32");
    CHECK(source.count == 0 && !unet, "a refused config left tensors or a UNet");
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
