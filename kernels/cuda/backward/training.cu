/* mse, square_pieces and the optimizers. Sums are f64, in an order that depends on the shapes
 * alone.
 *
 * In mse, square_pieces and adamw a thread takes FOUR adjacent floats, as one word of 16 bytes if
 * all arrays are aligned for that.
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

/* ---- square_pieces ---- */

/* Block x is a piece. */
__global__ void __launch_bounds__(THREADS)
    square_pieces(const float *x, int64_t n, bool is_word, double *pieces) {
    DYNAMIC_SHARED(double, scratch);
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int64_t first = (int64_t)blockIdx.x * SQUARE_PIECE;
    const int64_t end = first + SQUARE_PIECE < n ? first + SQUARE_PIECE : n;
    double sum = 0.0;
    unsigned odd = 0;
#pragma unroll 4
    for (int64_t i = first + FOUR * threadIdx.x; i < end; i += FOUR * THREADS) {
        const float4 v = load_four(x, i, end, is_word);
        sum += (double)v.x * (double)v.x + (double)v.y * (double)v.y + (double)v.z * (double)v.z +
               (double)v.w * (double)v.w;
        odd += !isfinite(v.x) + !isfinite(v.y) + !isfinite(v.z) + !isfinite(v.w);
    }
    sum = block_sum(sum, scratch);
    const double odds = block_sum((double)odd, scratch);
    if (threadIdx.x == 0) {
        pieces[2 * (int64_t)blockIdx.x] = sum;
        pieces[2 * (int64_t)blockIdx.x + 1] = odds;
    }
}

extern "C" bool cuda_square_pieces(const struct square_pieces_args *args, struct error *err) {
    const float *x = (const float *)args->x->data;
    const int64_t n = tensor_elements(args->x);
    return launch(square_pieces, dim3((unsigned)square_pieces_count(n)), THREADS,
        THREADS * sizeof(double), "square_pieces", err, x, n, are_words(x, NULL, NULL, NULL),
        (double *)args->pieces->data);
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

/* The unscaled gradient, clamped; NaN stays. */
__device__ __forceinline__ float scaled(float gradient, float scale, float limit) {
    const float g = gradient * scale;
    return g > limit ? limit : g < -limit ? -limit : g;
}

static float limit_of(double gradient_limit) {
    return gradient_limit > 0 ? (float)gradient_limit : INFINITY;
}

/* The blocks of a kernel in which each thread takes one element after another. */
static dim3 blocks_for(int64_t n) {
    const int64_t blocks = (n + THREADS - 1) / THREADS;
    return dim3((unsigned)(blocks < 65535 ? blocks : 65535));
}

__device__ __forceinline__ void adamw_one(
    const struct adamw &a, float gradient, float *parameter, float *m, float *v) {
    const float g = scaled(gradient, a.gradient_scale, a.limit);
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
    a.limit = limit_of(args->gradient_limit);
    a.kept = (float)(1.0 - args->lr * args->weight_decay);
    a.beta1_rest = (float)(1.0 - args->beta1);
    a.beta2 = (float)args->beta2;
    a.beta2_rest = (float)(1.0 - args->beta2);
    a.step_size = (float)(args->lr / (1.0 - pow(args->beta1, (double)args->step)));
    a.root = (float)sqrt(1.0 - pow(args->beta2, (double)args->step));
    a.eps = (float)args->eps;
    return launch(adamw, blocks_for((a.n + FOUR - 1) / FOUR), THREADS, 0, "adamw", err, a);
}

/* The first element of this thread, and the distance to its next one. */
#define FIRST_ELEMENT ((int64_t)blockIdx.x * THREADS + threadIdx.x)
#define NEXT_ELEMENT ((int64_t)gridDim.x * THREADS)

/* ---- lion ---- */

struct lion {
    float *parameter, *m;
    const float *gradient;
    int64_t n;
    float gradient_scale, limit, kept; /* kept: 1 - lr weight_decay */
    float beta1, beta1_rest, beta2, beta2_rest, lr;
};

__global__ void __launch_bounds__(THREADS) lion(const struct lion a) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int64_t i = FIRST_ELEMENT; i < a.n; i += NEXT_ELEMENT) {
        const float g = scaled(a.gradient[i], a.gradient_scale, a.limit), m = a.m[i];
        const float way = m * a.beta1 + g * a.beta1_rest;
        a.parameter[i] = a.parameter[i] * a.kept - (way > 0.0f ? a.lr : way < 0.0f ? -a.lr : 0.0f);
        a.m[i] = m * a.beta2 + g * a.beta2_rest;
    }
}

