/* The gradients of a layer's parameters, from x and dy alone:
 *
 *   dw[j][t][c] += sum over output pixels i of dy[i][j] x[pixel(i, t)][c];
 *   sums[row][j] = sum over a row's output pixels of dy[i][j].
 *
 * A task owns BLOCK_N outputs and two panels of inputs of one tap. It walks over the pixels of all
 * rows in blocks of BLOCK_M, in order, so that the bits do not depend on the number of threads. For
 * each block it transposes its part of dy and gathers its part of x, both as f32, and multiplies
 * them in the register tiles of the direct product.
 */
#include "kernels/cpu/matmul_isa.h"

#define BLOCK_N (TILE_ROWS * 8)
#define BLOCK_M 192
#define BLOCK_PANELS 2
#define BLOCK_COLUMNS (BLOCK_PANELS * PANEL)
#define SUM_PIXELS 64 /* pixels summed before they are added to the total */

struct block {
    float sum[BLOCK_N * BLOCK_COLUMNS] __attribute__((aligned(64)));
    float dy[BLOCK_N * BLOCK_M] __attribute__((aligned(64)));             /* [n][m] */
    float x[BLOCK_PANELS * BLOCK_M * PANEL] __attribute__((aligned(64))); /* [panel][m][PANEL] */
};

/* Copies dy of pixels [first, first + count), transposed: one row per output, from output `from`
 * on. */
INLINE void take_dy(const struct matmul_gradient *job, int64_t first, int64_t count, int64_t from,
    enum dtype dtype, struct block *block) {
    for (int64_t j = 0; j < BLOCK_N; j += LANES)
        for (int64_t m = 0; m < count; m += LANES) {
            vu square[LANES];
            const int64_t left = job->n - from - j;
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                square[i] = (vu)(m + i < count && left > 0
                                     ? load_up_to(job->dy, dtype,
                                           (first + m + i) * job->n + from + j, left)
                                     : (vf){ 0 });
            transpose(square);
            for (int i = 0; i < LANES && j + i < BLOCK_N; i++)
                store(block->dy + (j + i) * BLOCK_M + m, (vf)square[i]);
        }
}

/* Returns the index of the pixel of x that a tap of output pixel `index` reads, or -1. */
static int64_t source(const struct matmul_gradient *job, int64_t index, int64_t tap) {
    if (job->taps == 1 && job->stride == 1)
        return index;
    const int64_t pixels = job->h_out * job->w_out, row = index / pixels;
    int64_t y = index % pixels / job->w_out * job->stride + tap / 3 - job->padding;
    int64_t x = index % job->w_out * job->stride + tap % 3 - job->padding;
    if (y < 0 || x < 0 || y >= (job->upsample ? job->h_out : job->h) ||
        x >= (job->upsample ? job->w_out : job->w))
        return -1;
    if (job->upsample) {
        y /= 2;
        x /= 2;
    }
    return (row * job->h + y) * job->w + x;
}

/* Copies the values of x that output pixels [first, first + count) read for one tap: two panels of
 * inputs, from input `from` on. */
INLINE void take_x(const struct matmul_gradient *job, int64_t first, int64_t count, int64_t tap,
    int64_t from, enum dtype dtype, struct block *block) {
    for (int64_t m = 0; m < count; m++) {
        const int64_t pixel = source(job, first + m, tap);
        for (int64_t c = 0; c < BLOCK_COLUMNS; c += LANES) {
            const int64_t left = job->k - from - c;
            store(block->x + (c / PANEL * BLOCK_M + m) * PANEL + c % PANEL,
                pixel >= 0 && left > 0 ? load_up_to(job->x, dtype, pixel * job->k + from + c, left)
                                       : (vf){ 0 });
        }
    }
}

static void add_sums(const struct matmul_gradient *job, int64_t from_n, int64_t tap, int64_t from_k,
    const struct block *block) {
    for (int64_t j = 0; j < BLOCK_N && from_n + j < job->n; j++)
        for (int64_t c = 0; c < BLOCK_COLUMNS && from_k + c < job->k; c += LANES)
            store_up_to(job->dw, DTYPE_F32, ((from_n + j) * job->taps + tap) * job->k + from_k + c,
                job->k - from_k - c, true, load(block->sum + j * BLOCK_COLUMNS + c));
}

/* Runs one task; `dtype` is a compile-time constant. */
INLINE void run_task(const struct matmul_gradient *job, int64_t from_n, int64_t tap, int64_t from_k,
    enum dtype dtype) {
    const int64_t pixels = job->rows * job->h_out * job->w_out;
    struct block block;
    for (int64_t first = 0; first < pixels; first += BLOCK_M) {
        const int64_t count = pixels - first < BLOCK_M ? pixels - first : BLOCK_M;
        take_dy(job, first, count, from_n, dtype, &block);
        take_x(job, first, count, tap, from_k, dtype, &block);
        for (int64_t j = 0; j < BLOCK_N && from_n + j < job->n; j += TILE_ROWS) {
            const float *rows[TILE_ROWS];
            for (int r = 0; r < TILE_ROWS; r++)
                rows[r] = block.dy + (j + r) * BLOCK_M;
            for (int p = 0; p < BLOCK_PANELS && from_k + p * PANEL < job->k; p++)
                MATMUL(tile_product)
            (TILE_ROWS, rows, 0, count, block.x + p * BLOCK_M * PANEL,
                block.sum + j * BLOCK_COLUMNS + p * PANEL, BLOCK_COLUMNS, first > 0);
        }
    }
    add_sums(job, from_n, tap, from_k, &block);
}

void MATMUL(gradient)(const struct matmul_gradient *job) {
    const int64_t outputs = (job->n + BLOCK_N - 1) / BLOCK_N;
    const int64_t inputs = (job->k + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
#pragma omp parallel for schedule(dynamic)
    for (int64_t item = 0; item < outputs * job->taps * inputs; item++) {
        const int64_t from_n = item / (job->taps * inputs) * BLOCK_N;
        const int64_t tap = item / inputs % job->taps, from_k = item % inputs * BLOCK_COLUMNS;
        if (job->bf16)
            run_task(job, from_n, tap, from_k, DTYPE_BF16);
        else
            run_task(job, from_n, tap, from_k, DTYPE_F32);
    }
}

/* Sums LANES channels of dy over the pixels of one row; `dtype` is a compile-time constant. */
INLINE vf sum_channels(
    const struct matmul_gradient *job, int64_t row, int64_t channel, enum dtype dtype) {
    const int64_t pixels = job->h_out * job->w_out;
    vf total = { 0 };
    for (int64_t first = 0; first < pixels; first += SUM_PIXELS) {
        vf sum = { 0 };
        for (int64_t i = first; i < first + SUM_PIXELS && i < pixels; i++)
            sum += load_up_to(
                job->dy, dtype, (row * pixels + i) * job->n + channel, job->n - channel);
        total += sum;
    }
    return total;
}

void MATMUL(gradient_sums)(const struct matmul_gradient *job, float *sums) {
    const int64_t vectors = (job->n + LANES - 1) / LANES;
#pragma omp parallel for
    for (int64_t item = 0; item < job->rows * vectors; item++) {
        const int64_t row = item / vectors, channel = item % vectors * LANES;
        store_up_to(sums, DTYPE_F32, row * job->n + channel, job->n - channel, false,
            job->bf16 ? sum_channels(job, row, channel, DTYPE_BF16)
                      : sum_channels(job, row, channel, DTYPE_F32));
    }
}
