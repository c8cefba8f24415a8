/* The building blocks of attention (attention.c) and its gradient (attention_backward.c): packing
 * queries, keys and values, and the two products in register tiles. */
#ifndef KERNELS_CPU_ATTENTION_ATTENTION_BLOCKS_H
#define KERNELS_CPU_ATTENTION_ATTENTION_BLOCKS_H

#include "kernels/cpu/simd.h"

#if LANES == 16
#define TILE_Q 12 /* score tile: 12 x 2 accumulators of 32 registers */
#define TILE_O 8  /* output tile: 8 x 3 accumulators */
#else
#define TILE_Q 6 /* 6 x 2 accumulators of 16 registers */
#define TILE_O 4 /* 4 x 3 accumulators */
#endif
#define PANEL (2 * LANES)
#define BLOCK_Q 48 /* a multiple of TILE_Q and TILE_O */
#define BLOCK_K 256

INLINE float element(const void *p, enum dtype dtype, int64_t i) {
    return dtype == DTYPE_F32 ? ((const float *)p)[i] : bf16_to_f32(((const uint16_t *)p)[i]);
}

/* Packs keys [panel * PANEL, (panel + 1) * PANEL) of a head with `keys` keys; zeros after the last
 * one. */
static inline void pack_keys(int64_t d, const void *k, enum dtype dtype, int64_t at, int64_t step,
    int64_t panel, int64_t keys, float *out) {
    for (int64_t j = 0; j < PANEL; j++) {
        int64_t key = panel * PANEL + j;
        for (int64_t i = 0; i < d; i++)
            out[i * PANEL + j] = key < keys ? element(k, dtype, at + key * step + i) : 0.0f;
    }
}

static inline void pack_values(int64_t d, int64_t d_padded, const void *v, enum dtype dtype,
    int64_t at, int64_t step, int64_t panel, int64_t keys, float *out) {
    int64_t first = panel * PANEL, last = first + PANEL < keys ? first + PANEL : keys;
    for (int64_t key = first; key < last; key++, out += d_padded) {
        convert_elements(out, DTYPE_F32,
            (const char *)v + (size_t)(at + key * step) * dtype_size(dtype), dtype, d);
        memset(out + d, 0, (size_t)(d_padded - d) * sizeof(float));
    }
}

/* out[tile][d][TILE_Q] = `count` queries times `factor`, then zeros. */
static inline void pack_queries(int64_t d, const void *q, enum dtype dtype, int64_t at,
    int64_t step, int64_t count, float factor, float *out) {
    int64_t tiles = (count + TILE_Q - 1) / TILE_Q;
    for (int64_t i = 0; i < tiles * TILE_Q; i++) {
        float *to = out + i / TILE_Q * d * TILE_Q + i % TILE_Q;
        for (int64_t j = 0; j < d; j++)
            to[j * TILE_Q] = i < count ? element(q, dtype, at + i * step + j) * factor : 0.0f;
    }
}

/* scores[0..TILE_Q)[0..PANEL) = q^T k; rows of scores are `stride` apart. */
INLINE void score_tile(const float *q, const float *k, int64_t d, float *scores, int64_t stride) {
    vf sum[TILE_Q][2] = { 0 };
    for (int64_t i = 0; i < d; i++, q += TILE_Q, k += PANEL) {
        vf k0 = load(k), k1 = load(k + LANES);
#pragma GCC unroll 16
        for (int r = 0; r < TILE_Q; r++) {
            vf x = splat(q[r]);
            sum[r][0] += x * k0;
            sum[r][1] += x * k1;
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < TILE_Q; r++) {
        store(scores + r * stride, sum[r][0]);
        store(scores + r * stride + LANES, sum[r][1]);
    }
}

/* The left factor of a product of blocks: element (row, key) lies at row * by_row + key * by_key,
 * so a product with the transposed block needs no transpose. */
struct weights {
    const float *p;
    int64_t by_row, by_key;
};

/* o[0..rows)[0..vectors * LANES) += p[rows][keys] v[keys][...]. `rows` and `vectors` are
 * compile-time constants. */
INLINE void output_tile(
    struct weights w, const float *v, int64_t step, int64_t keys, int rows, int vectors, float *o) {
    vf sum[TILE_O][3];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < vectors; c++)
            sum[r][c] = load(o + r * step + c * LANES);
    for (int64_t j = 0; j < keys; j++, v += step) {
        vf part[3];
#pragma GCC unroll 4
        for (int c = 0; c < vectors; c++)
            part[c] = load(v + c * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            vf x = splat(w.p[r * w.by_row + j * w.by_key]);
#pragma GCC unroll 4
            for (int c = 0; c < vectors; c++)
                sum[r][c] += x * part[c];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < vectors; c++)
            store(o + r * step + c * LANES, sum[r][c]);
}

/* o += p v over all of d, in tiles of three vectors, then two, then one. */
INLINE void output_rows(
    struct weights w, const float *v, int64_t step, int64_t keys, int rows, float *o) {
    int64_t left = step / LANES;
    while (left > 0) {
        int vectors = left == 2 || left == 4 ? 2 : left >= 3 ? 3 : 1;
        if (vectors == 3)
            output_tile(w, v, step, keys, rows, 3, o);
        else if (vectors == 2)
            output_tile(w, v, step, keys, rows, 2, o);
        else
            output_tile(w, v, step, keys, rows, 1, o);
        left -= vectors;
        v += vectors * LANES;
        o += vectors * LANES;
    }
}

#endif
