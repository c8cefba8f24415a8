/* Names and the register tile, shared by the files that are compiled once per ISA (portable,
 * avx2, avx512, and wide for tests). Only matmul_direct.c, matmul_gradient.c and winograd.c
 * include it. */
#ifndef KERNELS_CPU_MATMUL_ISA_H
#define KERNELS_CPU_MATMUL_ISA_H

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/simd.h"

#if LANES == 16
#define TILE_ROWS 12 /* 24 accumulators of 32 registers */
#else
#define TILE_ROWS 6 /* 12 accumulators of 16 registers */
#endif
#define PANEL (2 * LANES)

/* Inputs are summed in blocks of at most this many. */
#define BLOCK_K 320

#define MATMUL_PASTE(name, isa) matmul_##name##_##isa
#define MATMUL_EXPAND(name, isa) MATMUL_PASTE(name, isa)
#define MATMUL(name) MATMUL_EXPAND(name, ISA) /* matmul_direct_avx2 */
#define MATMUL_QUOTE(isa) #isa
#define MATMUL_TEXT(isa) MATMUL_QUOTE(isa)

void MATMUL(direct)(const struct matmul_job *job);
void MATMUL(winograd)(const struct matmul_job *job, int tile, void *scratch);
void MATMUL(geglu)(
    const void *h, int64_t rows, int64_t n, enum dtype dtype, const void *residual, void *y);
size_t MATMUL(winograd_scratch)(const struct matmul_job *job, int tile);
void MATMUL(gradient)(const struct matmul_gradient *job);
void MATMUL(gradient_sums)(const struct matmul_gradient *job, float *sums);

/* Loads `lanes` elements of f32 or bf16 from element `at` on; the other lanes are zero. */
INLINE vf load_lanes(const void *p, int64_t at, int lanes, bool bf16) {
    enum dtype dtype = bf16 ? DTYPE_BF16 : DTYPE_F32;
    return lanes == LANES ? load_as(p, dtype, at) : load_some(p, dtype, at, lanes);
}

INLINE void store_lanes(void *p, int64_t at, vf v, int lanes, bool bf16) {
    enum dtype dtype = bf16 ? DTYPE_BF16 : DTYPE_F32;
    if (lanes == LANES)
        store_as(p, dtype, at, v);
    else
        store_some(p, dtype, at, lanes, v);
}

/* Returns how many of `left` rows the next register tile takes: TILE_ROWS, or two thirds of it
 * if that wastes less. With tiles of 6, for example, 8 rows are done as 4 and 4 instead of 6 and
 * 2. A tile always computes all of its rows, so there must be a row pointer and a row of sums
 * for each. */
#define TILE_PART (TILE_ROWS * 2 / 3)
static inline int tile_rows(int64_t left) {
    return left <= TILE_PART || (left > TILE_ROWS && left <= 2 * TILE_PART) ? TILE_PART : TILE_ROWS;
}

/* sum[r][0..PANEL) (+)= sum over i < k of rows[r][at + i] * weight[i][0..PANEL) for r < count.
 * `count` is TILE_ROWS or TILE_PART; rows of `sum` are `stride` floats apart. A row's bits do not
 * depend on the count. */
void MATMUL(tile_product)(int count, const float *const *rows, int64_t at, int64_t k,
    const float *weight, float *sum, int64_t stride, bool accumulate);

/* out[i][0..PANEL) = the turned weight in f32, for inputs [position, position + length) of all taps
 * (counted as tap * k + input) and one panel of outputs; zeros after the last output. */
void MATMUL(turned_block)(const struct matmul_weight *weight, int64_t panel, int64_t position,
    int64_t length, float *out);

#endif
