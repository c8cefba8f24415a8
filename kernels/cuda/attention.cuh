/* Inside kernels/cuda/: what the attention kernels on tensor cores share.
 *
 * The scores of a block of keys stay in registers as f32 fragments. exp is 2^x with the scale and
 * log2 e in one multiplication: 2^(s c - m c), c = scale log2 e > 0, m the largest score so far. A
 * row that has seen nothing but -inf takes 0 for m, so that no inf - inf turns up where the formula
 * has none; NaN and +inf go through to the row's sum, and so to all of its outputs. */
#ifndef KERNELS_CUDA_ATTENTION_CUH
#define KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/attention.h"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/ptx.cuh"

#define MINUS_INFINITY __uint_as_float(0xff800000u)

/* Two floats as one register of T, the first in the lower half. */
template <class T> __device__ __forceinline__ uint32_t pack_2(float x, float y);

template <> __device__ __forceinline__ uint32_t pack_2<__half>(float x, float y) {
    union {
        __half2 pair;
        uint32_t bits;
    } u;
    u.pair = __floats2half2_rn(x, y);
    return u.bits;
}

template <> __device__ __forceinline__ uint32_t pack_2<__nv_bfloat16>(float x, float y) {
    union {
        __nv_bfloat162 pair;
        uint32_t bits;
    } u;
    u.pair = __floats2bfloat162_rn(x, y);
    return u.bits;
}

/* c (16 x 8) += a (16 x 16) b (16 x 8); with `half` the last 8 of the 16 are not there (and zeros).
 */
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

/* Over the four lanes that hold one row of a fragment. */
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* m for the exponent: 0 where there was no score yet. */
__device__ __forceinline__ float safe_max(float m) {
    return m == MINUS_INFINITY ? 0.0f : m;
}

#endif
