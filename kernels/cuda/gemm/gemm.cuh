/* Inside kernels/cuda/: one product for every linear layer and convolution, on the device's side.
 *
 * y[m][n] = sum over k of a[m][k] * weight[n][k]: m counts output pixels (of all rows of the
 * batch), n output channels, and k runs over [tap][c_in]. a is never stored: a kernel gathers it
 * from the image x [row][h][w][c_in] while it loads (gemm_source). A linear layer is a 1x1
 * convolution. Upsampling followed by a 3x3 convolution is four 2x2 convolutions of the small
 * image, one for each parity of the output pixel (the phases); their weights are summed at packing.
 *
 * After the sum, in f32: bias; GEGLU or activation; row_add (of convolutions, which have no
 * activation); residual; one rounding (gemm_write, or gemm_end.cuh for wgmma). With split > 1 the
 * parts of k are first added in order. Either a cluster adds them over its shared memory
 * (gemm_parts.cuh), or each part writes its sums to `partial` and a second kernel adds them. There
 * are no atomics. The bits are the same in every run, and the same with or without a cluster.
 */
#ifndef KERNELS_CUDA_GEMM_GEMM_CUH
#define KERNELS_CUDA_GEMM_GEMM_CUH

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/numeric.cuh"

/* Where one output pixel reads: tap (ky, kx) reads input pixel (y + ky, x + kx) of row `row` if
 * that pixel is inside the image. */
struct gemm_pixel {
    int row, y, x;
};

/* Returns the pixel of GEMM row m of a phase. For rows from g.m on, every tap is outside the
 * image. */
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

/* Whether tap (ky, kx) of this pixel is inside the image. *element: the index in x of channel 0 of
 * the pixel that the tap reads. */
__device__ __forceinline__ bool gemm_source(
    const struct gemm &g, struct gemm_pixel p, int ky, int kx, int64_t *element) {
    const int y = p.y + ky, x = p.x + kx;
    if ((unsigned)y >= (unsigned)g.limit_h || (unsigned)x >= (unsigned)g.limit_w)
        return false;
    *element = ((int64_t)(p.row * g.h + (y >> g.shift)) * g.w + (x >> g.shift)) * g.c_in;
    return true;
}

/* A moving position in k: channel c of tap (ky, kx). */
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

/* Sets the range of k that part `s` of g.split sums. It consists of whole GEMM_K_UNITs, so that the
 * parts are the same for every tile. */
__device__ __forceinline__ void gemm_part(const struct gemm &g, int s, int *begin, int *end) {
    const int units = (g.k + GEMM_K_UNIT - 1) / GEMM_K_UNIT;
    *begin = (int)((int64_t)units * s / g.split) * GEMM_K_UNIT;
    *end = min((int)((int64_t)units * (s + 1) / g.split) * GEMM_K_UNIT, g.k);
}

/* What one thread of a block loads in each step: element `k` (and perhaps some after it) of lines
 * first, first + APART, ... of the slices of both operands. */
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

/* Where the outputs of a GEMM row go: the index in y of output channel 0, and the row of the batch
 * (set only if row_add needs it). */
struct gemm_place {
    int64_t at;
    int row;
};

__device__ __forceinline__ struct gemm_place gemm_place_of(const struct gemm &g, int phase, int m) {
    struct gemm_place p = { (int64_t)m * g.n_out, 0 };
    if (g.phases == 1 && !g.row_add)
        return p;
    const int pixels = g.grid_h * g.grid_w;
    p.row = m / pixels;
    if (g.phases > 1) {
        const int pixel = m - p.row * pixels, i = pixel / g.grid_w, j = pixel - i * g.grid_w;
        p.at = (((int64_t)p.row * 2 * g.grid_h + 2 * i + (phase >> 1)) * 2 * g.grid_w + 2 * j +
                   (phase & 1)) *
               g.n_out;
    }
    return p;
}

