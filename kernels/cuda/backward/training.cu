/* mse, sum_squares and adamw. Sums are f64, in an order that depends on the shapes alone.
 *
 * A thread takes FOUR adjacent floats, as one word of 16 bytes if all arrays are aligned for that.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/ptx.cuh"

#include <math.h>

#define THREADS 256
#define FOUR 4

/* The sum over the block, returned to every thread. `scratch` [THREADS]. */
__device__ __forceinline__ double block_sum(double x, double *scratch) {
    __syncthreads();
    scratch[threadIdx.x] = x;
    for (int step = THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step)
            scratch[threadIdx.x] += scratch[threadIdx.x + step];
    }
    __syncthreads();
    return scratch[0];
}

/* x[at] to x[at + 3], and zeros from x[n] on. */
__device__ __forceinline__ float4 load_four(const float *x, int64_t at, int64_t n, bool is_word) {
    if (is_word && at + FOUR <= n)
        return *(const float4 *)(x + at);
    return make_float4(at < n ? x[at] : 0.0f, at + 1 < n ? x[at + 1] : 0.0f,
        at + 2 < n ? x[at + 2] : 0.0f, at + 3 < n ? x[at + 3] : 0.0f);
}

__device__ __forceinline__ void store_four(
    float *x, int64_t at, int64_t n, bool is_word, float4 v) {
    if (is_word && at + FOUR <= n) {
        *(float4 *)(x + at) = v;
        return;
    }
    if (at < n)
        x[at] = v.x;
    if (at + 1 < n)
        x[at + 1] = v.y;
    if (at + 2 < n)
        x[at + 2] = v.z;
    if (at + 3 < n)
        x[at + 3] = v.w;
}

/* Whether all of these addresses are aligned for words; NULL counts as aligned. */
static bool are_words(const void *a, const void *b, const void *c, const void *d) {
    return ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) % (FOUR * sizeof(float)) ==
           0;
}

/* ---- mse ---- */

#define MSE_ROWS 64

/* The arguments, passed by value so that nothing has to be uploaded. */
struct mse {
    const float *prediction, *target;
    float *loss, *d_prediction; /* d_prediction may be NULL */
    int64_t n;                  /* elements of a row */
    bool is_word;
    float factors[MSE_ROWS]; /* weight * 2 / n */
};

/* Block x is a row. */
__global__ void __launch_bounds__(THREADS) mse(const struct mse m) {
    DYNAMIC_SHARED(double, scratch);
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int64_t base = (int64_t)blockIdx.x * m.n;
    const float *prediction = m.prediction + base, *target = m.target + base;
    const float factor = m.factors[blockIdx.x];
    double sum = 0.0;
#pragma unroll 2
    for (int64_t i = FOUR * threadIdx.x; i < m.n; i += FOUR * THREADS) {
        const float4 p = load_four(prediction, i, m.n, m.is_word);
        const float4 t = load_four(target, i, m.n, m.is_word);
        const float4 off = make_float4(p.x - t.x, p.y - t.y, p.z - t.z, p.w - t.w);
        sum += (double)off.x * (double)off.x + (double)off.y * (double)off.y +
               (double)off.z * (double)off.z + (double)off.w * (double)off.w;
        if (m.d_prediction)
            store_four(m.d_prediction + base, i, m.n, m.is_word,
                make_float4(factor * off.x, factor * off.y, factor * off.z, factor * off.w));
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0)
        m.loss[blockIdx.x] = (float)(sum / (double)m.n);
}

extern "C" bool cuda_mse(const struct mse_args *args, struct error *err) {
    const int64_t rows = args->prediction->shape[0];
    struct mse m = {};
    m.n = tensor_elements(args->prediction) / rows;
    for (int64_t first = 0; first < rows; first += MSE_ROWS) {
        const int64_t here = rows - first < MSE_ROWS ? rows - first : MSE_ROWS;
        m.prediction = (const float *)args->prediction->data + first * m.n;
        m.target = (const float *)args->target->data + first * m.n;
        m.loss = (float *)args->loss->data + first;
        m.d_prediction = args->d_prediction ? (float *)args->d_prediction->data + first * m.n
                                            : NULL;
        m.is_word = m.n % FOUR == 0 && are_words(m.prediction, m.target, m.d_prediction, NULL);
        for (int64_t i = 0; i < here; i++)
            m.factors[i] = (float)((double)args->weights[first + i] * 2.0 / (double)m.n);
        if (!launch(mse, dim3((unsigned)here), THREADS, THREADS * sizeof(double), "mse", err, m))
            return false;
    }
    return true;
}

/* ---- sum_squares ---- */

#define MAX_PARTS 1024

