/* The backward of linear and conv2d: plain products in f32 on tiles of shared memory. Each product
 * defines element (i, l) of its left and (l, j) of its right factor.
 *
 *   dx[pixel][c_in] (+)= sum over (tap, c_out) of dy[a pixel that reads this one by the tap][c_out]
 *                        W[c_out][tap][c_in]
 *   dw[c_out][tap][c_in] += sum over the output pixels of all rows of dy[c_out] x[source][c_in]
 *
 * A linear layer is a 1x1 convolution of one line of pixels. Products are summed in groups of STEP,
 * then the groups' sums are added. This order does not depend on the other rows.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/ptx.cuh"

#define THREADS 256
#define TILE 64 /* TILE x TILE outputs per block, EACH x EACH per thread */
#define EACH 4
#define STEP 16
#define COLUMNS 32 /* channels per block of column_sums */
#define LINES (THREADS / COLUMNS)

struct layer {
    const void *dy, *x, *weight; /* weight: [n][taps][c_in], GEGLU's value and gate alternate */
    void *dx;
    float *dw;
    int64_t pixels_in, pixels_out; /* of all rows */
    int h, w, h_out, w_out, c_in, c_out;
    int lines, taps; /* taps: lines * lines */
    int stride, before, scale;
    bool geglu, accumulate;
};

/* Returns the pixel that tap `tap` of output `out` reads in a line of `size` pixels (kernels.h's
 * conv_kind), or -1 for zeros. */
__device__ __forceinline__ int source(
    const struct layer &a, int out, int tap, int size, int size_out) {
    const int at = out * a.stride + tap - a.before, limit = a.scale == 2 ? size_out : size;
    return at < 0 || at >= limit ? -1 : at / a.scale;
}

/* Returns the first output whose tap `tap` reads pixel `in`. With scale 2, the output after it may
 * read the pixel too. */
__device__ __forceinline__ int first_reader(const struct layer &a, int in, int tap) {
    const int at = in * a.scale - tap + a.before;
    return a.stride == 2 ? at >> 1 : at;
}

/* The product for dx. */
template <class T> struct input_gradient {
    static __device__ __forceinline__ int64_t height(const struct layer &a) {
        return a.pixels_in;
    }
    static __device__ __forceinline__ int64_t width(const struct layer &a) {
        return a.c_in;
    }
    static __device__ __forceinline__ int64_t depth(const struct layer &a) {
        return (int64_t)a.taps * a.c_out;
    }
    static __device__ __forceinline__ float left(const struct layer &a, int64_t pixel, int64_t l) {
        const T *dy = (const T *)a.dy;
        if (a.taps == 1)
            return to_float(dy[pixel * a.c_out + l]);
        const int tap = (int)(l / a.c_out), c = (int)(l % a.c_out);
        const int64_t row = pixel / (a.h * a.w);
        const int i = (int)(pixel / a.w % a.h), j = (int)(pixel % a.w);
        const int oi = first_reader(a, i, tap / a.lines), oj = first_reader(a, j, tap % a.lines);
        float sum = 0.0f;
        for (int y = oi; y < oi + a.scale; y++) {
            if (y < 0 || y >= a.h_out || source(a, y, tap / a.lines, a.h, a.h_out) != i)
                continue;
            for (int x = oj; x < oj + a.scale; x++)
                if (x >= 0 && x < a.w_out && source(a, x, tap % a.lines, a.w, a.w_out) == j)
                    sum += to_float(dy[((row * a.h_out + y) * a.w_out + x) * a.c_out + c]);
        }
        return sum;
    }
    static __device__ __forceinline__ float right(const struct layer &a, int64_t l, int64_t j) {
        const int tap = (int)(l / a.c_out), c = (int)(l % a.c_out), half = a.c_out / 2;
        const int n = !a.geglu ? c : c < half ? 2 * c : 2 * (c - half) + 1;
        return to_float(((const T *)a.weight)[((int64_t)n * a.taps + tap) * a.c_in + j]);
    }
    static __device__ __forceinline__ void put(
        const struct layer &a, int64_t i, int64_t j, float sum) {
        T *to = (T *)a.dx + i * a.c_in + j;
        *to = from_float<T>(a.accumulate ? to_float(*to) + sum : sum);
    }
};

