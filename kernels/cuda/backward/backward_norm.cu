/* The backward of group_norm and layer_norm. A share is the set of elements that have one mean: a
 * token, or one group of one row. With n = (x - mean) scale, h = gamma n + beta, dh the gradient of
 * h and g = dh
 * gamma:
 *   dx = scale (g - mean(g) - n mean(g n));  dgamma += sum of dh n;  dbeta += sum of dh.
 *
 * There are three steps, which pass results through the workspace. The first computes the values of
 * each share. The second sums the parameters' gradients within pieces of pixels, and then adds up
 * the pieces in order. The third computes dx; it comes last because dx may be dy.
 */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"

#define THREADS 256
#define COLUMNS 32 /* channels per block that sums parameters */
#define LINES (THREADS / COLUMNS)
#define PIECE 512 /* pixels per block that sums parameters */

/* The values of a share. Its mean is shift + mean; g and gn are the means of g and of g n. */
struct share {
    float shift, mean, scale, g, gn;
};

/* The arguments. x is [rows][pixels][groups][width]. */
struct norm {
    const void *dy, *x;
    const float *gamma, *beta; /* beta is read only with silu */
    void *dx;
    float *dgamma, *dbeta;
    struct share *shares; /* [rows][groups] */
    float *parts;         /* [pieces][2][channels] */
    int64_t rows, pixels;
    int channels, groups, width;
    int pieces;
    float eps;
    bool silu, accumulate;
};

/* Returns dh of one element; *normal is its n. */
template <class T>
__device__ __forceinline__ float before_activation(
    const struct norm &a, int64_t at, int channel, const struct share &s, float *normal) {
    const float dy = to_float(((const T *)a.dy)[at]);
    *normal = ((to_float(((const T *)a.x)[at]) - s.shift) - s.mean) * s.scale;
    if (!a.silu)
        return dy;
    return dy * activation_slope(fmaf(*normal, a.gamma[channel], a.beta[channel]), ACTIVATION_SILU);
}

/* Returns g of one element, rounded. For a share of one element, g - mean(g) must be exactly 0. It
 * would not be 0 if the compiler fused the product g into that subtraction without rounding it. */
template <class T>
__device__ __forceinline__ float before_norm(
    const struct norm &a, int64_t at, int channel, const struct share &s, float *normal) {
    const float dh = before_activation<T>(a, at, channel, s, normal);
    return __fmul_rn(a.gamma[channel], dh);
}

/* Computes the values of the shares. Block x is a share. */
template <class T> __global__ void __launch_bounds__(THREADS) norm_shares(const struct norm a) {
    DYNAMIC_SHARED(float, scratch); /* [32] */
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int first = (int)(blockIdx.x % a.groups) * a.width;
    const int64_t all = a.pixels * a.width, stride = blockDim.x;
    const int64_t base = (int64_t)(blockIdx.x / a.groups) * a.pixels * a.channels + first;
    const T *x = (const T *)a.x + base;
    struct share s = { to_float(x[0]), 0.0f, 0.0f, 0.0f, 0.0f };
    float sum = 0.0f, squares = 0.0f, g = 0.0f, gn = 0.0f;
    for (int64_t i = threadIdx.x; i < all; i += stride)
        sum += to_float(x[i / a.width * a.channels + i % a.width]) - s.shift;
    s.mean = block_sum(sum, scratch) / (float)all;
    for (int64_t i = threadIdx.x; i < all; i += stride) {
        const float d = (to_float(x[i / a.width * a.channels + i % a.width]) - s.shift) - s.mean;
        squares = fmaf(d, d, squares);
    }
    s.scale = 1.0f / sqrtf(block_sum(squares, scratch) / (float)all + a.eps);
    for (int64_t i = threadIdx.x; i < all; i += stride) {
        const int channel = first + (int)(i % a.width);
        float normal;
        const float d = before_norm<T>(
            a, base + i / a.width * a.channels + i % a.width, channel, s, &normal);
        g += d;
        gn = fmaf(d, normal, gn);
    }
    s.g = block_sum(g, scratch) / (float)all;
    s.gn = block_sum(gn, scratch) / (float)all;
    if (threadIdx.x == 0)
        a.shares[blockIdx.x] = s;
}

/* Sums the parameters' gradients in pieces. Grid: x groups of COLUMNS channels, y pieces of the
 * pixels of all rows. A block takes LINES pixels at a time. */
template <class T> __global__ void __launch_bounds__(THREADS) norm_parts(const struct norm a) {
    DYNAMIC_SHARED(float, sums); /* [2][LINES][COLUMNS] */
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int column = (int)threadIdx.x % COLUMNS, line = (int)threadIdx.x / COLUMNS;
    const int channel = (int)blockIdx.x * COLUMNS + column;
    const int64_t first = (int64_t)blockIdx.y * PIECE, all = a.rows * a.pixels;
    float gamma = 0.0f, beta = 0.0f;
    for (int64_t i = first + line; channel < a.channels && i < first + PIECE && i < all;
         i += LINES) {
        const struct share s = a.shares[i / a.pixels * a.groups + channel / a.width];
        float normal;
        const float dh = before_activation<T>(a, i * a.channels + channel, channel, s, &normal);
        gamma = fmaf(dh, normal, gamma);
        beta += dh;
    }
    sums[threadIdx.x] = gamma;
    sums[THREADS + threadIdx.x] = beta;
    __syncthreads();
    if (line != 0 || channel >= a.channels)
        return;
    for (int i = 1; i < LINES; i++) {
        gamma += sums[i * COLUMNS + column];
        beta += sums[THREADS + i * COLUMNS + column];
    }
    float *part = a.parts + (int64_t)blockIdx.y * 2 * a.channels;
    part[channel] = gamma;
    part[a.channels + channel] = beta;
}

