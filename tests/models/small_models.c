#include "tests/models/small_models.h"

#include <jansson.h>
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
    uint64_t state = 14695981039346656037u; /* FNV-1a */
    for (const char *p = name; *p; p++) {
        state = (state ^ (unsigned char)*p) * 1099511628211u;
    }
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
    for (int64_t i = 0; i < count; i++) {
        out[i] = (float)(offset + scale * numbers[i]);
    }
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

/* Whether the last but one part of the name contains "norm". */
static bool is_norm(const char *name) {
    const char *leaf = strrchr(name, '.'), *norm = NULL;
    for (const char *p = strstr(name, "norm"); p; p = strstr(p + 1, "norm")) {
        norm = p;
    }
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
            strstr(name, "k_proj")) {
            scale *= 2;
        }
    }
    source->buffers = must(
        realloc(source->buffers, (size_t)(source->count + 1) * sizeof(void *)), "no memory");
    float *data = scaled_numbers(name, count, offset, scale);
    source->buffers[source->count++] = data;
    *out = (struct tensor){ .data = data, .dtype = DTYPE_F32, .rank = rank };
    memcpy(out->shape, shape, (size_t)rank * sizeof(*shape));
    return true;
}

struct weights rule_weights(
    struct rule_source *source, const struct kernels *kernels, enum dtype dtype) {
    return (struct weights){ .get = rule_get, .user = source, .kernels = kernels, .dtype = dtype };
}

void rule_source_finish(struct rule_source *source) {
    for (int i = 0; i < source->count; i++) {
        free(source->buffers[i]);
    }
    free(source->buffers);
}

struct reference {
    json_t *header;
    char *data;
    size_t header_bytes;
};

struct reference *reference_open(const char *path) {
    struct reference *r = must(calloc(1, sizeof(*r)), "no memory");
    FILE *file = must(fopen(path, "rb"), path);
    uint64_t header_bytes;
    fseek(file, 0, SEEK_END);
    const size_t bytes = (size_t)ftell(file);
    rewind(file);
    r->data = must(malloc(bytes), "no memory");
    if (fread(r->data, 1, bytes, file) != bytes) {
        must(NULL, path);
    }
    fclose(file);
    memcpy(&header_bytes, r->data, 8);
    r->header_bytes = header_bytes;
    r->header = must(json_loadb(r->data + 8, r->header_bytes, 0, NULL), path);
    return r;
}

void reference_close(struct reference *reference) {
    json_decref(reference->header);
    free(reference->data);
    free(reference);
}

const float *reference_get(const struct reference *reference, const char *name, int64_t count) {
    const json_t *entry = must(json_object_get(reference->header, name), name);
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    const json_int_t end = json_integer_value(json_array_get(offsets, 1));
    if (strcmp(json_string_value(json_object_get(entry, "dtype")), "F32") != 0 ||
        end - begin != count * (json_int_t)sizeof(float)) {
        must(NULL, name);
    }
    return (const float *)(void *)(reference->data + 8 + reference->header_bytes + begin);
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
    if (!arena_create(&c.arena, &err) || !compute_plan(&c, forward, user, &err)) {
        must(NULL, err.message);
    }
    forward(&c, user);
    if (!compute_ok(&c)) {
        must(NULL, c.error.message);
    }
    arena_destroy(c.arena);
}
