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

#endif