/* parts[block] = { sum of squares, elements that are not finite } */
__global__ void __launch_bounds__(THREADS)
    sum_squares_parts(const float *x, int64_t n, bool is_word, double *parts) {
    DYNAMIC_SHARED(double, scratch);
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int64_t step = (int64_t)gridDim.x * THREADS * FOUR;
    double sum = 0.0;
    unsigned odd = 0;
#pragma unroll 4
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * FOUR; i < n; i += step) {
        const float4 v = load_four(x, i, n, is_word);
        sum += (double)v.x * (double)v.x + (double)v.y * (double)v.y + (double)v.z * (double)v.z +
               (double)v.w * (double)v.w;
        odd += !isfinite(v.x) + !isfinite(v.y) + !isfinite(v.z) + !isfinite(v.w);
    }
    sum = block_sum(sum, scratch);
    const double odds = block_sum((double)odd, scratch);
    if (threadIdx.x == 0) {
        parts[2 * blockIdx.x] = sum;
        parts[2 * blockIdx.x + 1] = odds;
    }
}

__global__ void __launch_bounds__(THREADS)
    sum_squares_end(const double *parts, int count, float *sums) {
    DYNAMIC_SHARED(double, scratch);
    griddepcontrol_wait();
    griddepcontrol_launch();
    double sum = 0.0, odd = 0.0;
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        sum += parts[2 * i];
        odd += parts[2 * i + 1];
    }
    sum = block_sum(sum, scratch);
    odd = block_sum(odd, scratch);
    if (threadIdx.x == 0) {
        sums[0] = (float)sum;
        sums[1] = (float)odd;
    }
}

extern "C" bool cuda_sum_squares(const struct sum_squares_args *args, struct error *err) {
    const float *x = (const float *)args->x->data;
    const int64_t n = tensor_elements(args->x), blocks = (n + 8 * THREADS - 1) / (8 * THREADS);
    const int parts = (int)(blocks < MAX_PARTS ? blocks : MAX_PARTS);
    double *workspace = (double *)cuda_workspace(2 * MAX_PARTS * sizeof(double));
    const size_t shared = THREADS * sizeof(double);
    return launch(sum_squares_parts, dim3((unsigned)parts), THREADS, shared, "sum_squares", err, x,
               n, are_words(x, NULL, NULL, NULL), workspace) &&
           launch(sum_squares_end, dim3(1), THREADS, shared, "sum_squares", err, workspace, parts,
               (float *)args->sums->data);
}

/* ---- adamw ---- */

struct adamw {
    float *parameter, *m, *v;
    const float *gradient;
    int64_t n;
    bool is_word;
    float gradient_scale, limit, kept; /* kept: 1 - lr weight_decay */
    float beta1_rest, beta2, beta2_rest;
    float step_size, root, eps; /* lr / (1 - beta1^step), sqrt(1 - beta2^step) */
};

__device__ __forceinline__ void adamw_one(
    const struct adamw &a, float gradient, float *parameter, float *m, float *v) {
    const float whole = gradient * a.gradient_scale;
    const float g = whole > a.limit ? a.limit : whole < -a.limit ? -a.limit : whole;
    *m = *m + (g - *m) * a.beta1_rest;
    *v = *v * a.beta2 + g * g * a.beta2_rest;
    *parameter = *parameter * a.kept - a.step_size * (*m / (sqrtf(*v) / a.root + a.eps));
}

__global__ void __launch_bounds__(THREADS) adamw(const struct adamw a) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int64_t step = (int64_t)gridDim.x * THREADS * FOUR;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * FOUR; i < a.n; i += step) {
        const float4 g = load_four(a.gradient, i, a.n, a.is_word);
        float4 p = load_four(a.parameter, i, a.n, a.is_word);
        float4 m = load_four(a.m, i, a.n, a.is_word), v = load_four(a.v, i, a.n, a.is_word);
        adamw_one(a, g.x, &p.x, &m.x, &v.x);
        adamw_one(a, g.y, &p.y, &m.y, &v.y);
        adamw_one(a, g.z, &p.z, &m.z, &v.z);
        adamw_one(a, g.w, &p.w, &m.w, &v.w);
        store_four(a.m, i, a.n, a.is_word, m);
        store_four(a.v, i, a.n, a.is_word, v);
        store_four(a.parameter, i, a.n, a.is_word, p);
    }
}

extern "C" bool cuda_adamw(const struct adamw_args *args, struct error *err) {
    struct adamw a = {};
    a.parameter = (float *)args->parameter->data;
    a.m = (float *)args->m->data;
    a.v = (float *)args->v->data;
    a.gradient = (const float *)args->gradient->data;
    a.n = tensor_elements(args->parameter);
    a.is_word = are_words(a.parameter, a.gradient, a.m, a.v);
    a.gradient_scale = (float)args->gradient_scale;
    a.limit = args->gradient_limit > 0 ? (float)args->gradient_limit : INFINITY;
    a.kept = (float)(1.0 - args->lr * args->weight_decay);
    a.beta1_rest = (float)(1.0 - args->beta1);
    a.beta2 = (float)args->beta2;
    a.beta2_rest = (float)(1.0 - args->beta2);
    a.step_size = (float)(args->lr / (1.0 - pow(args->beta1, (double)args->step)));
    a.root = (float)sqrt(1.0 - pow(args->beta2, (double)args->step));
    a.eps = (float)args->eps;
    const int64_t blocks = (a.n + FOUR * THREADS - 1) / (FOUR * THREADS);
    return launch(
        adamw, dim3((unsigned)(blocks < 65535 ? blocks : 65535)), THREADS, 0, "adamw", err, a);
}