/* The residual and row_add for channels j to j + 7 of a pixel, loaded early if g.vectors. */
template <class T> struct gemm_addends {
    uint4 residual, row_add[2];

    __device__ __forceinline__ void load(const struct gemm &g, struct gemm_place p, int j) {
        const int64_t of_row = (int64_t)p.row * g.row_add_step + j;
        if (!g.vectors || sizeof(T) > 2)
            return;
        if (g.residual)
            residual = *(const uint4 *)((const T *)g.residual + p.at + j);
        if (g.row_add && g.row_add_is_f32) {
            row_add[0] = *(const uint4 *)((const float *)g.row_add + of_row);
            row_add[1] = *(const uint4 *)((const float *)g.row_add + of_row + 4);
        } else if (g.row_add) {
            row_add[0] = *(const uint4 *)((const T *)g.row_add + of_row);
        }
    }

    __device__ __forceinline__ void add(const struct gemm &g, float *v) const {
        float more[8];
        if (g.row_add) {
            if (g.row_add_is_f32)
                load_8((const float *)row_add, more);
            else
                load_8((const T *)row_add, more);
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] += more[i];
        }
        if (g.residual) {
            load_8((const T *)&residual, more);
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] += more[i];
        }
    }
};

/* The position of GEMM column j in a line of y. */
__device__ __forceinline__ int gemm_column(const struct gemm &g, int j) {
    return g.halves ? (j & 1) * (g.n_out / 2) + j / 2 : j;
}

/* Writes sums with bias as up to 8 outputs, channels j to j + 7 of a pixel: activation, row_add,
 * residual, one rounding. WIDE: g.y_is_f32 may be set. */
template <class T, bool WIDE>
__device__ __forceinline__ void gemm_write(const struct gemm &g, struct gemm_place p, int j,
    const struct gemm_addends<T> &addends, float *v) {
    if (g.activation != ACTIVATION_NONE)
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = activate(v[i], g.activation);
    if (g.vectors && sizeof(T) == 2) { /* all 8 exist, at aligned addresses */
        addends.add(g, v);
        store_8((T *)g.y + p.at + j, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (j + i < g.n_out) {
            const int64_t of_row = (int64_t)p.row * g.row_add_step + j + i;
            if (g.row_add)
                v[i] += g.row_add_is_f32 ? ((const float *)g.row_add)[of_row]
                                         : to_float(((const T *)g.row_add)[of_row]);
            if (g.residual)
                v[i] += to_float(((const T *)g.residual)[p.at + j + i]);
            const int64_t at = p.at + gemm_column(g, j + i);
            if (WIDE && g.y_is_f32)
                ((float *)g.y)[at] = v[i];
            else
                ((T *)g.y)[at] = from_float<T>(v[i]);
        }
}

/* Writes the sums of 8 columns (16 with GEGLU: value, gate, value, ...) as up to 8 outputs of a
 * GEMM row, channels j to j + 7. The addends are already loaded. GATE sets the precision of the
 * gate. The plainest kernel uses the precise gate, partly because it has no registers to spare for
 * the short one. */
template <class T, bool WIDE, class GATE = T>
__device__ __forceinline__ void gemm_store_with(const struct gemm &g, struct gemm_place p, int j,
    const struct gemm_addends<T> &addends, const float *sums) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float *bias = j + i < g.n_out && g.bias ? g.bias + (j + i) * (g.geglu ? 2 : 1) : NULL;
        if (g.geglu)
            v[i] = (sums[2 * i] + (bias ? bias[0] : 0.0f)) *
                   gelu_as<GATE>(sums[2 * i + 1] + (bias ? bias[1] : 0.0f));
        else
            v[i] = sums[i] + (bias ? bias[0] : 0.0f);
    }
    gemm_write<T, WIDE>(g, p, j, addends, v);
}

/* Does what gemm_store_with does, for GEMM row m; loads the addends itself. */
template <class T, class GATE = T>
__device__ __forceinline__ void gemm_store(
    const struct gemm &g, int phase, int m, int j, const float *sums) {
    const struct gemm_place p = gemm_place_of(g, phase, m);
    struct gemm_addends<T> addends = {};
    addends.load(g, p, j);
    gemm_store_with<T, true, GATE>(g, p, j, addends, sums);
}

/* Returns the address of the sums of part `s`: [phase][part][m][n_partial]. */
__device__ __forceinline__ float *gemm_partial(
    const struct gemm &g, int phase, int s, int m, int column) {
    return g.partial + (((int64_t)phase * g.split + s) * g.m + m) * g.n_partial + column;
}

/* Ends a kernel whose threads have adjacent sums: 8 of them (16 with GEGLU) at column `column` of
 * GEMM row m. A part of a split sum goes to `partial`. */
template <class T, class GATE = T>
__device__ __forceinline__ void gemm_finish(
    const struct gemm &g, int phase, int s, int m, int column, const float *sums) {
    if (g.split == 1) {
        gemm_store<T, GATE>(g, phase, m, g.geglu ? column / 2 : column, sums);
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
