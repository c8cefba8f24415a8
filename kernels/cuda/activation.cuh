/* Inside kernels/cuda/: the activations of kernels.h, for one f32 value. */
#ifndef KERNELS_CUDA_ACTIVATION_CUH
#define KERNELS_CUDA_ACTIVATION_CUH

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.cuh"

__device__ __forceinline__ float gelu(float x) {
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
}

/* gelu for results that are rounded to 16 bits; takes half as many instructions. x/2 + |x/2|
 * erf(|x|/sqrt 2), with erf by Abramowitz and Stegun's 7.1.26, absolute error at most 1.5e-7. */
__device__ __forceinline__ float short_gelu(float x) {
    const float half = 0.5f * x;
    const float t = fast_reciprocal(fmaf(0.3275911f * 0.70710678f, fabsf(x), 1.0f));
    float p = fmaf(1.061405429f, t, -1.453152027f);
    p = fmaf(p, t, 1.421413741f);
    p = fmaf(p, t, -0.284496736f);
    p = fmaf(p, t, 0.254829592f) * t;
    const float erf = fmaf(-p, fast_exp2(x * x * -0.72134752f), 1.0f); /* e^(-x^2 / 2) */
    return fmaf(fabsf(half), erf, half);
}

/* gelu, with the precision that a result of type T needs. */
template <class T> __device__ __forceinline__ float gelu_as(float x) {
    return sizeof(T) == 2 ? short_gelu(x) : gelu(x);
}

/* SiLU for results that are rounded to 16 bits. It uses only the chip's two approximations (e^x and
 * 1 / x), which omit the special cases for tiny numbers. */
__device__ __forceinline__ float quick_silu(float x) {
    return x * fast_reciprocal(1.0f + fast_exp2(x * -1.4426950408889634f));
}

/* SiLU of two values by three of the chip's approximations instead of four: 1 / a and 1 / b are
 * derived from 1 / (a b). The exponentials are limited to 2^60, so that a b stays finite. Below x =
 * -41 the result is then off, by at most 1e-18 |x|. */
__device__ __forceinline__ void quick_silu_2(float *x) {
    const float c = -1.4426950408889634f;
    const float a = 1.0f + fast_exp2(fminf(x[0] * c, 60.0f));
    const float b = 1.0f + fast_exp2(fminf(x[1] * c, 60.0f));
    const float both = fast_reciprocal(a * b);
    x[0] *= b * both;
    x[1] *= a * both;
}

__device__ __forceinline__ float activate(float x, enum activation activation) {
    switch (activation) {
    case ACTIVATION_SILU:
        return x / (1.0f + expf(-x));
    case ACTIVATION_QUICK_GELU:
        return x / (1.0f + expf(-1.702f * x));
    case ACTIVATION_GELU:
        return gelu(x);
    default:
        return x;
    }
}

/* gelu'(x) = Phi(x) + x phi(x) */
__device__ __forceinline__ float gelu_slope(float x) {
    return 0.5f * (1.0f + erff(x * 0.70710678118654752f)) +
           x * 0.39894228040143268f * expf(-0.5f * x * x);
}

/* The derivative of activate(x). */
__device__ __forceinline__ float activation_slope(float x, enum activation activation) {
    switch (activation) {
    case ACTIVATION_SILU: {
        const float s = 1.0f / (1.0f + expf(-x));
        return s * (1.0f + x * (1.0f - s));
    }
    case ACTIVATION_QUICK_GELU: {
        const float s = 1.0f / (1.0f + expf(-1.702f * x));
        return s * (1.0f + 1.702f * x * (1.0f - s));
    }
    case ACTIVATION_GELU:
        return gelu_slope(x);
    default:
        return 1.0f;
    }
}

#endif