template <class T> struct weight_gradient {
    static __device__ __forceinline__ int64_t height(const struct layer &a) {
        return a.c_out;
    }
    static __device__ __forceinline__ int64_t width(const struct layer &a) {
        return (int64_t)a.taps * a.c_in;
    }
    static __device__ __forceinline__ int64_t depth(const struct layer &a) {
        return a.pixels_out;
    }
    static __device__ __forceinline__ float left(const struct layer &a, int64_t i, int64_t pixel) {
        return to_float(((const T *)a.dy)[pixel * a.c_out + i]);
    }
    static __device__ __forceinline__ float right(const struct layer &a, int64_t pixel, int64_t j) {
        const T *x = (const T *)a.x;
        if (a.taps == 1)
            return to_float(x[pixel * a.c_in + j]);
        const int tap = (int)(j / a.c_in), c = (int)(j % a.c_in);
        const int64_t row = pixel / (a.h_out * a.w_out);
        const int si = source(a, (int)(pixel / a.w_out % a.h_out), tap / a.lines, a.h, a.h_out);
        const int sj = source(a, (int)(pixel % a.w_out), tap % a.lines, a.w, a.w_out);
        return si < 0 || sj < 0 ? 0.0f : to_float(x[((row * a.h + si) * a.w + sj) * a.c_in + c]);
    }
    static __device__ __forceinline__ void put(
        const struct layer &a, int64_t i, int64_t j, float sum) {
        a.dw[i * a.taps * a.c_in + j] += sum;
    }
};

/* Computes a product. Block x counts tiles of its height, block y tiles of its width. A thread has
 * every 16th line and column of a tile. */
template <class P> __global__ void __launch_bounds__(THREADS, 2) product(const struct layer a) {
    DYNAMIC_SHARED(float, shared); /* [STEP][TILE + 1] of the left factor, then of the right */
    float *const left = shared, *const right = shared + STEP * (TILE + 1);
    const int64_t height = P::height(a), width = P::width(a), depth = P::depth(a);
    const int64_t i0 = (int64_t)blockIdx.x * TILE, j0 = (int64_t)blockIdx.y * TILE;
    const int line = (int)threadIdx.x / 16, column = (int)threadIdx.x % 16;
    float sums[EACH][EACH] = {};
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int64_t l0 = 0; l0 < depth; l0 += STEP) {
        for (int e = (int)threadIdx.x; e < STEP * TILE; e += THREADS) {
            /* Adjacent threads read adjacent memory. In the left factor of dx, adjacent memory runs
             * along l. */
            const int l = e % STEP, i = e / STEP, m = e / TILE, j = e % TILE;
            left[l * (TILE + 1) + i] = i0 + i < height && l0 + l < depth
                                           ? P::left(a, i0 + i, l0 + l)
                                           : 0.0f;
            right[m * (TILE + 1) + j] = j0 + j < width && l0 + m < depth
                                            ? P::right(a, l0 + m, j0 + j)
                                            : 0.0f;
        }
        __syncthreads();
        float part[EACH][EACH] = {};
        for (int l = 0; l < STEP; l++) {
            float u[EACH], v[EACH];
#pragma unroll
            for (int k = 0; k < EACH; k++) {
                u[k] = left[l * (TILE + 1) + line + 16 * k];
                v[k] = right[l * (TILE + 1) + column + 16 * k];
            }
#pragma unroll
            for (int p = 0; p < EACH; p++)
#pragma unroll
                for (int q = 0; q < EACH; q++)
                    part[p][q] = fmaf(u[p], v[q], part[p][q]);
        }
#pragma unroll
        for (int p = 0; p < EACH; p++)
#pragma unroll
            for (int q = 0; q < EACH; q++)
                sums[p][q] += part[p][q];
        __syncthreads();
    }
#pragma unroll
    for (int p = 0; p < EACH; p++)
#pragma unroll
        for (int q = 0; q < EACH; q++) {
            const int64_t i = i0 + line + 16 * p, j = j0 + column + 16 * q;
            if (i < height && j < width)
                P::put(a, i, j, sums[p][q]);
        }
}

/* What column_sums does with the contents of its output: replaces them, adds the sum before it is
 * rounded (an activation's gradient), or adds the rounded sum (a parameter's, see backward.h). */
enum adds { REPLACES, ADDS_EXACTLY, ADDS_ROUNDED };

/* out[row * out_step + c] (+)= sum over the row's pixels of dy. Block x has COLUMNS channels; block
 * y is a row. */
template <class T, class OUT>
__global__ void __launch_bounds__(THREADS)
    column_sums(const T *dy, int64_t pixels, int c, OUT *out, int64_t out_step, enum adds adds) {
    DYNAMIC_SHARED(double, lines); /* [LINES][COLUMNS] */
    const int channel = (int)blockIdx.x * COLUMNS + (int)threadIdx.x % COLUMNS;
    griddepcontrol_wait();
    griddepcontrol_launch();
    double sum = 0.0;
    for (int64_t i = threadIdx.x / COLUMNS; channel < c && i < pixels; i += LINES)
        sum += (double)to_float(dy[((int64_t)blockIdx.y * pixels + i) * c + channel]);
    lines[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= COLUMNS || channel >= c)
        return;
    for (int i = 1; i < LINES; i++)
        sum += lines[i * COLUMNS + threadIdx.x];
    OUT *to = out + blockIdx.y * out_step + channel;
    if (adds == ADDS_ROUNDED)
        *to = from_float<OUT>(to_float(*to) + (float)sum);
    else
        *to = from_float<OUT>((float)(adds ? (double)to_float(*to) + sum : sum));
}

