/* Inside kernels/cuda/: one product for every linear layer and convolution, on the device's side.
 *
 * y[m][n] = sum over k of a[m][k] * weight[n][k]: m counts output pixels (of all rows of the
 * batch), n output channels, and k runs over [tap][c_in]. a is never made: a kernel gathers it from
 * the image x [row][h][w][c_in] while it loads (gemm_source). A linear layer is a 1x1 convolution.
 * Upsampling followed by a 3x3 convolution is four 2x2 convolutions of the small image, one for
 * each parity of the output pixel (the phases); their weights are summed when they are packed.
 *
 * What follows the sum happens in f32, in one place (gemm_store): bias, activation or GEGLU,
 * row_add, residual, one rounding. With split > 1 each part of k writes its sums to `partial`, and
 * a second kernel adds the parts in order and goes on from there: no atomics, the same bits in
 * every run.
 */
#ifndef KERNELS_CUDA_GEMM_CUH
#define KERNELS_CUDA_GEMM_CUH

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/numeric.cuh"

/* Where one output pixel reads: input pixel (y + ky, x + kx) of row `row`, if it is inside. */
struct gemm_pixel {
    int row, y, x;
};

/* GEMM row m of a phase. Rows from g.m on are outside everywhere. */
__device__ __forceinline__ struct gemm_pixel gemm_pixel_of(const struct gemm &g, int phase, int m) {
    const int pixels = g.grid_h * g.grid_w;
    const int row = m / pixels, pixel = m - row * pixels;
    const int i = pixel / g.grid_w, j = pixel - i * g.grid_w;
    struct gemm_pixel p = { row, i * g.stride - g.before + (phase >> 1),
        j * g.stride - g.before + (phase & 1) };
    if (m >= g.m) {
        p.row = 0;
        p.y = -(1 << 20);
    }
    return p;
}

/* Whether the tap (ky, kx) of this pixel lies inside, and which element its channel 0 is. */
__device__ __forceinline__ bool gemm_source(
    const struct gemm &g, struct gemm_pixel p, int ky, int kx, int64_t *element) {
    const int y = p.y + ky, x = p.x + kx;
    if ((unsigned)y >= (unsigned)g.limit_h || (unsigned)x >= (unsigned)g.limit_w)
        return false;
    *element = ((int64_t)(p.row * g.h + (y >> g.shift)) * g.w + (x >> g.shift)) * g.c_in;
    return true;
}

/* A place in k that moves on: channel c of tap (ky, kx). */
struct gemm_cursor {
    int ky, kx, c;
};

__device__ __forceinline__ struct gemm_cursor gemm_cursor_at(const struct gemm &g, int k) {
    const int tap = k / g.c_in;
    struct gemm_cursor at = { tap / g.taps_x, tap % g.taps_x, k - tap * g.c_in };
    return at;
}

__device__ __forceinline__ void gemm_cursor_move(
    const struct gemm &g, struct gemm_cursor *at, int step) {
    at->c += step;
    while (at->c >= g.c_in) {
        at->c -= g.c_in;
        if (++at->kx == g.taps_x) {
            at->kx = 0;
            at->ky++;
        }
    }
}

/* The part of k that is summed by part `s` of g.split: whole GEMM_K_UNITs, so that the parts are
 * the same for every tile. */
__device__ __forceinline__ void gemm_part(const struct gemm &g, int s, int *begin, int *end) {
    const int units = (g.k + GEMM_K_UNIT - 1) / GEMM_K_UNIT;
    *begin = (int)((int64_t)units * s / g.split) * GEMM_K_UNIT;
    *end = min((int)((int64_t)units * (s + 1) / g.split) * GEMM_K_UNIT, g.k);
}

/* What one thread of a block loads, step after step: element `k` (and maybe some after it) of lines
 * first, first + APART, ... of both operands' slices. */
