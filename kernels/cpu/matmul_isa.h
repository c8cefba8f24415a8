/* What the two halves of one instruction set's build share: names and the register tile. Included
 * by matmul_direct.c and winograd.c only, which are compiled once per ISA (portable, avx2, avx512).
 */
#ifndef KERNELS_CPU_MATMUL_ISA_H
#define KERNELS_CPU_MATMUL_ISA_H

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_vector.h"

#if LANES == 16
#define ISA avx512
#define ISA_TEXT "avx512"
#elif LANES == 8
#define ISA avx2
#define ISA_TEXT "avx2"
#else
#define ISA portable
#define ISA_TEXT "portable"
#endif
/* Inputs are summed in blocks of at most this many. */
#define BLOCK_K 320

#define ISA_PASTE(name, isa) matmul_##name##_##isa
#define ISA_EXPAND(name, isa) ISA_PASTE(name, isa)
#define ISA_NAME(name) ISA_EXPAND(name, ISA) /* matmul_direct_avx2 */

void ISA_NAME(direct)(const struct matmul_job *job);
void ISA_NAME(winograd)(const struct matmul_job *job, int tile, void *scratch);
void ISA_NAME(geglu)(
    const float *h, int64_t rows, int64_t n, enum dtype dtype, const void *residual, void *y);
size_t ISA_NAME(winograd_scratch)(const struct matmul_job *job, int tile);

/* The first `lanes` floats; the rest are zeros. */
static inline __attribute__((always_inline)) vf load_lanes(const float *p, int lanes) {
    if (lanes == LANES)
        return load(p);
    vf v = { 0 };
    memcpy(&v, p, (size_t)lanes * sizeof(float));
    return v;
}

static inline __attribute__((always_inline)) void store_lanes(float *p, vf v, int lanes) {
    if (lanes == LANES)
        store(p, v);
    else
        memcpy(p, &v, (size_t)lanes * sizeof(float));
}

/* The same of an array of f32 or bf16, from element `at` on. */
static inline __attribute__((always_inline)) vf load_values(
    const void *p, int64_t at, int lanes, bool bf16) {
    if (!bf16)
        return load_lanes((const float *)p + at, lanes);
    uint16_t padded[LANES] = { 0 };
    const uint16_t *from = (const uint16_t *)p + at;
    if (lanes == LANES)
        return load_bf16(from);
    memcpy(padded, from, (size_t)lanes * sizeof(*from));
    return load_bf16(padded);
}

static inline __attribute__((always_inline)) void store_values(
    void *p, int64_t at, vf v, int lanes, bool bf16) {
    if (!bf16) {
        store_lanes((float *)p + at, v, lanes);
        return;
    }
    uint16_t padded[LANES];
    store_bf16(lanes == LANES ? (uint16_t *)p + at : padded, v);
    if (lanes < LANES)
        memcpy((uint16_t *)p + at, padded, (size_t)lanes * sizeof(*padded));
}

/* How many of `left` rows the next register tile takes: TILE_ROWS, or two thirds of that where it
 * wastes less (8 rows are 4 and 4, not 6 and 2 of 6). A tile computes whole, so that as many row
 * pointers must be there and as many rows of sums. */
#define TILE_PART (TILE_ROWS * 2 / 3)
static inline int tile_rows(int64_t left) {
    return left <= TILE_PART || (left > TILE_ROWS && left <= 2 * TILE_PART) ? TILE_PART : TILE_ROWS;
}

/* sum[r][0..PANEL) (+)= sum over i < k of rows[r][at + i] * weight[i][0..PANEL) for r < count,
 * which is TILE_ROWS or TILE_PART; rows of `sum` are `stride` floats apart. A row's bits do not
 * depend on the count. */
void ISA_NAME(tile_product)(int count, const float *const *rows, int64_t at, int64_t k,
    const float *weight, float *sum, int64_t stride, bool accumulate);

#endif
