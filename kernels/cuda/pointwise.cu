/* Elementwise operations: add, geglu, concat, combine, blend, convert. Memory bandwidth limits
 * them. Most therefore take several elements at a time if all addresses are aligned to 16 bytes;
 * otherwise, and in the tail, they take single elements with the same arithmetic. Every loop except
 * that of `transpose` strides over the grid, so a grid may be smaller than the work. */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/ptx.cuh"

#define THREADS 256
#define MAX_BLOCKS 65535

static bool aligned_16(const void *p) {
    return (uintptr_t)p % 16 == 0;
}

static dim3 grid_for(int64_t items) {
    int64_t blocks = (items + THREADS - 1) / THREADS;
    return dim3((unsigned)(blocks < 1 ? 1 : blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS));
}

__device__ __forceinline__ int64_t grid_index() {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ int64_t grid_stride() {
    return (int64_t)gridDim.x * blockDim.x;
}

/* ---- add: y = activation(a + b) ---- */

/* Takes the first 8 * vectors elements eight at a time, the others one by one. a may be y. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    add(const T *a, const T *b, T *y, int64_t n, int64_t vectors, enum activation activation) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int64_t i = grid_index(); i < vectors; i += grid_stride()) {
        float x[8], z[8] = {};
        load_8(a + 8 * i, x);
        if (b)
            load_8(b + 8 * i, z);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = activate(x[j] + z[j], activation);
        store_8(y + 8 * i, x);
    }
    for (int64_t i = 8 * vectors + grid_index(); i < n; i += grid_stride())
        y[i] = from_float<T>(activate(to_float(a[i]) + (b ? to_float(b[i]) : 0.0f), activation));
}

template <class T> static bool add_of(const struct add_args *args, struct error *err) {
    const int64_t n = tensor_elements(args->y);
    const T *a = (const T *)args->a->data, *b = args->b ? (const T *)args->b->data : NULL;
    T *y = (T *)args->y->data;
    const bool vectors = aligned_16(a) && aligned_16(b) && aligned_16(y);
    const int64_t items = vectors ? n / 8 + (n % 8 != 0) : n;
    return launch(add<T>, grid_for(items), THREADS, 0, "add", err, a, b, y, n,
        vectors ? n / 8 : (int64_t)0, args->activation);
}

extern "C" bool cuda_add(const struct add_args *args, struct error *err) {
    return CALL_FOR_DTYPE(args->y->dtype, add_of, args, err);
}

/* ---- geglu: y[m][j] = h[m][j] * gelu(h[m][n/2 + j]) + residual[m][j] ---- */

/* Takes eight elements at a time if `vectors`, else one. residual may be y. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    geglu(const T *h, const T *residual, T *y, int64_t items, int64_t half, bool vectors) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int64_t i = grid_index(); i < items; i += grid_stride()) {
        const int64_t at = vectors ? 8 * i : i, from = at / half * 2 * half + at % half;
        float a[8], gate[8], more[8] = {};
        if (!vectors) {
            const float sum = to_float(h[from]) * gelu(to_float(h[from + half]));
            y[at] = from_float<T>(sum + (residual ? to_float(residual[at]) : 0.0f));
            continue;
        }
        load_8(h + from, a);
        load_8(h + from + half, gate);
        if (residual)
            load_8(residual + at, more);
#pragma unroll
        for (int j = 0; j < 8; j++)
            a[j] = a[j] * gelu(gate[j]) + more[j];
        store_8(y + at, a);
    }
}

template <class T> static bool geglu_of(const struct geglu_args *args, struct error *err) {
    const int64_t n = tensor_elements(args->y), half = args->y->shape[args->y->rank - 1];
    const T *h = (const T *)args->h->data;
    const T *residual = args->residual ? (const T *)args->residual->data : NULL;
    T *y = (T *)args->y->data;
    const bool vectors = half % 8 == 0 && aligned_16(h) && aligned_16(residual) && aligned_16(y);
    const int64_t items = vectors ? n / 8 : n;
    return launch(
        geglu<T>, grid_for(items), THREADS, 0, "geglu", err, h, residual, y, items, half, vectors);
}

extern "C" bool cuda_geglu(const struct geglu_args *args, struct error *err) {
    return CALL_FOR_DTYPE(args->y->dtype, geglu_of, args, err);
}

/* ---- concat: y[...][0..ca) = a, y[...][ca..ca+cb) = b ---- */

/* U is the widest word that divides both parts of a line into whole words: wa words of a, wb of b.
 * A block copies `lines` lines at a time. */
template <class U>
__global__ void __launch_bounds__(THREADS)
    concat(const U *a, const U *b, U *y, int64_t count, int wa, int wb, int lines) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int width = wa + wb;
    for (int64_t first = (int64_t)blockIdx.x * lines; first < count;
         first += (int64_t)gridDim.x * lines) {
        const int here = (int)min((int64_t)lines, count - first);
        for (int i = (int)threadIdx.x; i < here * width; i += THREADS) {
            const int line = i / width, at = i - line * width;
            y[first * width + i] = at < wa ? a[(first + line) * wa + at]
                                           : b[(first + line) * wb + at - wa];
        }
    }
}

