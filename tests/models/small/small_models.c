#include "tests/models/small/small_models.h"

#include "base/hash.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *must(void *p, const char *what) {
    if (!p) {
        printf("the test cannot run: %s\n", what);
        exit(1);
    }
    return p;
}

void rule_numbers(const char *name, int64_t count, double *out) {
    uint64_t state = hash_fnv1a(name, strlen(name));
    for (int64_t i = 0; i < count; i++) { /* splitmix64 */
        state += 0x9E3779B97F4A7C15u;
        uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        out[i] = (double)(z >> 40) / (1 << 23) - 1;
    }
}

static float *scaled_numbers(const char *name, int64_t count, double offset, double scale) {
    double *numbers = must(malloc((size_t)count * sizeof(double)), "no memory");
    float *out = must(malloc((size_t)count * sizeof(float)), "no memory");
    rule_numbers(name, count, numbers);
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)(offset + scale * numbers[i]);
    free(numbers);
    return out;
}

float *rule_signal(const char *name, int64_t count) {
    return scaled_numbers(name, count, 0, sqrt(3));
}

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Whether the last part but one of the name contains "norm". */
static bool is_norm(const char *name) {
    const char *leaf = strrchr(name, '.'), *norm = NULL;
    for (const char *p = strstr(name, "norm"); p; p = strstr(p + 1, "norm"))
        norm = p;
    return norm && norm < leaf && !memchr(norm, '.', (size_t)(leaf - norm));
}

static bool rule_get(void *user, const char *name, int rank, const int64_t *shape,
    struct tensor *out, struct error *err) {
    struct rule_source *source = user;
    (void)err;
    int64_t count = 1, fan_in = 1;
    for (int i = 0; i < rank; i++) {
        count *= shape[i];
        fan_in *= i ? shape[i] : 1;
    }
    double offset = 0, scale;
    if (rank == 1) {
        const bool is_gain = is_norm(name) && ends_with(name, ".weight");
        offset = is_gain ? 1 : 0;
        scale = is_gain ? 0.25 : 0.125;
    } else if (strncmp(name, "text_model.", 11) == 0 && strstr(name, "embedding.")) {
        scale = source->gain;
    } else {
        scale = source->gain * sqrt(3.0 / (double)fan_in);
        if (strstr(name, "to_q") || strstr(name, "to_k") || strstr(name, "q_proj") ||
            strstr(name, "k_proj"))
            scale *= 2;
    }
    float *numbers = scaled_numbers(name, count, offset, scale);
    void *data = must(malloc((size_t)count * dtype_size(source->dtype)), "no memory");
    convert_elements(data, source->dtype, numbers, DTYPE_F32, count);
    free(numbers);
    const size_t bytes = (source->count + 1) * sizeof(*source->items);
    source->items = must(realloc(source->items, bytes), "no memory");
    *out = (struct tensor){ .data = data, .dtype = source->dtype, .rank = rank };
    memcpy(out->shape, shape, (size_t)rank * sizeof(*shape));
    source->items[source->count++] = (struct safetensors_item){ strdup(name), *out };
    return true;
}

struct weights rule_weights(
    struct rule_source *source, const struct kernels *kernels, enum dtype dtype) {
    return (struct weights){ .get = rule_get, .user = source, .kernels = kernels, .dtype = dtype };
}

void rule_source_finish(struct rule_source *source) {
    for (size_t i = 0; i < source->count; i++) {
        free((char *)source->items[i].name);
        free(source->items[i].tensor.data);
    }
    free(source->items);
    source->items = NULL;
    source->count = 0;
}

const struct small_unet small_unets[SMALL_UNETS] = {
    { "unet_sd1", 0.7, 8, 12,
        { .out_channels = 4,
            .cross_attention_dim = SMALL_CONTEXT_DIM,
            .in_channels = 4,
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
        { .out_channels = 4,
            .cross_attention_dim = SMALL_CONTEXT_DIM,
            .in_channels = 4,
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
        { .out_channels = 4,
            .cross_attention_dim = SMALL_CONTEXT_DIM,
            .in_channels = 9,
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
        { .out_channels = 4,
            .cross_attention_dim = SMALL_CONTEXT_DIM,
            .in_channels = 8,
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

struct unet *small_unet(
    const struct small_unet *small, const struct kernels *kernels, enum dtype dtype) {
    struct rule_source source = { .gain = small->gain };
    struct unet *unet = NULL;
    struct error err = { 0 };
    const struct weights w = rule_weights(&source, kernels, dtype);
    if (!unet_create(&small->config, &w, &unet, &err))
        must(NULL, err.message);
    rule_source_finish(&source);
    return unet;
}

struct safetensors *reference_open(const char *path) {
    struct error err = { 0 };
    struct safetensors *reference = NULL;
    if (!safetensors_open(path, &reference, &err))
        must(NULL, err.message);
    return reference;
}

const float *reference_get(struct safetensors *reference, const char *name, int64_t count) {
    struct error err = { 0 };
    struct tensor t;
    const ptrdiff_t index = safetensors_find(reference, name);
    if (index < 0 || !safetensors_view(reference, (size_t)index, &t, &err) ||
        t.dtype != DTYPE_F32 || tensor_elements(&t) != count)
        must(NULL, name);
    return t.data;
}

double relative_error(const float *a, const float *b, int64_t count) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        const double d = (double)a[i] - (double)b[i];
        difference += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / norm);
}

void run_model(
    const struct kernels *kernels, void (*forward)(struct compute *c, void *user), void *user) {
    struct error err = { 0 };
    struct compute c = { .kernels = kernels };
    if (!arena_create(c.kernels->memory, &c.arena, &err) || !compute_plan(&c, forward, user, &err))
        must(NULL, err.message);
    forward(&c, user);
    if (!compute_ok(&c))
        must(NULL, c.error.message);
    arena_destroy(c.arena);
}

bool agrees_with_original(struct safetensors *reference, const struct kernels *kernels,
    const char *name, void (*forward)(struct compute *c, void *user), void *rough, void *exact,
    const float *out, int64_t count) {
    char rough_name[64];
    snprintf(rough_name, sizeof(rough_name), "%s.bf16", name);
    const float *expected = reference_get(reference, name, count);
    const double theirs = (double)reference_get(reference, rough_name, 1)[0];
    run_model(kernels, forward, rough);
    const double ours = relative_error(out, expected, count);
    run_model(kernels, forward, exact);
    const double error = relative_error(out, expected, count);
    printf("%s %s: relative error %.1e, allowed 1e-5; bf16 %.1e (the original's %.1e)\n", name,
        kernels->name, error, ours, theirs);
    return error <= 1e-5 && ours <= 1.1 * theirs;
}
