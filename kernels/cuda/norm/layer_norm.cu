/* layer_norm over the last dimension, one warp per token. A token is kept in registers if it has at
 * most 2048 channels, a multiple of eight. Other tokens are read three times. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/norm/norm.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"

#define WARPS 4
#define THREADS (32 * WARPS)

__device__ __forceinline__ float finish(
    float x, float shift, float mean, float scale, float gamma, float beta) {
    return fmaf(((x - shift) - mean) * scale, gamma, beta);
}

__device__ __forceinline__ float scale_of(float squares, int channels, float eps) {
    return 1.0f / sqrtf(squares / (float)channels + eps);
}

/* Normalises one token of up to 8 * 32 * VECTORS channels; a lane keeps VECTORS words of eight
 * channels. All loads are issued before the first value is used, with no condition between them.
 * Loads after the last channel read the last eight channels again. */
template <class T, int VECTORS>
__device__ __forceinline__ void normalise_kept(
    const T *from, const float *gamma, const float *beta, T *to, int channels, float eps) {
    const int lane = (int)threadIdx.x % 32;
    constexpr bool EARLY = VECTORS <= 5; /* gamma, beta loaded with x; registers allow it */
    float v[VECTORS][8], g[VECTORS][8], b[VECTORS][8], sum = 0.0f, squares = 0.0f;
    const T first = from[0];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = min((i * 32 + lane) * 8, channels - 8);
        load_8(from + at, v[i]);
        if constexpr (EARLY) {
            load_8(gamma + at, g[i]);
            load_8(beta + at, b[i]);
        }
    }
    const float shift = to_float(first);
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if ((i * 32 + lane) * 8 < channels) {
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum += v[i][j] - shift;
        }
    const float mean = warp_sum(sum) / (float)channels;
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if ((i * 32 + lane) * 8 < channels) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float d = (v[i][j] - shift) - mean;
                squares = fmaf(d, d, squares);
            }
        }
    const float scale = scale_of(warp_sum(squares), channels, eps);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = (i * 32 + lane) * 8;
        if (at < channels) {
            if constexpr (!EARLY) {
                load_8(gamma + at, g[i]);
                load_8(beta + at, b[i]);
            }
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[i][j] = finish(v[i][j], shift, mean, scale, g[i][j], b[i][j]);
            store_8(to + at, v[i]);
        }
    }
}

/* Normalises one token of any number of channels at any address. */
template <class T>
__device__ __forceinline__ void normalise_any(
    const T *from, const float *gamma, const float *beta, T *to, int channels, float eps) {
    const int lane = (int)threadIdx.x % 32;
    const float shift = to_float(from[0]);
    float sum = 0.0f, squares = 0.0f;
    for (int c = lane; c < channels; c += 32)
        sum += to_float(from[c]) - shift;
    const float mean = warp_sum(sum) / (float)channels;
    for (int c = lane; c < channels; c += 32) {
        const float d = (to_float(from[c]) - shift) - mean;
        squares = fmaf(d, d, squares);
    }
    const float scale = scale_of(warp_sum(squares), channels, eps);
    for (int c = lane; c < channels; c += 32)
        to[c] = from_float<T>(finish(to_float(from[c]), shift, mean, scale, gamma[c], beta[c]));
}

/* x may be y. VECTORS = 0: for channels and addresses that normalise_kept does not support. */
template <class T, int VECTORS>
__global__ void __launch_bounds__(THREADS) layer_norm(const T *x, const float *gamma,
    const float *beta, T *y, int64_t tokens, int channels, float eps) {
    const int64_t token = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    griddepcontrol_wait();
    griddepcontrol_launch();
    if (token >= tokens)
        return;
    const T *from = x + token * channels;
    T *to = y + token * channels;
    if constexpr (VECTORS == 0)
        normalise_any(from, gamma, beta, to, channels, eps);
    else
        normalise_kept<T, VECTORS>(from, gamma, beta, to, channels, eps);
}

template <class T> static bool run(const struct layer_norm_args *args, struct error *err) {
    const int channels = (int)args->x->shape[args->x->rank - 1];
    const int64_t tokens = tensor_elements(args->x) / channels;
    const T *x = (const T *)args->x->data;
    const float *gamma = (const float *)args->gamma->data, *beta = (const float *)args->beta->data;
    T *y = (T *)args->y->data;
    const bool vectors = channels % 8 == 0 && channels <= 2048 &&
                         ((uintptr_t)x | (uintptr_t)y | (uintptr_t)gamma | (uintptr_t)beta) % 16 ==
                             0;
    void (*kernel)(const T *, const float *, const float *, T *, int64_t, int,
        float) = !vectors           ? layer_norm<T, 0>
                 : channels <= 256  ? layer_norm<T, 1>
                 : channels <= 512  ? layer_norm<T, 2>
                 : channels <= 768  ? layer_norm<T, 3>
                 : channels <= 1280 ? layer_norm<T, 5>
                                    : layer_norm<T, 8>;
    return launch(kernel, dim3((unsigned)((tokens + WARPS - 1) / WARPS)), THREADS, 0, "layer_norm",
        err, x, gamma, beta, y, tokens, channels, args->eps);
}

extern "C" bool cuda_layer_norm(const struct layer_norm_args *args, struct error *err) {
    return CALL_FOR_DTYPE(args->x->dtype, run, args, err);
}