template <class U>
static bool concat_of(const struct concat_args *args, int64_t count, int64_t a_bytes,
    int64_t b_bytes, struct error *err) {
    const int wa = (int)(a_bytes / (int64_t)sizeof(U)), wb = (int)(b_bytes / (int64_t)sizeof(U));
    /* About eight words per thread. */
    const int lines = wa + wb < 8 * THREADS ? 8 * THREADS / (wa + wb) : 1;
    return launch(concat<U>, grid_for((count + lines - 1) / lines * THREADS), THREADS, 0, "concat",
        err, (const U *)args->a->data, (const U *)args->b->data, (U *)args->y->data, count, wa, wb,
        lines);
}

extern "C" bool cuda_concat(const struct concat_args *args, struct error *err) {
    const int last = args->a->rank - 1;
    const int64_t size = (int64_t)dtype_size(args->y->dtype);
    const int64_t a_bytes = args->a->shape[last] * size, b_bytes = args->b->shape[last] * size;
    const int64_t count = tensor_elements(args->a) / args->a->shape[last];
    /* The lowest set bit is the largest power of two that divides all sizes and addresses. */
    const uint64_t bits = (uint64_t)a_bytes | (uint64_t)b_bytes | (uintptr_t)args->a->data |
                          (uintptr_t)args->b->data | (uintptr_t)args->y->data;
    if (bits % 16 == 0)
        return concat_of<uint4>(args, count, a_bytes, b_bytes, err);
    if (bits % 8 == 0)
        return concat_of<uint2>(args, count, a_bytes, b_bytes, err);
    if (bits % 4 == 0)
        return concat_of<unsigned>(args, count, a_bytes, b_bytes, err);
    return concat_of<unsigned short>(args, count, a_bytes, b_bytes, err);
}

/* ---- combine: y[row] = (sum over t of coefficients[row][t] * terms[t][row]) / divisors[row] ----
 */

#define COMBINE_ROWS 64

/* The arguments, passed by value as some 2.3 KiB of kernel parameters, so that nothing has to be
 * uploaded or kept. */
struct combine {
    const float *terms[COMBINE_MAX_TERMS];
    float *y;
    int64_t width; /* of a row */
    int count;
    bool vectors; /* width % 4 == 0, all addresses 16-byte aligned */
    float coefficients[COMBINE_ROWS][COMBINE_MAX_TERMS];
    float divisors[COMBINE_ROWS];
};

/* sum + w x, where the product is rounded before it is added. */
static __device__ __forceinline__ float add_product(float sum, float w, float x) {
    return __fadd_rn(sum, __fmul_rn(w, x));
}

/* blockIdx.y is the row. A term may be the tensor y. The sums start at -0.0f, so that a first
 * product of -0.0f keeps its sign. */
