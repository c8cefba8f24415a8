/* Inside kernels/cuda/: f32, f16 and bf16 elements, one by one and in words. Conversions round to
 * nearest even. */
#ifndef KERNELS_CUDA_NUMERIC_CUH
#define KERNELS_CUDA_NUMERIC_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>

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

/* Calls function<T>(arguments...) with the T that `dtype` names. */
#define CALL_FOR_DTYPE(dtype, function, ...)                                                       \
    ((dtype) == DTYPE_F16       ? function<__half>(__VA_ARGS__)                                    \
        : (dtype) == DTYPE_BF16 ? function<__nv_bfloat16>(__VA_ARGS__)                             \
                                : function<float>(__VA_ARGS__))

/* The integer types that memory instructions move at once, by size in bytes. */
template <int BYTES> struct word_type;
template <> struct word_type<2> { typedef unsigned short type; };
template <> struct word_type<4> { typedef unsigned type; };
template <> struct word_type<8> { typedef uint2 type; };
template <> struct word_type<16> { typedef uint4 type; };

/* V elements side by side, aligned as one word. */
template <class T, int V> union word {
    typename word_type<V *(int)sizeof(T)>::type whole;
    T element[V];
};

/* Converts all elements of a word. A bf16 is the upper half of an f32, so two bf16 in 32 bits take
 * one operation each; a single bf16 takes two. */
template <class T, int V>
__device__ __forceinline__ void word_to_float(union word<T, V> w, float *to) {
#pragma unroll
    for (int i = 0; i < V; i++)
        to[i] = to_float(w.element[i]);
}

template <int V>
__device__ __forceinline__ void word_to_float(union word<__nv_bfloat16, V> w, float *to) {
    if constexpr (V == 1) {
        to[0] = to_float(w.element[0]);
    } else {
        unsigned pairs[V / 2];
        memcpy(pairs, &w, sizeof(pairs));
#pragma unroll
        for (int i = 0; i < V / 2; i++) {
            to[2 * i] = __uint_as_float(pairs[i] << 16);
            to[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
        }
    }
}

template <class T, int V> __device__ __forceinline__ void load_word(const T *from, float *to) {
    union word<T, V> w;
    w.whole = *(const decltype(w.whole) *)from;
#pragma unroll
    for (int i = 0; i < V; i++)
        to[i] = to_float(w.element[i]);
}

template <class T, int V> __device__ __forceinline__ void store_word(T *to, const float *from) {
    union word<T, V> w;
#pragma unroll
    for (int i = 0; i < V; i++)
        w.element[i] = from_float<T>(from[i]);
    *(decltype(w.whole) *)to = w.whole;
}

/* Eight elements, 16-byte aligned. */
template <class T> __device__ __forceinline__ void load_8(const T *from, float *to) {
    constexpr int V = 16 / (int)sizeof(T);
#pragma unroll
    for (int i = 0; i < 8; i += V)
        load_word<T, V>(from + i, to + i);
}

template <class T> __device__ __forceinline__ void store_8(T *to, const float *from) {
    constexpr int V = 16 / (int)sizeof(T);
#pragma unroll
    for (int i = 0; i < 8; i += V)
        store_word<T, V>(to + i, from + i);
}

#endif
