/* Packs weights into device memory, in the form that the kernels of gemm.cuh read: [n][tap][c_in]
 * in the activations' dtype. GEGLU's value and gate rows alternate. CONV_3X3_UP also has the four
 * phases. The file's bytes are copied to scratch memory and rearranged there by a kernel, so that
 * the host touches each weight only once. */
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/ptx.cuh"

#include <stdlib.h>

#define PACK_THREADS 256
#define PACK_BLOCKS 2048

/* The arguments of pack_rows: rows [first, first + count) of a weight [n][c_in][taps] or, with
 * `turned`, [n][taps][c_in]. */
struct pack {
    const void *from;
    void *to;
    int n, first, count, c_in, taps;
    bool geglu, phases, turned;
};

/* Sets `first` and `last` for one line (or column) of the 3x3 filter. The taps first .. last of
 * that line read the same pixel of the small image. Their sum becomes tap `a` of the phase's two
 * taps. */
__device__ __forceinline__ void phase_taps(int parity, int a, int *first, int *last) {
    *first = a == 0 ? 0 : parity == 0 ? 1 : 2;
    *last = a == 1 ? 2 : parity == 0 ? 0 : 1;
}

template <class FROM, class TO> __global__ void pack_rows(const struct pack p) {
    const int taps = p.phases ? 4 : p.taps, phases = p.phases ? 4 : 1;
    const int64_t row_size = (int64_t)taps * p.c_in, total = row_size * p.count * phases;
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += stride) {
        const int c = (int)(i % p.c_in), tap = (int)(i / p.c_in % taps);
        const int64_t row = i / row_size;
        const int r = (int)(row % p.count), phase = (int)(row / p.count);
        const FROM *from = (const FROM *)p.from + (int64_t)r * p.c_in * p.taps +
                           (p.turned ? c : (int64_t)c * p.taps);
        const int64_t step = p.turned ? p.c_in : 1;
        float sum = 0;
        if (p.phases) {
            int y0, y1, x0, x1;
            phase_taps(phase >> 1, tap >> 1, &y0, &y1);
            phase_taps(phase & 1, tap & 1, &x0, &x1);
            for (int y = y0; y <= y1; y++)
                for (int x = x0; x <= x1; x++)
                    sum += to_float(from[(y * 3 + x) * step]);
        } else {
            sum = to_float(from[tap * step]);
        }
        int n = p.first + r;
        if (p.geglu)
            n = n < p.n / 2 ? 2 * n : 2 * (n - p.n / 2) + 1;
        ((TO *)p.to)[((int64_t)phase * p.n + n) * row_size + (int64_t)tap * p.c_in + c] =
            from_float<TO>(sum);
    }
}

template <class FROM>
static bool pack_from(const struct pack *p, enum dtype to, struct error *err) {
    void (*kernel)(const struct pack) = to == DTYPE_F32   ? pack_rows<FROM, float>
                                        : to == DTYPE_F16 ? pack_rows<FROM, __half>
                                                          : pack_rows<FROM, __nv_bfloat16>;
    int64_t elements = (int64_t)p->count * p->c_in * (p->phases ? 16 : p->taps);
    int64_t blocks = (elements + PACK_THREADS - 1) / PACK_THREADS;
    if (blocks > PACK_BLOCKS)
        blocks = PACK_BLOCKS;
    /* Launched without overlap, because the next kernel may be a product, and a product reads its
     * weights before the previous kernel has ended. */
    const struct launch_shape shape = { dim3((unsigned)blocks), dim3(PACK_THREADS), 0, dim3(1),
        false };
    return launch_kernel(&shape, "pack_rows", err, kernel, *p);
}

static bool pack_launch(const struct pack *p, enum dtype from, enum dtype to, struct error *err) {
    return from == DTYPE_F32   ? pack_from<float>(p, to, err)
           : from == DTYPE_F16 ? pack_from<__half>(p, to, err)
                               : pack_from<__nv_bfloat16>(p, to, err);
}

/* Uploads `tensor` [n][c_in][taps], as many rows at a time as fit the scratch memory, and packs
 * each part into `to` and, if not NULL, into `phases`. */
static bool upload(const struct tensor *tensor, int c_in, int taps, bool geglu, enum dtype dtype,
    void *to, void *phases, struct error *err) {
    const int64_t n = tensor->shape[0];
    const size_t row_bytes = (size_t)c_in * (size_t)taps * dtype_size(tensor->dtype);
    int64_t rows = (int64_t)(cuda_workspace_bytes() / row_bytes);
    if (rows < 1)
        return error_set(err, ERROR_UNSUPPORTED,
            "one output of a weight takes %zu bytes, more than the %zu of the scratch memory",
            row_bytes, cuda_workspace_bytes());
    if (rows > n)
        rows = n;
    void *scratch = cuda_workspace((size_t)rows * row_bytes);
    if (!scratch)
        return error_set(err, ERROR_INTERNAL, "no scratch memory for %lld rows", (long long)rows);
    for (int64_t first = 0; first < n; first += rows) {
        const int64_t count = n - first < rows ? n - first : rows;
        const char *from = (const char *)tensor->data + (size_t)first * row_bytes;
        struct pack p = { scratch, to, (int)n, (int)first, (int)count, c_in, taps, geglu, false,
            false };
        if (!cuda_upload(scratch, from, (size_t)count * row_bytes, err) ||
            !pack_launch(&p, tensor->dtype, dtype, err))
            return false;
        p.to = phases;
        p.phases = true;
        if (phases && !pack_launch(&p, tensor->dtype, dtype, err))
            return false;
    }
    return true;
}

/* Returns the row of the file that is stored in row `row` on the device. */
static int64_t file_row(const struct packed *p, int64_t row) {
    return p->geglu ? row % 2 * (p->n / 2) + row / 2 : row;
}

