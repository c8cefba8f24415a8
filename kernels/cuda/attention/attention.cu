/* attention: chooses the kernel that computes a call. */
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/tune/selections.cuh"

#include <stdio.h>
#include <string.h>

static struct selections<struct attention_shape, struct attention_candidate> selected;

/* Whether 16-byte copies can read every head of every token. */
static bool is_aligned(const struct tensor *t, int64_t offset, int head_dim) {
    const uint64_t bits = (uintptr_t)t->data | (uint64_t)offset * dtype_size(t->dtype) |
                          (uint64_t)t->shape[2] * dtype_size(t->dtype) |
                          (uint64_t)head_dim * dtype_size(t->dtype);
    return bits % 16 == 0;
}

static struct attention_shape shape_of(const struct attention_args *args) {
    struct attention_shape s;
    memset(&s, 0, sizeof(s)); /* shapes are compared as bytes */
    s.dtype = args->q->dtype;
    s.heads = args->heads;
    s.head_dim = args->head_dim;
    s.tq = args->q->shape[1];
    s.tk = args->k->shape[1];
    s.causal = args->causal;
    /* A masked weight is 0, but 0 times a value that is not finite is NaN. Only the plain kernel
     * skips these products. */
    s.plain_only = s.dtype == DTYPE_F32 || s.causal || !(args->scale > 0) ||
                   !is_aligned(args->q, args->q_offset, s.head_dim) ||
                   !is_aligned(args->k, args->k_offset, s.head_dim) ||
                   !is_aligned(args->v, args->v_offset, s.head_dim) ||
                   !is_aligned(args->y, 0, s.head_dim);
    return s;
}

extern "C" const struct attention_tile *attention_tile_list(enum attention_path path, int *count) {
    static const struct attention_tile plain = { "32 by 32", 0, 32, 32, 256, true, false, 0 };
    switch (path) {
    case ATTENTION_FLASH:
        return attention_flash_tiles(count);
    case ATTENTION_WHOLE:
        return attention_whole_tiles(count);
    case ATTENTION_WIDE:
        return attention_wide_tiles(count);
    case ATTENTION_HOPPER:
        return attention_hopper_tiles(count);
    default:
        *count = path == ATTENTION_PLAIN;
        return &plain;
    }
}

static bool takes(const struct attention_shape *s, enum attention_path path, int tile,
    const struct attention_tile *t) {
    const struct cuda_properties *device = cuda_get_properties();
    size_t shared_bytes = t->shared_bytes;
    if (path == ATTENTION_PLAIN)
        return true;
    if (s->plain_only ||
        (path == ATTENTION_HOPPER && (device->capability != 90 || device->code != 90)) ||
        (device->capability < 80 && (s->dtype != DTYPE_F16 || !t->sm75)))
        return false;
    if (path == ATTENTION_WIDE) {
        if (s->head_dim > t->head_dim)
            return false;
        shared_bytes = attention_wide_shared_bytes(tile, s->head_dim);
    } else if (s->head_dim != t->head_dim || (t->whole && s->tk > t->keys)) {
        return false;
    }
    return shared_bytes <= device->shared_bytes_per_block;
}

extern "C" int attention_candidates(
    const struct attention_shape *shape, struct attention_candidate out[ATTENTION_MAX_CANDIDATES]) {
    /* The paths from fastest to slowest, as measured on an H100. */
    static const enum attention_path order[] = { ATTENTION_WHOLE, ATTENTION_HOPPER, ATTENTION_FLASH,
        ATTENTION_WIDE, ATTENTION_PLAIN };
    int count = 0;
    for (size_t p = 0; p < sizeof(order) / sizeof(order[0]); p++) {
        int tile_count = 0;
        const struct attention_tile *tiles = attention_tile_list(order[p], &tile_count);
        for (int tile = 0; tile < tile_count; tile++)
            if (takes(shape, order[p], tile, &tiles[tile]) &&
                (count < ATTENTION_MAX_CANDIDATES - 1 || order[p] == ATTENTION_PLAIN)) {
                out[count].path = order[p];
                out[count++].tile = tile;
            }
    }
    return count;
}

