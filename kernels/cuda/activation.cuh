/* Inside kernels/cuda/: the activations of kernels.h, of one value in f32. */
#ifndef KERNELS_CUDA_ACTIVATION_CUH
#define KERNELS_CUDA_ACTIVATION_CUH

#include "kernels/cuda/device.h"

__device__ __forceinline__ float gelu(float x) {
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
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

/* activate'(x) */
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
