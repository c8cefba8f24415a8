/* The backward of activations, geglu, concat and embedding, and dropout: one element per thread at
 * a time. Every loop strides over the grid, so a grid may be smaller than the work. */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/ptx.cuh"

#include <math.h>

#define THREADS 256
#define MAX_BLOCKS 65535

static dim3 grid_for(int64_t items) {
    const int64_t blocks = (items + THREADS - 1) / THREADS;
    return dim3((unsigned)(blocks < 1 ? 1 : blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS));
}

__device__ __forceinline__ int64_t grid_index() {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ int64_t grid_stride() {
    return (int64_t)gridDim.x * blockDim.x;
}

/* *at = x, or += x */
template <class T> __device__ __forceinline__ void put(T *at, float x, bool accumulate) {
    *at = from_float<T>(accumulate ? to_float(*at) + x : x);
}

/* ---- activation: dx (+)= dy activation'(x) ---- */

/* dx may be dy. */
template <class T>
__global__ void __launch_bounds__(THREADS) activation_backward(
    const T *dy, const T *x, T *dx, int64_t n, enum activation activation, bool accumulate) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int64_t i = grid_index(); i < n; i += grid_stride()) {
        const float slope = activation == ACTIVATION_NONE
                                ? 1.0f
                                : activation_slope(to_float(x[i]), activation);
        put(dx + i, to_float(dy[i]) * slope, accumulate);
    }
}

template <class T>
static bool activation_of(const struct activation_backward_args *args, struct error *err) {
    const int64_t n = tensor_elements(args->dy);
    return launch(activation_backward<T>, grid_for(n), THREADS, 0, "activation_backward", err,
        (const T *)args->dy->data, args->x ? (const T *)args->x->data : NULL, (T *)args->dx->data,
        n, args->activation, args->accumulate);
}

extern "C" bool cuda_activation_backward(
    const struct activation_backward_args *args, struct error *err) {
    return CALL_FOR_DTYPE(args->dy->dtype, activation_of, args, err);
}

/* ---- geglu: dh[j] (+)= dy[j] gelu(h[half + j]), dh[half + j] (+)= dy[j] h[j] gelu'(...) ---- */

template <class T>
__global__ void __launch_bounds__(THREADS)
    geglu_backward(const T *dy, const T *h, T *dh, int64_t n, int64_t half, bool accumulate) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int64_t i = grid_index(); i < n; i += grid_stride()) {
        const int64_t at = i / half * 2 * half + i % half;
        const float value = to_float(h[at]), gate = to_float(h[at + half]), d = to_float(dy[i]);
        put(dh + at, d * gelu(gate), accumulate);
        put(dh + at + half, d * value * gelu_slope(gate), accumulate);
    }
}

template <class T> static bool geglu_of(const struct geglu_backward_args *args, struct error *err) {
    const int64_t n = tensor_elements(args->dy), half = args->dy->shape[args->dy->rank - 1];
    return launch(geglu_backward<T>, grid_for(n), THREADS, 0, "geglu_backward", err,
        (const T *)args->dy->data, (const T *)args->h->data, (T *)args->dh->data, n, half,
        args->accumulate);
}

extern "C" bool cuda_geglu_backward(const struct geglu_backward_args *args, struct error *err) {
    return CALL_FOR_DTYPE(args->dy->dtype, geglu_of, args, err);
}

/* ---- concat: dx (+)= dy[..][first ..] ---- */

template <class T>
__global__ void __launch_bounds__(THREADS) take_channels(const T *dy, int64_t channels,
    int64_t first, T *dx, int64_t n, int64_t width, bool accumulate) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int64_t i = grid_index(); i < n; i += grid_stride())
        put(dx + i, to_float(dy[i / width * channels + first + i % width]), accumulate);
}

template <class T>
static bool take(const struct tensor *dy, int64_t first, const struct tensor *dx, bool accumulate,
    struct error *err) {
    const int64_t n = tensor_elements(dx);
    return launch(take_channels<T>, grid_for(n), THREADS, 0, "concat_backward", err,
        (const T *)dy->data, dy->shape[dy->rank - 1], first, (T *)dx->data, n,
        dx->shape[dx->rank - 1], accumulate);
}

template <class T>
static bool concat_of(const struct concat_backward_args *args, struct error *err) {
    const int last = args->dy->rank - 1;
    const int64_t b_first = args->db ? args->dy->shape[last] - args->db->shape[last] : 0;
    return (!args->da || take<T>(args->dy, 0, args->da, args->accumulate_a, err)) &&
           (!args->db || take<T>(args->dy, b_first, args->db, args->accumulate_b, err));
}