template <class T, int LINES, int APART> struct gemm_lines {
    struct gemm_pixel pixels[LINES];
    struct gemm_cursor at; /* of k */
    int k, k_end, first, n_first;
    const T *weight;

    __device__ __forceinline__ gemm_lines(const struct gemm &g, int phase, int m_first, int n_begin,
        int line, int k_begin, int k_stop)
        : k(k_begin), k_end(k_stop), first(line), n_first(n_begin) {
        at = gemm_cursor_at(g, k);
        weight = (const T *)g.weight + (int64_t)phase * g.n * g.k;
#pragma unroll
        for (int i = 0; i < LINES; i++)
            pixels[i] = gemm_pixel_of(g, phase, m_first + first + i * APART);
    }

    __device__ __forceinline__ void advance(const struct gemm &g, int step) {
        k += step;
        gemm_cursor_move(g, &at, step);
    }
};

/* The element of y that GEMM row m of a phase and output channel 0 is. */
__device__ __forceinline__ int64_t gemm_output(
    const struct gemm &g, int phase, int m, int *row_of_batch) {
    const int pixels = g.grid_h * g.grid_w;
    const int row = m / pixels;
    *row_of_batch = row;
    if (g.phases == 1)
        return (int64_t)m * g.n_out;
    const int pixel = m - row * pixels, i = pixel / g.grid_w, j = pixel - i * g.grid_w;
    return (((int64_t)row * 2 * g.grid_h + 2 * i + (phase >> 1)) * 2 * g.grid_w + 2 * j +
               (phase & 1)) *
           g.n_out;
}

/* The sums of 8 columns (16 with GEGLU: value, gate, value, ...) become up to 8 outputs, channels j
 * to j + 7 of GEMM row m. */
template <class T>
__device__ __forceinline__ void gemm_store(
    const struct gemm &g, int phase, int m, int j, const float *sums) {
    float v[8];
    const int count = min(8, g.n_out - j);
    if (g.geglu) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const bool in = i < count && g.bias;
            const float value = sums[2 * i] + (in ? g.bias[2 * (j + i)] : 0.0f);
            const float gate = sums[2 * i + 1] + (in ? g.bias[2 * (j + i) + 1] : 0.0f);
            v[i] = value * gelu(gate);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = activate(sums[i] + (i < count && g.bias ? g.bias[j + i] : 0.0f), g.activation);
    }
    int row;
    const int64_t at = gemm_output(g, phase, m, &row) + j;
    if (g.row_add) {
        const int64_t add = (int64_t)row * g.n_out + j;
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < count)
                v[i] += g.row_add_is_f32 ? ((const float *)g.row_add)[add + i]
                                         : to_float(((const T *)g.row_add)[add + i]);
    }
    if (g.vectors) { /* count is 8 and all are aligned */
        if (g.residual) {
            float r[8];
            load_8((const T *)g.residual + at, r);
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] += r[i];
        }
        store_8((T *)g.y + at, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) {
            if (g.residual)
                v[i] += to_float(((const T *)g.residual)[at + i]);
            ((T *)g.y)[at + i] = from_float<T>(v[i]);
        }
}

/* Where part `s` keeps its sums: [phase][part][m][n_partial]. */
__device__ __forceinline__ float *gemm_partial(
    const struct gemm &g, int phase, int s, int m, int column) {
    return g.partial + (((int64_t)phase * g.split + s) * g.m + m) * g.n_partial + column;
}

/* The end of every kernel: 8 sums (16 with GEGLU) at column `column` of GEMM row m. */
template <class T>
__device__ __forceinline__ void gemm_finish(
    const struct gemm &g, int phase, int s, int m, int column, const float *sums) {
    if (g.split == 1) {
        gemm_store<T>(g, phase, m, g.geglu ? column / 2 : column, sums);
        return;
    }
    float *to = gemm_partial(g, phase, s, m, column);
    const int count = g.geglu ? 16 : 8;
#pragma unroll
    for (int i = 0; i < 16; i += 4)
        if (i < count)
            *(float4 *)(to + i) = make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
}

#endif