__global__ void __launch_bounds__(THREADS) combine(const struct combine c) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int64_t begin = (int64_t)blockIdx.y * c.width, end = begin + c.width;
    const float *w = c.coefficients[blockIdx.y], divisor = c.divisors[blockIdx.y];
    if (c.vectors) {
        for (int64_t i = begin + 4 * grid_index(); i < end; i += 4 * grid_stride()) {
            float4 sum = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
#pragma unroll
            for (int t = 0; t < COMBINE_MAX_TERMS; t++)
                if (t < c.count) {
                    const float4 x = *(const float4 *)(c.terms[t] + i);
                    sum.x = add_product(sum.x, w[t], x.x);
                    sum.y = add_product(sum.y, w[t], x.y);
                    sum.z = add_product(sum.z, w[t], x.z);
                    sum.w = add_product(sum.w, w[t], x.w);
                }
            sum.x = __fdiv_rn(sum.x, divisor);
            sum.y = __fdiv_rn(sum.y, divisor);
            sum.z = __fdiv_rn(sum.z, divisor);
            sum.w = __fdiv_rn(sum.w, divisor);
            *(float4 *)(c.y + i) = sum;
        }
        return;
    }
    for (int64_t i = begin + grid_index(); i < end; i += grid_stride()) {
        float sum = -0.0f;
#pragma unroll
        for (int t = 0; t < COMBINE_MAX_TERMS; t++)
            if (t < c.count)
                sum = add_product(sum, w[t], c.terms[t][i]);
        c.y[i] = __fdiv_rn(sum, divisor);
    }
}

extern "C" bool cuda_combine(const struct combine_args *args, struct error *err) {
    const int64_t rows = args->y->shape[0];
    struct combine c = {};
    c.width = tensor_elements(args->y) / rows;
    c.count = args->count;
    for (int64_t first = 0; first < rows; first += COMBINE_ROWS) {
        const int here = (int)(rows - first < COMBINE_ROWS ? rows - first : COMBINE_ROWS);
        c.y = (float *)args->y->data + first * c.width;
        c.vectors = c.width % 4 == 0 && aligned_16(c.y);
        for (int t = 0; t < c.count; t++) {
            c.terms[t] = (const float *)args->terms[t]->data + first * c.width;
            c.vectors = c.vectors && aligned_16(c.terms[t]);
        }
        for (int row = 0; row < here; row++) {
            c.divisors[row] = args->divisors ? args->divisors[first + row] : 1.0f;
            for (int t = 0; t < c.count; t++)
                c.coefficients[row][t] = args->coefficients[(first + row) * c.count + t];
        }
        dim3 grid = grid_for(c.vectors ? c.width / 4 : c.width);
        grid.y = (unsigned)here;
        if (!launch(combine, grid, THREADS, 0, "combine", err, c))
            return false;
    }
    return true;
}

/* ---- blend: y = (1 - mask) a + mask b, one mask value for `channels` elements ---- */

__global__ void __launch_bounds__(THREADS)
    blend(const float *a, const float *b, const float *mask, float *y, int64_t n, int channels) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int64_t i = grid_index(); i < n; i += grid_stride()) {
        const float m = mask[i / channels];
        y[i] = fmaf(m, b[i], (1 - m) * a[i]);
    }
}

extern "C" bool cuda_blend(const struct blend_args *args, struct error *err) {
    const int64_t n = tensor_elements(args->y);
    return launch(blend, grid_for(n), THREADS, 0, "blend", err, (const float *)args->a->data,
        (const float *)args->b->data, (const float *)args->mask->data, (float *)args->y->data, n,
        (int)args->y->shape[args->y->rank - 1]);
}

/* ---- convert ---- */

template <class A, class B>
__global__ void __launch_bounds__(THREADS) convert(const A *x, B *y, int64_t n, int64_t vectors) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int64_t i = grid_index(); i < vectors; i += grid_stride()) {
        float v[8];
        load_8(x + 8 * i, v);
        store_8(y + 8 * i, v);
    }
    for (int64_t i = 8 * vectors + grid_index(); i < n; i += grid_stride())
        y[i] = from_float<B>(to_float(x[i]));
}

