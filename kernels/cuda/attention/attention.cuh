/* Inside kernels/cuda/: code that the attention kernels on tensor cores share.
 *
 * The scores of a block of keys stay in registers as f32 fragments. exp is computed as 2^x, with
 * the scale and log2 e in one multiplication: 2^(c s - c m), where c = scale log2 e > 0 and m is
 * the largest score so far. If c m is large, m is subtracted from s before the multiplication.
 * Rounding a product near 2^31 would change the exponent by more than the whole range of a float's
 * exponents. Rounding a product of 128 changes it by 2^-18, by the same amount for all weights of a
 * block.
 *
 * If all scores of a row so far are -inf, 0 is used for m. Otherwise the code would compute inf -
 * inf where the formula does not. NaN and +inf pass through to the row's sum, and so to all of its
 * outputs.
 */
#ifndef KERNELS_CUDA_ATTENTION_ATTENTION_CUH
#define KERNELS_CUDA_ATTENTION_ATTENTION_CUH

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/ptx.cuh"

/* False when compiling for sm_80 and later. These chips never run the code for sm_75, and compiling
 * it for them would only change the register allocation. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define SM75_CODE false
#else
#define SM75_CODE true
#endif

#define MINUS_INFINITY __uint_as_float(0xff800000u)

/* Returns the number of keys of a row, or 0 if another launch computes this row. Call after
 * griddepcontrol_wait. */
__device__ __forceinline__ int keys_of(const struct attention &a, int row) {
    if (!a.lengths)
        return a.tk;
    const int keys = min(a.lengths[row], a.tk);
    return keys >= a.fewest && keys <= a.most ? keys : 0;
}

/* x and y rounded to T. */
template <class T> __device__ __forceinline__ auto pair_of(float x, float y);

template <> __device__ __forceinline__ auto pair_of<__half>(float x, float y) {
    return __floats2half2_rn(x, y);
}

template <> __device__ __forceinline__ auto pair_of<__nv_bfloat16>(float x, float y) {
    return __floats2bfloat162_rn(x, y);
}

/* Two floats rounded to T in one register, the first in the lower half. */
template <class T> __device__ __forceinline__ uint32_t pack_2(float x, float y) {
    union {
        decltype(pair_of<T>(x, y)) pair;
        uint32_t bits;
    } u;
    u.pair = pair_of<T>(x, y);
    return u.bits;
}

/* c (16 x 8) += a (16 x 16) b (16 x 8). With `half`, the last 8 of the 16 terms of each sum are
 * absent and count as zeros. */
template <class T, bool SM75>
__device__ __forceinline__ void multiply(
    float *c, const uint32_t *a, const uint32_t *b, bool half = false) {
    if constexpr (SM75) {
        mma_m16n8k8_f16(c, a, b[0]);
        if (!half)
            mma_m16n8k8_f16(c, a + 2, b[1]);
    } else {
        mma_m16n8k16<T>(c, a, b);
    }
}

/* 2^x for x <= 0, without the unit for exponentials: 2^n times a polynomial in x - n, which is
 * between -1/2 and 1/2. The relative error is at most 7.5e-5, a third of what rounding to f16 may
 * cost, and the smallest that a cubic allows. Results below 2^-126, also for -inf, become 2^-126.
 * NaN stays NaN. */
__device__ __forceinline__ float spared_exp2(float x) {
    const float whole = 12582912.0f; /* 1.5 * 2^23: floats near it are whole numbers */
    const float seen = max_or_nan(x, -126.0f), n = seen + whole, f = seen - (n - whole);
    const float left = fmaf(
        fmaf(fmaf(0.05517167f, f, 0.24261113f), f, 0.69326097f), f, 0.99992806f);
    return left * __uint_as_float((__float_as_uint(n) << 23) + 0x3f800000u);
}

/* The maximum (quad_max) and the sum (quad_sum) over the four lanes that hold one row of a
 * fragment. */
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Returns the m to subtract in the exponent: 0 if there was no score above -inf yet. */
__device__ __forceinline__ float safe_max(float m) {
    return m == MINUS_INFINITY ? 0.0f : m;
}

/* The functions below work on 16 rows of queries, in fragments of 8 columns. A lane holds two
 * numbers of a fragment in row lane / 4, and two in row lane / 4 + 8. An array of two elements has
 * one for each of these rows. */