/* Adds up the pieces, one channel per thread. */
__global__ void __launch_bounds__(THREADS) norm_parameters(const struct norm a) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int channel = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (channel >= a.channels)
        return;
    float gamma = 0.0f, beta = 0.0f;
    for (int i = 0; i < a.pieces; i++) {
        gamma += a.parts[(int64_t)i * 2 * a.channels + channel];
        beta += a.parts[(int64_t)i * 2 * a.channels + a.channels + channel];
    }
    if (a.dgamma)
        a.dgamma[channel] += gamma;
    if (a.dbeta)
        a.dbeta[channel] += beta;
}

/* Computes dx, one element per thread at a time. */
template <class T> __global__ void __launch_bounds__(THREADS) norm_input(const struct norm a) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int64_t all = a.rows * a.pixels * a.channels;
    T *dx = (T *)a.dx;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < all;
         i += (int64_t)gridDim.x * THREADS) {
        const int channel = (int)(i % a.channels);
        const struct share s = a.shares[i / a.channels / a.pixels * a.groups + channel / a.width];
        float normal;
        const float g = before_norm<T>(a, i, channel, s, &normal);
        const float d = s.scale * (g - s.g - normal * s.gn);
        dx[i] = from_float<T>(a.accumulate ? to_float(dx[i]) + d : d);
    }
}

template <class T> static bool run(struct norm *a, const char *name, struct error *err) {
    const int64_t all = a->rows * a->pixels, share = a->pixels * a->width;
    const size_t share_bytes = (size_t)(a->rows * a->groups) * sizeof(*a->shares);
    a->pieces = (int)((all + PIECE - 1) / PIECE);
    const size_t part_bytes = (size_t)a->pieces * 2 * (size_t)a->channels * sizeof(float);
    char *workspace = (char *)cuda_workspace(share_bytes + part_bytes);
    if (!workspace)
        return error_set(err, ERROR_UNSUPPORTED, "%lld rows of %lld pixels are too many at once",
            (long long)a->rows, (long long)a->pixels);
    a->shares = (struct share *)workspace;
    a->parts = (float *)(workspace + share_bytes);
    const int threads = share < THREADS ? (int)((share + 31) / 32 * 32) : THREADS;
    if (!launch(norm_shares<T>, dim3((unsigned)(a->rows * a->groups)), threads, 32 * sizeof(float),
            name, err, *a))
        return false;
    if ((a->dgamma || a->dbeta) &&
        (!launch(norm_parts<T>,
             dim3((unsigned)((a->channels + COLUMNS - 1) / COLUMNS), (unsigned)a->pieces), THREADS,
             2 * THREADS * sizeof(float), name, err, *a) ||
            !launch(norm_parameters, dim3((unsigned)((a->channels + THREADS - 1) / THREADS)),
                THREADS, 0, name, err, *a)))
        return false;
    const int64_t blocks = (all * a->channels + THREADS - 1) / THREADS;
    return !a->dx || launch(norm_input<T>, dim3((unsigned)(blocks < 65535 ? blocks : 65535)),
                         THREADS, 0, name, err, *a);
}

extern "C" bool cuda_group_norm_backward(
    const struct group_norm_backward_args *args, struct error *err) {
    const int64_t *s = args->x->shape;
    struct norm a = {};
    a.dy = args->dy->data;
    a.x = args->x->data;
    a.gamma = (const float *)args->gamma->data;
    a.beta = (const float *)args->beta->data;
    a.dx = args->dx ? args->dx->data : NULL;
    a.dgamma = args->dgamma ? (float *)args->dgamma->data : NULL;
    a.dbeta = args->dbeta ? (float *)args->dbeta->data : NULL;
    a.rows = s[0];
    a.pixels = s[1] * s[2];
    a.channels = (int)s[3];
    a.groups = args->groups;
    a.width = a.channels / a.groups;
    a.eps = args->eps;
    a.silu = args->silu;
    a.accumulate = args->accumulate;
    return CALL_FOR_DTYPE(args->x->dtype, run, &a, "group_norm_backward", err);
}

/* Computed as a group norm in which each token is a row of one pixel and one group. */
extern "C" bool cuda_layer_norm_backward(
    const struct layer_norm_backward_args *args, struct error *err) {
    struct norm a = {};
    a.dy = args->dy->data;
    a.x = args->x->data;
    a.gamma = (const float *)args->gamma->data;
    a.dx = args->dx ? args->dx->data : NULL;
    a.dgamma = args->dgamma ? (float *)args->dgamma->data : NULL;
    a.dbeta = args->dbeta ? (float *)args->dbeta->data : NULL;
    a.channels = a.width = (int)args->gamma->shape[0];
    a.rows = tensor_elements(args->x) / a.channels;
    a.pixels = a.groups = 1;
    a.eps = args->eps;
    a.accumulate = args->accumulate;
    return CALL_FOR_DTYPE(args->x->dtype, run, &a, "layer_norm_backward", err);
}