extern "C" bool cuda_concat_backward(const struct concat_backward_args *args, struct error *err) {
    return CALL_FOR_DTYPE(args->dy->dtype, concat_of, args, err);
}

/* ---- embedding: dtable[ids[i]] += dy[i], dpositions[i % width] += dy[i] ---- */

/* A block computes one row of dtable or dpositions: it finds the tokens that use this row and adds
 * them in order. */
template <class T>
__global__ void __launch_bounds__(THREADS) embedding_backward(
    const T *dy, const int *ids, int tokens, int width, bool by_position, float *table, int c) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int row = (int)blockIdx.x;
    for (int j = (int)threadIdx.x; j < c; j += THREADS) {
        float sum = 0.0f;
        bool is_used = false;
        for (int i = 0; i < tokens; i++)
            if ((by_position ? i % width : ids[i]) == row) {
                sum += to_float(dy[(int64_t)i * c + j]);
                is_used = true;
            }
        if (is_used)
            table[(int64_t)row * c + j] += sum;
    }
}

template <class T>
static bool gather(const struct embedding_backward_args *args, bool by_position,
    const struct tensor *table, struct error *err) {
    return launch(embedding_backward<T>, dim3((unsigned)table->shape[0]), THREADS, 0,
        "embedding_backward", err, (const T *)args->dy->data, (const int *)args->ids->data,
        (int)tensor_elements(args->ids), (int)args->ids->shape[1], by_position,
        (float *)table->data, (int)table->shape[1]);
}

template <class T>
static bool embedding_of(const struct embedding_backward_args *args, struct error *err) {
    return (!args->dtable || gather<T>(args, false, args->dtable, err)) &&
           (!args->dpositions || gather<T>(args, true, args->dpositions, err));
}

extern "C" bool cuda_embedding_backward(
    const struct embedding_backward_args *args, struct error *err) {
    return CALL_FOR_DTYPE(args->dy->dtype, embedding_of, args, err);
}

/* ---- dropout ---- */

struct dropout {
    int64_t n;
    uint64_t seed, step;
    uint32_t layer, least; /* the smallest word that is kept */
    float scale;
    bool accumulate, is_word; /* is_word: four elements of x and y form one aligned word */
};

/* A thread draws four words, for four elements. y may be x. */
template <class T>
__global__ void __launch_bounds__(THREADS) dropout(const T *x, T *y, const struct dropout d) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int64_t i = grid_index(); 4 * i < d.n; i += grid_stride()) {
        uint32_t words[4] = { (uint32_t)i, (uint32_t)d.step, (uint32_t)(d.step >> 32), d.layer };
        philox(d.seed, words);
        if (d.is_word && 4 * i + 4 <= d.n) {
            float in[4], out[4];
            load_word<T, 4>(x + 4 * i, in);
            if (d.accumulate)
                load_word<T, 4>(y + 4 * i, out);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float left = words[j] >= d.least ? in[j] * d.scale : 0.0f;
                out[j] = d.accumulate ? out[j] + left : left;
            }
            store_word<T, 4>(y + 4 * i, out);
            continue;
        }
        for (int j = 0; j < 4 && 4 * i + j < d.n; j++)
            put(y + 4 * i + j, words[j] >= d.least ? to_float(x[4 * i + j]) * d.scale : 0.0f,
                d.accumulate);
    }
}

template <class T> static bool dropout_of(const struct dropout_args *args, struct error *err) {
    struct dropout d = {};
    d.n = tensor_elements(args->x);
    d.seed = *args->seed;
    d.step = *args->step;
    d.layer = args->layer;
    /* p is at most 1 - 2^-24, so this fits in 32 bits. */
    d.least = (uint32_t)ceil((double)args->p * 4294967296.0);
    d.scale = (float)(1.0 / (1.0 - (double)args->p));
    d.accumulate = args->accumulate;
    d.is_word = ((uintptr_t)args->x->data | (uintptr_t)args->y->data) % (4 * sizeof(T)) == 0;
    return launch(dropout<T>, grid_for((d.n + 3) / 4), THREADS, 0, "dropout", err,
        (const T *)args->x->data, (T *)args->y->data, d);
}

extern "C" bool cuda_dropout(const struct dropout_args *args, struct error *err) {
    return CALL_FOR_DTYPE(args->x->dtype, dropout_of, args, err);
}