template <int FRAGMENTS> __device__ __forceinline__ void clear_fragments(float (*x)[4]) {
#pragma unroll
    for (int j = 0; j < FRAGMENTS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[j][e] = 0.0f;
}

/* Hides all keys but the first `seen` (upper row) or `seen_8` (lower row). */
template <int FRAGMENTS>
__device__ __forceinline__ void hide_keys(float (*scores)[4], int seen, int seen_8) {
    const int pair = (int)threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < FRAGMENTS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (j * 8 + pair * 2 + e % 2 >= (e < 2 ? seen : seen_8))
                scores[j][e] = MINUS_INFINITY;
}

/* Turns scores into weights 2^(c s - c m). `total` is this lane's part of the weights' sum. Sums
 * from earlier blocks must be multiplied by `shrink`; with ONLY there are no earlier blocks. With
 * SPARED not 0, a lane computes one of its two weights per row with spared_exp2 in every SPARED-th
 * fragment. */
template <int FRAGMENTS, bool ONLY, int SPARED = 0>
__device__ __forceinline__ void soften(
    float (*scores)[4], float c, float *largest, float *total, float *shrink) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float now = ONLY ? MINUS_INFINITY : largest[r];
#pragma unroll
        for (int j = 0; j < FRAGMENTS; j++)
            now = fmaxf(now, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
        now = quad_max(now);
        const float base = safe_max(now);
        float from = base * c, sum = 0.0f;
        if (fabsf(from) > 128.0f) {
#pragma unroll
            for (int j = 0; j < FRAGMENTS; j++)
                scores[j][2 * r] -= base, scores[j][2 * r + 1] -= base;
            from = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < FRAGMENTS; j++)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; e++) {
                const bool spared = SPARED && j % (SPARED ? SPARED : 1) == SPARED / 2 && e % 2;
                const float x = fmaf(scores[j][e], c, -from);
                scores[j][e] = spared ? spared_exp2(x) : fast_exp2(x);
                sum += scores[j][e];
            }
        if constexpr (ONLY) {
            total[r] = sum;
        } else {
            shrink[r] = fast_exp2((largest[r] - base) * c);
            total[r] = fmaf(total[r], shrink[r], sum);
        }
        largest[r] = now;
    }
}

template <int FRAGMENTS>
__device__ __forceinline__ void shrink_sums(float (*sums)[4], const float *shrink) {
#pragma unroll
    for (int j = 0; j < FRAGMENTS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sums[j][e] *= shrink[e / 2];
}

/* Packs the weights of 16 keys as a left operand, 16 x 16. */
template <class T>
__device__ __forceinline__ void pack_weights(const float (*weights)[4], uint32_t *a) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = pack_2<T>(weights[i / 2][i % 2 * 2], weights[i / 2][i % 2 * 2 + 1]);
}

/* y[query] = sums / total. The first row is query `first` of `queries`; y points at query 0. */
template <class T, int FRAGMENTS>
__device__ __forceinline__ void write_queries(
    const float (*sums)[4], const float *total, T *y, int64_t step, int first, int queries) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float share = 1.0f / quad_sum(total[r]);
        const int query = first + r * 8 + lane / 4;
        if (query >= queries)
            continue;
        T *line = y + query * step + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < FRAGMENTS; j++)
            *(uint32_t *)(line + j * 8) = pack_2<T>(
                sums[j][2 * r] * share, sums[j][2 * r + 1] * share);
    }
}

/* ---- the host's side ---- */

typedef void (*attention_kernel)(const struct attention);
struct attention_kernels {
    attention_kernel f16, bf16, f16_sm75; /* f16_sm75: NULL if it does not fit that chip */
};

static inline attention_kernel attention_kernel_for(
    const struct attention_kernels *kernels, enum dtype dtype) {
    return dtype == DTYPE_BF16                      ? kernels->bf16
           : cuda_get_properties()->capability < 80 ? kernels->f16_sm75
                                                    : kernels->f16;
}

/* The grid: x tiles of queries, y heads, z rows. */
static inline dim3 attention_grid(const struct attention *a, int tiles) {
    return dim3((unsigned)tiles, (unsigned)a->heads, (unsigned)a->rows);
}

static inline int attention_query_tiles(
    const struct attention *a, const struct attention_tile *tile) {
    return (a->tq + tile->queries - 1) / tile->queries;
}

#endif
