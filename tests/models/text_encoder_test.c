/* The text encoder against transformers: both activations, every clip_skip, short and full prompts.
 */
#include "tests/check.h"
#include "tests/models/small/small_models.h"

#include <stdlib.h>

#define ROWS 2
#define TOKENS 11

static const double gain = 0.5;

static const int32_t ids[ROWS * TOKENS] = {
    49, 3, 17, 3, 40, 0, 48, 48, 48, 48, 48, /**/
    49, 8, 21, 30, 5, 11, 2, 33, 44, 10, 48, /**/
};

static const struct {
    const char *name;
    struct text_encoder_config config;
} cases[] = {
    { "text_clip", { .vocab_size = 50,
                       .hidden_size = 32,
                       .intermediate_size = 96,
                       .num_hidden_layers = 3,
                       .num_attention_heads = 4,
                       .max_position_embeddings = TOKENS,
                       .hidden_act = ACTIVATION_QUICK_GELU,
                       .layer_norm_eps = 1e-5f } },
    { "text_openclip", { .vocab_size = 50,
                           .hidden_size = 48,
                           .intermediate_size = 64,
                           .num_hidden_layers = 2,
                           .num_attention_heads = 3,
                           .max_position_embeddings = TOKENS,
                           .hidden_act = ACTIVATION_GELU,
                           .layer_norm_eps = 1e-3f } },
};

struct run {
    const struct text_encoder *encoder;
    struct tensor ids;
    int clip_skip;
    float *out; /* f32 [n][t][c] */
};

static void forward(struct compute *c, void *user) {
    struct run *run = user;
    const int64_t n = run->ids.shape[0], t = run->ids.shape[1];
    const int64_t channels = text_encoder_get_config(run->encoder)->hidden_size;
    struct tensor y = compute_tensor_3d(
        c, text_encoder_activation_dtype(run->encoder), n, t, channels);
    struct tensor out = tensor_3d(run->out, DTYPE_F32, n, t, channels);
    text_encoder_forward(run->encoder, c, &run->ids, run->clip_skip, &y);
    op_convert(c, &(struct convert_args){ .x = &y, .y = &out });
}

static struct text_encoder *build(
    const struct text_encoder_config *config, const struct kernels *kernels, enum dtype dtype) {
    struct rule_source source = { .gain = gain };
    struct text_encoder *encoder = NULL;
    struct error err = { 0 };
    const struct weights w = rule_weights(&source, kernels, dtype);
    CHECK(text_encoder_create(config, &w, &encoder, &err), "%s", err.message);
    rule_source_finish(&source);
    return encoder;
}

static void matches_transformers(
    struct safetensors *reference, const struct kernels *kernels, int index) {
    const struct text_encoder_config *config = &cases[index].config;
    const int64_t count = ROWS * TOKENS * config->hidden_size;
    float out[ROWS * TOKENS * 48], alone[TOKENS * 48];
    struct text_encoder *encoder = build(config, kernels, DTYPE_F32);
    struct text_encoder *rough = build(config, kernels, DTYPE_BF16);
    for (int skip = 0; skip < config->num_hidden_layers; skip++) {
        char name[64];
        snprintf(name, sizeof(name), "%s.skip%d", cases[index].name, skip);
        struct run run = { encoder, tensor_2d((void *)ids, DTYPE_I32, ROWS, TOKENS), skip, out };
        struct run bf16 = { rough, run.ids, skip, out };
        CHECK(agrees_with_original(reference, kernels, name, forward, &bf16, &run, out, count),
            "%s, %s", name, kernels->name);

        struct run second = { encoder, tensor_rows(&run.ids, 1, 1), skip, alone };
        run_model(kernels, forward, &second);
        CHECK(memcmp(alone, out + count / 2, sizeof(float) * (size_t)count / 2) == 0,
            "%s, %s: a row computed alone has other bits", name, kernels->name);

        /* Attention is causal, so the first seven tokens do not depend on the others. */
        struct run prefix = { encoder, tensor_2d((void *)ids, DTYPE_I32, 1, 7), skip, alone };
        run_model(kernels, forward, &prefix);
        const double prefix_error = relative_error(alone, out, 7 * config->hidden_size);
        CHECK(prefix_error <= 1e-6, "%s, %s: prefix differs by %.2e", name, kernels->name,
            prefix_error);
    }
    text_encoder_destroy(rough);
    text_encoder_destroy(encoder);
}

static void clip_skip_is_checked(void) {
    struct error err = { 0 };
    struct compute c = { .kernels = kernels_reference() };
    float out[ROWS * TOKENS * 32];
    struct text_encoder *encoder = build(&cases[0].config, c.kernels, DTYPE_F32);
    for (int skip = -1; skip <= 3; skip += 4) {
        struct run run = { encoder, tensor_2d((void *)ids, DTYPE_I32, ROWS, TOKENS), skip, out };
        CHECK(arena_create(c.kernels->memory, &c.arena, &err), "%s", err.message);
        CHECK(!compute_plan(&c, forward, &run, &err), "clip_skip %d was accepted", skip);
        CHECK_CONTAINS(err.message, "is not in 0..2");
        arena_destroy(c.arena);
    }
    text_encoder_destroy(encoder);
}

int main(int argc, char **argv) {
    struct safetensors *reference = reference_open(argc > 1 ? argv[1] : "small_models.safetensors");
    for (int i = 0; i < 2; i++) {
        matches_transformers(reference, kernels_reference(), i);
        matches_transformers(reference, kernels_cpu(), i);
    }
    clip_skip_is_checked();
    safetensors_close(reference);
    return check_done();
}