extern "C" bool cuda_lion(const struct lion_args *args, struct error *err) {
    struct lion a = {};
    a.parameter = (float *)args->parameter->data;
    a.m = (float *)args->m->data;
    a.gradient = (const float *)args->gradient->data;
    a.n = tensor_elements(args->parameter);
    a.gradient_scale = (float)args->gradient_scale;
    a.limit = limit_of(args->gradient_limit);
    a.kept = (float)(1.0 - args->lr * args->weight_decay);
    a.beta1 = (float)args->beta1;
    a.beta1_rest = (float)(1.0 - args->beta1);
    a.beta2 = (float)args->beta2;
    a.beta2_rest = (float)(1.0 - args->beta2);
    a.lr = (float)args->lr;
    return launch(lion, blocks_for(a.n), THREADS, 0, "lion", err, a);
}

/* ---- prodigy_sums and prodigy ---- */

#define MAX_PARTS 1024

struct prodigy_sums {
    const float *parameter, *start, *gradient;
    float *m, *v, *s;
    int64_t n;
    float gradient_scale, limit, decay;
    float beta1, to_m, beta2, to_v, beta3, to_s;
    double *parts; /* [blocks][2] */
};

__global__ void __launch_bounds__(THREADS) prodigy_sums_parts(const struct prodigy_sums a) {
    DYNAMIC_SHARED(double, scratch);
    griddepcontrol_wait();
    griddepcontrol_launch();
    double way = 0.0, size = 0.0;
    for (int64_t i = FIRST_ELEMENT; i < a.n; i += NEXT_ELEMENT) {
        const float p = a.parameter[i];
        const float g = scaled(a.gradient[i], a.gradient_scale, a.limit) + a.decay * p;
        const float s = a.s[i] * a.beta3 + g * a.to_s;
        way += (double)g * (double)(a.start[i] - p);
        size += (double)fabsf(s);
        a.m[i] = a.m[i] * a.beta1 + g * a.to_m;
        a.v[i] = a.v[i] * a.beta2 + g * g * a.to_v;
        a.s[i] = s;
    }
    way = block_sum(way, scratch);
    size = block_sum(size, scratch);
    if (threadIdx.x == 0) {
        a.parts[2 * blockIdx.x] = way;
        a.parts[2 * blockIdx.x + 1] = size;
    }
}

/* sums += the sums of the parts; one block. */
__global__ void __launch_bounds__(THREADS) add_parts(const double *parts, int count, float *sums) {
    DYNAMIC_SHARED(double, scratch);
    griddepcontrol_wait();
    griddepcontrol_launch();
    double first = 0.0, second = 0.0;
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        first += parts[2 * i];
        second += parts[2 * i + 1];
    }
    first = block_sum(first, scratch);
    second = block_sum(second, scratch);
    if (threadIdx.x == 0) {
        sums[0] += (float)first;
        sums[1] += (float)second;
    }
}

