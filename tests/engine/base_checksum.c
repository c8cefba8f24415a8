#include "tests/engine/base_checksum.h"

#include "base/hash.h"
#include "engine/adapters/internal.h"

#include <stdlib.h>

/* The side of a convolution's input in pixels. A linear layer's input has as many rows as this
 * picture has pixels. */
#define SIDE 4

/* Fills `out` with multiples of 1/8 in [-1, 1), which every dtype represents exactly. */
static void fill(void *out, enum dtype dtype, int64_t count) {
    uint32_t state = 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        const float value = (float)(int)(state >> 28) / 8 - 1;
        convert_elements((char *)out + (size_t)i * dtype_size(dtype), dtype, &value, DTYPE_F32, 1);
    }
}

struct product {
    const struct packed *weight;
    enum dtype dtype;
    void *numbers; /* owned: SIDE * SIDE * k */
    uint64_t hash;
};

static void multiply(struct compute *c, void *user) {
    struct product *p = user;
    const struct packed *w = p->weight;
    const size_t mark = arena_mark(c->arena);
    struct tensor x = compute_tensor_4d(c, p->dtype, 1, SIDE, SIDE, w->k), y;
    compute_upload(c, p->numbers, &x);
    if (w->is_conv) {
        const int64_t out = conv_out_size(w->kind, SIDE);
        y = compute_tensor_4d(c, p->dtype, 1, out, out, w->n);
        op_conv2d(c, &(struct conv2d_args){ .x = &x, .weight = w, .y = &y });
    } else {
        y = compute_tensor_4d(c, p->dtype, 1, SIDE, SIDE, w->geglu ? w->n / 2 : w->n);
        op_linear(c, &(struct linear_args){ .x = &x, .weight = w, .y = &y });
    }
    const void *seen = compute_view(c, &y);
    if (seen)
        p->hash = hash_fnv1a(seen, tensor_bytes(&y));
    arena_release(c->arena, mark);
}

static bool weight_checksum(const struct adapters *adapters, const struct packed *weight,
    uint64_t *out, struct error *err) {
    const struct kernels *kernels = adapters->base.kernels;
    struct compute c = { .kernels = kernels };
    struct product p = { weight, kernels->activation_dtype(adapters->base.dtype), NULL, 0 };
    const int64_t count = SIDE * SIDE * weight->k;
    p.numbers = calloc((size_t)count, dtype_size(p.dtype));
    if (!p.numbers)
        return error_set(err, ERROR_NO_MEMORY, "no memory to multiply a weight");
    fill(p.numbers, p.dtype, count);
    bool ok = arena_create(kernels->memory, &c.arena, err) && compute_plan(&c, multiply, &p, err);
    if (ok)
        multiply(&c, &p);
    if (ok && !compute_ok(&c)) {
        ok = false;
        if (err)
            *err = c.error;
    }
    arena_destroy(c.arena);
    free(p.numbers);
    *out = p.hash;
    return ok;
}

bool adapters_base_checksum(struct adapters *adapters, uint64_t *out, struct error *err) {
    uint64_t sums[2] = { 0, 0 };
    for (int c = 0; c < ADAPTER_COMPONENTS; c++) {
        const struct weight_list *list = component_list(adapters, (enum component)c);
        for (size_t i = 0; i < list->count; i++) {
            if (list->items[i].first != 0)
                continue;
            if (!weight_checksum(adapters, list->items[i].packed, &sums[1], err))
                return false;
            sums[0] = hash_fnv1a(sums, sizeof(sums));
        }
    }
    *out = sums[0];
    return true;
}