template <class T, class OUT>
static bool sum_columns(const struct tensor *dy, int64_t rows, OUT *out, int64_t out_step,
    enum adds adds, const char *name, struct error *err) {
    const int c = (int)dy->shape[dy->rank - 1];
    return launch(column_sums<T, OUT>,
        dim3((unsigned)((c + COLUMNS - 1) / COLUMNS), (unsigned)rows), THREADS,
        THREADS * sizeof(double), name, err, (const T *)dy->data, tensor_elements(dy) / rows / c, c,
        out, out_step, adds);
}

template <class P>
static bool multiply(
    const struct layer *a, int64_t height, int64_t width, const char *name, struct error *err) {
    const dim3 grid((unsigned)((height + TILE - 1) / TILE), (unsigned)((width + TILE - 1) / TILE));
    return launch(product<P>, grid, THREADS, 2 * STEP * (TILE + 1) * sizeof(float), name, err, *a);
}

template <class T>
static bool run(const struct layer *a, const struct tensor *dy, const struct tensor *dbias,
    const char *name, struct error *err) {
    return (!a->dx || multiply<input_gradient<T>>(a, a->pixels_in, a->c_in, name, err)) &&
           (!a->dw ||
               multiply<weight_gradient<T>>(a, a->c_out, (int64_t)a->taps * a->c_in, name, err)) &&
           (!dbias ||
               sum_columns<T, float>(dy, 1, (float *)dbias->data, 0, ADDS_ROUNDED, name, err));
}

static bool is_of(const struct tensor *dy, const struct packed *weight, struct error *err) {
    const enum dtype dtype = ((const struct cuda_packed *)weight)->dtype;
    return dy->dtype == dtype ||
           error_set(err, ERROR_INTERNAL, "dy is %s, this weight multiplies %s",
               dtype_name(dy->dtype), dtype_name(dtype));
}

static struct layer layer_of(const struct packed *weight, const struct tensor *dy,
    const struct tensor *x, const struct tensor *dx, const struct tensor *dw) {
    struct layer a = {};
    a.dy = dy->data;
    a.x = x ? x->data : NULL;
    a.dx = dx ? dx->data : NULL;
    a.dw = dw ? (float *)dw->data : NULL;
    a.weight = ((const struct cuda_packed *)weight)->weight;
    a.c_in = (int)weight->k;
    a.c_out = (int)weight->n;
    a.pixels_in = a.pixels_out = tensor_elements(dy) / weight->n;
    a.lines = a.taps = a.stride = a.scale = 1;
    a.geglu = weight->geglu;
    return a;
}

extern "C" bool cuda_linear_backward(const struct linear_backward_args *args, struct error *err) {
    struct layer a = layer_of(args->weight, args->dy, args->x, args->dx, args->dw);
    a.accumulate = args->accumulate;
    return is_of(args->dy, args->weight, err) &&
           CALL_FOR_DTYPE(args->dy->dtype, run, &a, args->dy, args->dbias, "linear_backward", err);
}

template <class T, class OUT>
static bool row_gradient_as(const struct conv2d_backward_args *args, struct error *err) {
    const struct tensor *out = args->d_row_add;
    return sum_columns<T, OUT>(args->dy, args->dy->shape[0],
        (OUT *)out->data + args->row_add_offset, out->shape[1],
        args->accumulate_row_add ? ADDS_EXACTLY : REPLACES, "conv2d_backward", err);
}

template <class T>
static bool row_gradient(const struct conv2d_backward_args *args, struct error *err) {
    return args->d_row_add->dtype == DTYPE_F32 ? row_gradient_as<T, float>(args, err)
                                               : row_gradient_as<T, T>(args, err);
}

extern "C" bool cuda_conv2d_backward(const struct conv2d_backward_args *args, struct error *err) {
    const enum conv_kind kind = args->weight->kind;
    const struct tensor *in = args->dx ? args->dx : args->x;
    struct layer a = layer_of(args->weight, args->dy, args->x, args->dx, args->dw);
    a.accumulate = args->accumulate;
    a.h_out = (int)args->dy->shape[1];
    a.w_out = (int)args->dy->shape[2];
    if (in) {
        a.h = (int)in->shape[1];
        a.w = (int)in->shape[2];
        a.pixels_in = in->shape[0] * a.h * a.w;
    }
    if (kind != CONV_1X1) {
        a.lines = 3;
        a.taps = 9;
        a.before = kind == CONV_3X3_DOWN_RIGHT ? 0 : 1;
        a.stride = kind == CONV_3X3_DOWN || kind == CONV_3X3_DOWN_RIGHT ? 2 : 1;
        a.scale = kind == CONV_3X3_UP ? 2 : 1;
    }
    return is_of(args->dy, args->weight, err) &&
           CALL_FOR_DTYPE(
               args->dy->dtype, run, &a, args->dy, args->dbias, "conv2d_backward", err) &&
           (!args->d_row_add || CALL_FOR_DTYPE(args->dy->dtype, row_gradient, args, err));
}