extern "C" bool cuda_prodigy_sums(const struct prodigy_sums_args *args, struct error *err) {
    struct prodigy_sums a = {};
    a.parameter = (const float *)args->parameter->data;
    a.start = (const float *)args->start->data;
    a.gradient = (const float *)args->gradient->data;
    a.m = (float *)args->m->data;
    a.v = (float *)args->v->data;
    a.s = (float *)args->s->data;
    a.n = tensor_elements(args->parameter);
    a.gradient_scale = (float)args->gradient_scale;
    a.limit = limit_of(args->gradient_limit);
    a.decay = (float)args->decay;
    a.beta1 = (float)args->beta1;
    a.to_m = (float)(args->d * (1.0 - args->beta1));
    a.beta2 = (float)args->beta2;
    a.to_v = (float)(args->d * args->d * (1.0 - args->beta2));
    a.beta3 = (float)args->beta3;
    a.to_s = (float)args->s_rate;
    a.parts = (double *)cuda_workspace(2 * MAX_PARTS * sizeof(double));
    const int64_t blocks = (a.n + THREADS - 1) / THREADS;
    const int parts = (int)(blocks < MAX_PARTS ? blocks : MAX_PARTS);
    const size_t shared = THREADS * sizeof(double);
    return launch(prodigy_sums_parts, dim3((unsigned)parts), THREADS, shared, "prodigy_sums", err,
               a) &&
           launch(add_parts, dim3(1), THREADS, shared, "prodigy_sums", err, a.parts, parts,
               (float *)args->sums->data);
}

struct prodigy {
    float *parameter;
    const float *m, *v;
    int64_t n;
    float rate, eps, kept; /* kept: 1 - rate weight_decay */
};

__global__ void __launch_bounds__(THREADS) prodigy(const struct prodigy a) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int64_t i = FIRST_ELEMENT; i < a.n; i += NEXT_ELEMENT)
        a.parameter[i] = a.parameter[i] * a.kept - a.rate * (a.m[i] / (sqrtf(a.v[i]) + a.eps));
}

extern "C" bool cuda_prodigy(const struct prodigy_args *args, struct error *err) {
    struct prodigy a = {};
    a.parameter = (float *)args->parameter->data;
    a.m = (const float *)args->m->data;
    a.v = (const float *)args->v->data;
    a.n = tensor_elements(args->parameter);
    a.rate = (float)args->rate;
    a.eps = (float)args->eps;
    a.kept = (float)(1.0 - args->rate * args->weight_decay);
    return launch(prodigy, blocks_for(a.n), THREADS, 0, "prodigy", err, a);
}

/* ---- adafactor ---- */

struct adafactor {
    float *parameter, *rows, *cols;
    const float *gradient;
    struct factored_shape shape;
    int64_t matrices, row_count, col_count, floats; /* counts: of one matrix */
    float gradient_scale, limit, beta2, beta2_rest;
    float lr, clip_threshold, weight_decay;
    bool scale_parameter;
    double *parts;    /* [MAX_PARTS][2]: sums of update^2 and of parameter^2 */
    float *rows_mean; /* [1]: the mean of a matrix's rows */
};

/* Where element (row, col) of a matrix lies. */
__device__ __forceinline__ int64_t element_at(
    const struct adafactor &a, int64_t matrix, int64_t row, int64_t col) {
    const struct factored_shape &s = a.shape;
    const int64_t o = s.is_matrix ? row : matrix / s.k, c = s.is_matrix ? col : matrix % s.k;
    const int64_t tap = s.is_matrix ? 0 : row * s.side + col;
    return o / s.panel * s.k * s.side * s.side * s.panel + (tap * s.k + c) * s.panel + o % s.panel;
}

/* Sums over groups of `lanes` threads, a power of two, returned to each of them. */
__device__ __forceinline__ double lane_sum(double x, int lanes, double *scratch) {
    __syncthreads();
    scratch[threadIdx.x] = x;
    for (int step = lanes / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x % lanes < step)
            scratch[threadIdx.x] += scratch[threadIdx.x + step];
    }
    __syncthreads();
    return scratch[threadIdx.x / lanes * lanes];
}