/* Copies a device array of `dtype` to out[n][width], in the file's row order, some rows at a
 * time. */
static bool unpack_rows(const struct packed *p, const void *from, enum dtype dtype, int64_t width,
    float *out, struct error *err) {
    const size_t row_bytes = (size_t)width * dtype_size(dtype);
    const int64_t most = (int64_t)(cuda_workspace_bytes() / row_bytes), rows = most < 1 ? 1 : most;
    for (int64_t first = 0; first < p->n; first += rows) {
        const int64_t count = p->n - first < rows ? p->n - first : rows;
        const char *seen = (const char *)cuda_memory.view(
            (const char *)from + (size_t)first * row_bytes, (size_t)count * row_bytes, err);
        if (!seen)
            return false;
        for (int64_t i = 0; i < count; i++)
            convert_elements(out + file_row(p, first + i) * width, DTYPE_F32,
                seen + (size_t)i * row_bytes, dtype, width);
    }
    return true;
}

extern "C" bool gemm_unpack(
    const struct packed *packed, float *weight, float *bias, struct error *err) {
    const struct cuda_packed *p = (const struct cuda_packed *)packed;
    const int64_t taps = packed->is_conv && packed->kind != CONV_1X1 ? 9 : 1;
    if (weight && !unpack_rows(packed, p->weight, p->dtype, taps * packed->k, weight, err))
        return false;
    if (bias && p->bias)
        return unpack_rows(packed, p->bias, DTYPE_F32, 1, bias, err);
    for (int64_t i = 0; bias && i < packed->n; i++)
        bias[i] = 0;
    return true;
}

/* Packs `from`, f32 [n][taps][c_in] in the device's memory, into `to`. */
static bool rewrite_rows(const struct packed *packed, const float *from, int64_t c_in, int taps,
    bool geglu, bool phases, enum dtype dtype, void *to, struct error *err) {
    const struct pack p = { from, to, (int)packed->n, 0, (int)packed->n, (int)c_in, taps, geglu,
        phases, true };
    return pack_launch(&p, DTYPE_F32, dtype, err);
}

extern "C" bool gemm_rewrite(
    struct packed *packed, const float *weight, const float *bias, struct error *err) {
    const struct cuda_packed *p = (const struct cuda_packed *)packed;
    const int taps = packed->is_conv && packed->kind != CONV_1X1 ? 9 : 1;
    const bool geglu = packed->geglu;
    return rewrite_rows(packed, weight, packed->k, taps, geglu, false, p->dtype, p->weight, err) &&
           (!p->phases || rewrite_rows(packed, weight, packed->k, taps, geglu, true, p->dtype,
                              p->phases, err)) &&
           (!p->bias || rewrite_rows(packed, bias, 1, 1, geglu, false, DTYPE_F32, p->bias, err));
}

extern "C" void gemm_packed_destroy(struct packed *packed) {
    struct cuda_packed *p = (struct cuda_packed *)packed;
    if (!p)
        return;
    cuda_weights_release(p->weight, p->weight_bytes);
    cuda_weights_release(p->phases, p->phase_bytes);
    cuda_weights_release(p->bias, (size_t)p->base.n * sizeof(float));
    free(p);
}

static bool pack(const struct tensor *weight, const struct tensor *bias, int taps, bool geglu,
    bool phases, enum dtype dtype, struct cuda_packed **out, struct error *err) {
    const int64_t n = weight->shape[0], c_in = weight->shape[1], limit = INT32_MAX;
    if (n > limit / 2 || c_in > limit / 16)
        return error_set(err, ERROR_UNSUPPORTED, "a weight of %lld x %lld is too large",
            (long long)n, (long long)c_in);
    struct cuda_packed *p = (struct cuda_packed *)calloc(1, sizeof(*p));
    if (!p)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a weight");
    p->base.n = n;
    p->base.k = c_in;
    p->base.geglu = geglu;
    p->dtype = dtype;
    p->weight_bytes = (size_t)(n * c_in * taps) * dtype_size(dtype);
    p->phase_bytes = phases ? (size_t)(n * c_in * 16) * dtype_size(dtype) : 0;
    const size_t bias_bytes = bias ? (size_t)n * sizeof(float) : 0;
    p->base.bytes = p->weight_bytes + p->phase_bytes + bias_bytes;
    if (!cuda_weights_alloc(p->weight_bytes, &p->weight, err) ||
        (phases && !cuda_weights_alloc(p->phase_bytes, &p->phases, err)) ||
        (bias && !cuda_weights_alloc(bias_bytes, (void **)&p->bias, err)) ||
        !upload(weight, (int)c_in, taps, geglu, dtype, p->weight, p->phases, err) ||
        (bias && !upload(bias, 1, 1, geglu, DTYPE_F32, p->bias, NULL, err))) {
        gemm_packed_destroy(&p->base);
        return false;
    }
    *out = p;
    return true;
}

extern "C" bool gemm_linear_pack(const struct tensor *weight, const struct tensor *bias, bool geglu,
    enum dtype dtype, struct packed **out, struct error *err) {
    struct cuda_packed *p = NULL;
    if (!pack(weight, bias, 1, geglu, false, dtype, &p, err))
        return false;
    *out = &p->base;
    return true;
}

extern "C" bool gemm_conv2d_pack(const struct tensor *weight, const struct tensor *bias,
    enum conv_kind kind, enum dtype dtype, struct packed **out, struct error *err) {
    struct cuda_packed *p = NULL;
    if (!pack(weight, bias, kind == CONV_1X1 ? 1 : 9, false, kind == CONV_3X3_UP, dtype, &p, err))
        return false;
    p->base.is_conv = true;
    p->base.kind = kind;
    *out = &p->base;
    return true;
}