extern "C" const char *attention_candidate_name(
    const struct attention_candidate *candidate, char *text, size_t size) {
    static const char *const paths[] = { "plain", "wide", "flash", "whole", "hopper" };
    int count = 0;
    const struct attention_tile *tiles = attention_tile_list(candidate->path, &count);
    snprintf(text, size, "%s %s", paths[candidate->path], tiles[candidate->tile].name);
    return text;
}

extern "C" bool attention_select(
    const struct attention_shape *shape, const struct attention_candidate *candidate) {
    return selected.put(shape, candidate);
}

static const void *first_of(const struct tensor *t, int64_t offset) {
    return (const char *)t->data + offset * (int64_t)dtype_size(t->dtype);
}

/* Launches a candidate. If the call has lengths, the launch computes only rows of `fewest` to
 * `most` keys. */
static bool attend(const struct attention_candidate *candidate, const struct attention_args *args,
    int fewest, int most, struct error *err) {
    struct attention a = {};
    a.q = first_of(args->q, args->q_offset);
    a.k = first_of(args->k, args->k_offset);
    a.v = first_of(args->v, args->v_offset);
    a.y = args->y->data;
    a.q_step = args->q->shape[2];
    a.k_step = args->k->shape[2];
    a.v_step = args->v->shape[2];
    a.rows = (int)args->q->shape[0];
    a.heads = args->heads;
    a.d = args->head_dim;
    a.tq = (int)args->q->shape[1];
    a.tk = (int)args->k->shape[1];
    a.scale = args->scale;
    a.causal = args->causal;
    a.lengths = args->lengths ? (const int *)args->lengths->data : NULL;
    a.fewest = fewest;
    a.most = most;
    switch (candidate->path) {
    case ATTENTION_FLASH:
    case ATTENTION_WHOLE:
        return attention_flash_run(candidate, &a, args->q->dtype, err);
    case ATTENTION_WIDE:
        return attention_wide_run(candidate, &a, args->q->dtype, err);
    case ATTENTION_HOPPER:
        return attention_hopper_run(candidate, &a, args->q->dtype, err);
    default:
        return attention_plain_run(&a, args->q->dtype, err);
    }
}

extern "C" bool attention_with(const struct attention_candidate *candidate,
    const struct attention_args *args, struct error *err) {
    return attend(candidate, args, 1, (int)args->k->shape[1], err);
}

static struct attention_candidate choice_for(const struct attention_shape *shape) {
    const struct attention_candidate *candidate = selected.find(shape, &tunable_attention);
    if (candidate)
        return *candidate;
    struct attention_candidate candidates[ATTENTION_MAX_CANDIDATES];
    attention_candidates(shape, candidates);
    return candidates[0];
}

extern "C" int attention_shapes_of(
    const struct attention_args *args, struct attention_shape shapes[2]) {
    shapes[0] = shapes[1] = shape_of(args);
    if (!args->lengths)
        return 1;
    shapes[0].tk = ATTENTION_FEW_KEYS;
    shapes[1].tk = 2 * ATTENTION_FEW_KEYS;
    return args->k->shape[1] <= ATTENTION_FEW_KEYS ? 1 : 2;
}

extern "C" bool cuda_attention(const struct attention_args *args, struct error *err) {
    struct attention_shape shapes[2];
    const int count = attention_shapes_of(args, shapes), tk = (int)args->k->shape[1];
    const struct attention_candidate few = choice_for(&shapes[0]);
    const struct attention_candidate many = count == 1 ? few : choice_for(&shapes[1]);
    if (few.path == many.path && few.tile == many.tile)
        return attend(&few, args, 1, tk, err);
    return attend(&few, args, 1, ATTENTION_FEW_KEYS, err) &&
           attend(&many, args, ATTENTION_FEW_KEYS + 1, tk, err);
}