/* `lanes` threads take one row, or one column, of one matrix. */
__global__ void __launch_bounds__(THREADS)
    adafactor_lines(const struct adafactor a, bool are_rows, int lanes) {
    DYNAMIC_SHARED(double, scratch);
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int64_t of_matrix = are_rows ? a.row_count : a.col_count;
    const int64_t length = are_rows ? a.col_count : a.row_count;
    float *states = are_rows ? a.rows : a.cols;
    const int64_t lines = a.matrices * of_matrix, here = THREADS / lanes;
    for (int64_t first = (int64_t)blockIdx.x * here; first < lines; first += gridDim.x * here) {
        const int64_t line = first + threadIdx.x / lanes;
        const int64_t matrix = line / of_matrix, own = line % of_matrix;
        double sum = 0.0;
        for (int64_t i = threadIdx.x % lanes; line < lines && i < length; i += lanes) {
            const int64_t at = element_at(a, matrix, are_rows ? own : i, are_rows ? i : own);
            const double g = (double)scaled(a.gradient[at], a.gradient_scale, a.limit);
            sum += g * g + ADAFACTOR_EPS;
        }
        sum = lane_sum(sum, lanes, scratch);
        if (line < lines && threadIdx.x % lanes == 0)
            states[line] = states[line] * a.beta2 + a.beta2_rest * (float)(sum / (double)length);
    }
}

/* The mean of the rows of the only matrix; one block. */
__global__ void __launch_bounds__(THREADS) adafactor_rows_mean(const struct adafactor a) {
    DYNAMIC_SHARED(double, scratch);
    griddepcontrol_wait();
    griddepcontrol_launch();
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < a.row_count; i += THREADS)
        sum += (double)a.rows[i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0)
        *a.rows_mean = (float)(sum / (double)a.row_count);
}

/* Computes the update of element i, before it is clipped. Returns false if it is padding. */
__device__ __forceinline__ bool update_of(const struct adafactor &a, int64_t i, float *update) {
    const struct factored_shape &s = a.shape;
    const int side = s.side, k = (int)s.k, width = s.panel;
    const int panel = k * side * side * width; /* 32 bits: fewer registers for the divisions */
    const int64_t before = i / panel;
    const int rest = (int)(i - before * panel), inner = rest / width;
    const int64_t o = before * width + rest % width;
    const int tap = inner / k, c = inner % k;
    const int64_t matrix = (o * k + c) * side;
    if (o >= s.n)
        return false;
    const int64_t row = s.is_matrix ? o : matrix + tap / side;
    float mean = 0.0f;
    if (s.is_matrix)
        mean = *a.rows_mean;
    else
        for (int j = 0; j < side; j++)
            mean += a.rows[matrix + j] / (float)side;
    /* Two roots, because the product of the states may be below the smallest float. */
    const float col = a.cols[s.is_matrix ? c : matrix + tap % side];
    *update = scaled(a.gradient[i], a.gradient_scale, a.limit) *
              (1.0f / sqrtf(a.rows[row] / mean)) * (1.0f / sqrtf(col));
    return true;
}

__global__ void __launch_bounds__(THREADS) adafactor_parts(const struct adafactor a) {
    DYNAMIC_SHARED(double, scratch);
    griddepcontrol_wait();
    griddepcontrol_launch();
    double squares = 0.0, own = 0.0;
    for (int64_t i = FIRST_ELEMENT; i < a.floats; i += NEXT_ELEMENT) {
        float update;
        if (update_of(a, i, &update)) {
            squares += (double)update * (double)update;
            own += (double)a.parameter[i] * (double)a.parameter[i];
        }
    }
    squares = block_sum(squares, scratch);
    own = block_sum(own, scratch);
    if (threadIdx.x == 0) {
        a.parts[2 * blockIdx.x] = squares;
        a.parts[2 * blockIdx.x + 1] = own;
    }
}