#define TILE 32

/* y[row][j][i] = x[row][i][j] for x [rows][height][width], in tiles through shared memory, so that
 * both reads and writes move whole lines. Grid: x counts the tiles of one batch row, y the batch
 * rows. */
template <class A, class B>
__global__ void __launch_bounds__(THREADS)
    transpose(const A *x, B *y, int height, int width, int tiles_wide) {
    DYNAMIC_SHARED(float, tile); /* [TILE][TILE + 1] */
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int i0 = (int)blockIdx.x / tiles_wide * TILE, j0 = (int)blockIdx.x % tiles_wide * TILE;
    const int lane = (int)threadIdx.x % TILE, line = (int)threadIdx.x / TILE;
    const int64_t base = (int64_t)blockIdx.y * height * width;
    for (int r = line; r < TILE; r += THREADS / TILE)
        if (i0 + r < height && j0 + lane < width)
            tile[r * (TILE + 1) + lane] = to_float(x[base + (int64_t)(i0 + r) * width + j0 + lane]);
    __syncthreads();
    for (int r = line; r < TILE; r += THREADS / TILE)
        if (j0 + r < width && i0 + lane < height)
            y[base + (int64_t)(j0 + r) * height + i0 + lane] = from_float<B>(
                tile[lane * (TILE + 1) + r]);
}

/* Transposes a matrix with one side so short (latents, pictures) that tiles would be almost empty.
 * A thread moves the `few` elements at one position of the long side. With `to_lines`, x is
 * [few][length], else [length][few]. */
template <class A, class B>
__global__ void __launch_bounds__(THREADS)
    transpose_short(const A *x, B *y, int64_t length, int few, bool to_lines) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int64_t base = (int64_t)blockIdx.y * length * few;
    for (int64_t i = grid_index(); i < length; i += grid_stride())
        for (int c = 0; c < few; c++) {
            const int64_t line = base + i * few + c, plane = base + c * length + i;
            if (to_lines)
                y[line] = from_float<B>(to_float(x[plane]));
            else
                y[plane] = from_float<B>(to_float(x[line]));
        }
}

#define SHORT 8

template <class B, class A>
static bool convert_of(const A *x, const struct convert_args *args, struct error *err) {
    B *y = (B *)args->y->data;
    const int64_t *s = args->x->shape, n = tensor_elements(args->x);
    if (args->layout == LAYOUT_SAME) {
        const bool vectors = aligned_16(x) && aligned_16(y);
        return launch(convert<A, B>, grid_for(vectors ? n / 8 + (n % 8 != 0) : n), THREADS, 0,
            "convert", err, x, y, n, vectors ? n / 8 : (int64_t)0);
    }
    const bool to_nhwc = args->layout == LAYOUT_NCHW_TO_NHWC;
    const int64_t channels = to_nhwc ? s[1] : s[3], pixels = n / s[0] / channels;
    if (channels <= SHORT) {
        dim3 grid = grid_for(pixels);
        grid.y = (unsigned)s[0];
        return launch(transpose_short<A, B>, grid, THREADS, 0, "convert", err, x, y, pixels,
            (int)channels, to_nhwc);
    }
    const int height = (int)(to_nhwc ? channels : pixels);
    const int width = (int)(to_nhwc ? pixels : channels), wide = (width + TILE - 1) / TILE;
    const dim3 grid((unsigned)((height + TILE - 1) / TILE * wide), (unsigned)s[0]);
    return launch(transpose<A, B>, grid, THREADS, TILE * (TILE + 1) * sizeof(float), "convert", err,
        x, y, height, width, wide);
}

template <class A> static bool convert_from(const struct convert_args *args, struct error *err) {
    return CALL_FOR_DTYPE(args->y->dtype, convert_of, (const A *)args->x->data, args, err);
}

extern "C" bool cuda_convert(const struct convert_args *args, struct error *err) {
    return CALL_FOR_DTYPE(args->x->dtype, convert_from, args, err);
}
