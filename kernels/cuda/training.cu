/* mse, sum_squares and adamw. Sums are f64, in an order that depends on the shapes alone. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/ptx.cuh"

#include <math.h>

#define THREADS 256

/* The sum over the block, in every thread's hands. `scratch` [THREADS]. */
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

/* ---- mse ---- */

#define MSE_ROWS 64

/* By value: nothing has to be uploaded. */
struct mse {
    const float *prediction, *target;
    float *loss, *d_prediction; /* d_prediction may be NULL */
    int64_t n;                  /* elements of a row */
    float factors[MSE_ROWS];    /* weight * 2 / n */
};

/* Block x is a row. */
__global__ void __launch_bounds__(THREADS) mse(const struct mse m) {
    DYNAMIC_SHARED(double, scratch);
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int64_t base = (int64_t)blockIdx.x * m.n;
    const float factor = m.factors[blockIdx.x];
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < m.n; i += THREADS) {
        const float off = m.prediction[base + i] - m.target[base + i];
        sum += (double)off * (double)off;
        if (m.d_prediction)
            m.d_prediction[base + i] = factor * off;
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
    sum_squares_parts(const float *x, int64_t n, double *parts) {
    DYNAMIC_SHARED(double, scratch);
    griddepcontrol_wait();
    griddepcontrol_launch();
    double sum = 0.0, odd = 0.0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        sum += (double)x[i] * (double)x[i];
        odd += isfinite(x[i]) ? 0.0 : 1.0;
    }
    sum = block_sum(sum, scratch);
    odd = block_sum(odd, scratch);
    if (threadIdx.x == 0) {
        parts[2 * blockIdx.x] = sum;
        parts[2 * blockIdx.x + 1] = odd;
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
    const int64_t n = tensor_elements(args->x), blocks = (n + 8 * THREADS - 1) / (8 * THREADS);
    const int parts = (int)(blocks < MAX_PARTS ? blocks : MAX_PARTS);
    double *workspace = (double *)cuda_workspace(2 * MAX_PARTS * sizeof(double));
    const size_t shared = THREADS * sizeof(double);
    return launch(sum_squares_parts, dim3((unsigned)parts), THREADS, shared, "sum_squares", err,
               (const float *)args->x->data, n, workspace) &&
           launch(sum_squares_end, dim3(1), THREADS, shared, "sum_squares", err, workspace, parts,
               (float *)args->sums->data);
}

/* ---- adamw ---- */

struct adamw {
    float *parameter, *m, *v;
    const float *gradient;
    int64_t n;
    float gradient_scale, kept; /* kept: 1 - lr weight_decay */
    float beta1_rest, beta2, beta2_rest;
    float step_size, root, eps; /* lr / (1 - beta1^step), sqrt(1 - beta2^step) */
};

__global__ void __launch_bounds__(THREADS) adamw(const struct adamw a) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.n;
         i += (int64_t)gridDim.x * THREADS) {
        const float g = a.gradient[i] * a.gradient_scale;
        const float m = a.m[i] + (g - a.m[i]) * a.beta1_rest;
        const float v = a.v[i] * a.beta2 + g * g * a.beta2_rest;
        a.m[i] = m;
        a.v[i] = v;
        a.parameter[i] = a.parameter[i] * a.kept - a.step_size * (m / (sqrtf(v) / a.root + a.eps));
    }
}

extern "C" bool cuda_adamw(const struct adamw_args *args, struct error *err) {
    struct adamw a = {};
    a.parameter = (float *)args->parameter->data;
    a.m = (float *)args->m->data;
    a.v = (float *)args->v->data;
    a.gradient = (const float *)args->gradient->data;
    a.n = tensor_elements(args->parameter);
    a.gradient_scale = (float)args->gradient_scale;
    a.kept = (float)(1.0 - args->lr * args->weight_decay);
    a.beta1_rest = (float)(1.0 - args->beta1);
    a.beta2 = (float)args->beta2;
    a.beta2_rest = (float)(1.0 - args->beta2);
    a.step_size = (float)(args->lr / (1.0 - pow(args->beta1, (double)args->step)));
    a.root = (float)sqrt(1.0 - pow(args->beta2, (double)args->step));
    a.eps = (float)args->eps;
    const int64_t blocks = (a.n + THREADS - 1) / THREADS;
    return launch(
        adamw, dim3((unsigned)(blocks < 65535 ? blocks : 65535)), THREADS, 0, "adamw", err, a);
}
