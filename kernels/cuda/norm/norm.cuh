/* Inside kernels/cuda/: mean and variance in f32 that stay precise with a large mean.
 *
 * One of the values (`shift`) is subtracted from all of them, so that the sums are as small as the
 * deviations. Pieces are merged by Chan, Golub and LeVeque's rule, in an order that depends on the
 * shape only. The mean is shift + mean, kept as two numbers, and x - shift is exact or nearly so.
 * Rounding shift + mean to one float would already cost an error of 3e-5 at a mean of 1000.
 */
#ifndef KERNELS_CUDA_NORM_NORM_CUH
#define KERNELS_CUDA_NORM_NORM_CUH

#include <cuda_runtime.h>

struct moments {
    float count, shift, mean, squares; /* squares: sum of (x - shift - mean)^2 */
};

/* Moments from the sums of d and d^2, where d = x - shift. */
__device__ __forceinline__ struct moments moments_of(
    float count, float shift, float sum, float sum_of_squares) {
    const float mean = count > 0.0f ? sum / count : 0.0f;
    struct moments m = { count, shift, mean, sum_of_squares - sum * mean };
    return m;
}

__device__ __forceinline__ struct moments moments_merge(struct moments a, struct moments b) {
    if (b.count == 0.0f)
        return a;
    if (a.count == 0.0f)
        return b;
    const float count = a.count + b.count;
    const float apart = (b.shift - a.shift) + (b.mean - a.mean);
    const float share = b.count / count;
    struct moments m = { count, a.shift, a.mean + apart * share,
        a.squares + b.squares + apart * apart * a.count * share };
    return m;
}

/* Merges all lanes' moments; every lane gets the same result. */
__device__ __forceinline__ struct moments moments_of_warp(struct moments m) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        struct moments other;
        other.count = __shfl_xor_sync(0xffffffffu, m.count, step);
        other.shift = __shfl_xor_sync(0xffffffffu, m.shift, step);
        other.mean = __shfl_xor_sync(0xffffffffu, m.mean, step);
        other.squares = __shfl_xor_sync(0xffffffffu, m.squares, step);
        /* Both lanes merge the lower lane's moments first, so that both get the same bits. */
        m = threadIdx.x & step ? moments_merge(other, m) : moments_merge(m, other);
    }
    return m;
}

/* 1 / sqrt(variance + eps). A variance that rounding made negative counts as 0; NaN stays NaN. */
__device__ __forceinline__ float moments_scale(struct moments m, float eps) {
    const float variance = m.squares < 0.0f ? 0.0f : m.squares / m.count;
    return 1.0f / sqrtf(variance + eps);
}

#endif
