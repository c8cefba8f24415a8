/* Inside kernels/cuda/: f32, f16 and bf16 elements, alone and eight at a time. Conversions round to
 * nearest even. */
#ifndef KERNELS_CUDA_NUMERIC_CUH
#define KERNELS_CUDA_NUMERIC_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

__device__ __forceinline__ float to_float(float x) {
    return x;
}

__device__ __forceinline__ float to_float(__half x) {
    return __half2float(x);
}

__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}

template <class T> __device__ __forceinline__ T from_float(float x);

template <> __device__ __forceinline__ float from_float<float>(float x) {
    return x;
}

template <> __device__ __forceinline__ __half from_float<__half>(float x) {
    return __float2half_rn(x);
}

template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}

/* Eight elements at a 16-byte boundary. */
template <class T> __device__ __forceinline__ void load_8(const T *from, float *to) {
    union {
        uint4 word;
        T element[8];
    } u;
    u.word = *(const uint4 *)from;
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[i] = to_float(u.element[i]);
}

template <> __device__ __forceinline__ void load_8<float>(const float *from, float *to) {
    const float4 a = *(const float4 *)from, b = *(const float4 *)(from + 4);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

template <class T> __device__ __forceinline__ void store_8(T *to, const float *from) {
    union {
        uint4 word;
        T element[8];
    } u;
#pragma unroll
    for (int i = 0; i < 8; i++)
        u.element[i] = from_float<T>(from[i]);
    *(uint4 *)to = u.word;
}

template <> __device__ __forceinline__ void store_8<float>(float *to, const float *from) {
    *(float4 *)to = make_float4(from[0], from[1], from[2], from[3]);
    *(float4 *)(to + 4) = make_float4(from[4], from[5], from[6], from[7]);
}

#endif