/* Returns the factor of the parameter and that of its update, from the sums of all parts. */
static __device__ float2 adafactor_factors(const struct adafactor &a, int parts, double *scratch) {
    double squares = 0.0, own = 0.0;
    for (int i = (int)threadIdx.x; i < parts; i += THREADS) {
        squares += a.parts[2 * i];
        own += a.parts[2 * i + 1];
    }
    squares = block_sum(squares, scratch);
    own = block_sum(own, scratch);
    if (threadIdx.x == 0) {
        const double count = (double)(a.matrices * a.row_count * a.col_count);
        const double rms = sqrt(squares / count), own_rms = sqrt(own / count);
        const double rate = (double)a.lr *
                            (a.scale_parameter ? fmax(ADAFACTOR_LEAST_SCALE, own_rms) : 1.0);
        scratch[1] = 1.0 - rate * (double)a.weight_decay; /* others may still read scratch[0] */
        scratch[2] = rate / fmax(1.0, rms / (double)a.clip_threshold);
    }
    __syncthreads();
    return make_float2((float)scratch[1], (float)scratch[2]);
}

__global__ void __launch_bounds__(THREADS) adafactor_step(const struct adafactor a, int parts) {
    DYNAMIC_SHARED(double, scratch);
    griddepcontrol_wait();
    griddepcontrol_launch();
    const float2 factors = adafactor_factors(a, parts, scratch);
    for (int64_t i = FIRST_ELEMENT; i < a.floats; i += NEXT_ELEMENT) {
        float update;
        if (update_of(a, i, &update))
            a.parameter[i] = a.parameter[i] * factors.x - factors.y * update;
    }
}

static bool launch_lines(const struct adafactor &a, bool are_rows, struct error *err) {
    const int64_t length = are_rows ? a.col_count : a.row_count;
    const int64_t lines = a.matrices * (are_rows ? a.row_count : a.col_count);
    const int lanes = length >= 64 ? THREADS : 1;
    const int64_t blocks = (lines + THREADS / lanes - 1) / (THREADS / lanes);
    return launch(adafactor_lines, dim3((unsigned)(blocks < 65535 ? blocks : 65535)), THREADS,
        THREADS * sizeof(double), "adafactor", err, a, are_rows, lanes);
}

extern "C" bool cuda_adafactor(const struct adafactor_args *args, struct error *err) {
    struct adafactor a = {};
    const struct factored_shape *s = &args->shape;
    a.parameter = (float *)args->parameter->data;
    a.rows = (float *)args->rows->data;
    a.cols = (float *)args->cols->data;
    a.gradient = (const float *)args->gradient->data;
    a.shape = *s;
    a.matrices = s->is_matrix ? 1 : s->n * s->k;
    a.row_count = s->is_matrix ? s->n : s->side;
    a.col_count = s->is_matrix ? s->k : s->side;
    a.floats = factored_floats(s);
    a.gradient_scale = (float)args->gradient_scale;
    a.limit = limit_of(args->gradient_limit);
    a.beta2 = (float)args->beta2;
    a.beta2_rest = (float)(1.0 - args->beta2);
    a.lr = (float)args->lr;
    a.clip_threshold = (float)args->clip_threshold;
    a.weight_decay = (float)args->weight_decay;
    a.scale_parameter = args->scale_parameter;
    a.parts = (double *)cuda_workspace((2 * MAX_PARTS + 1) * sizeof(double));
    a.rows_mean = (float *)(a.parts + 2 * MAX_PARTS);
    const int64_t blocks = (a.floats + THREADS - 1) / THREADS;
    const int parts = (int)(blocks < MAX_PARTS ? blocks : MAX_PARTS);
    const size_t shared = THREADS * sizeof(double);
    return launch_lines(a, true, err) && launch_lines(a, false, err) &&
           (!s->is_matrix ||
               launch(adafactor_rows_mean, dim3(1), THREADS, shared, "adafactor", err, a)) &&
           launch(adafactor_parts, dim3((unsigned)parts), THREADS, shared, "adafactor", err, a) &&
           launch(
               adafactor_step, dim3((unsigned)parts), THREADS, shared, "adafactor", err, a, parts);
}
