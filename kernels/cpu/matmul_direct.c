/* The direct product: linear layers, 1x1, strided and small convolutions.
 *
 *   y[i][j] = act(sum over taps t and channels c of x[pixel(i, t)][c] W[j][t][c] + bias[j]) + ...
 *
 * Work is cut into tasks of BLOCK_ROWS output pixels by BLOCK_PANELS panels of output channels. A
 * task walks the inputs in blocks of at most BLOCK_K: it expands that block of the weight to f32
 * (a few percent of its time, and only for bf16), then TILE_ROWS x PANEL products accumulate in
 * registers. Input pixels are reached through row pointers, so that a 3x3 convolution needs no
 * im2col; a tap outside the image reads a row of zeros.
 */
#include "kernels/cpu/matmul_isa.h"

#define BLOCK_ROWS 192 /* a multiple of every TILE_ROWS */
#define BLOCK_PANELS (64 / PANEL)
#define BLOCK_COLUMNS (BLOCK_PANELS * PANEL)
#define GATHER_K 16 /* fewer input channels than this are gathered over the nine taps first */

struct block {
    float sum[(BLOCK_ROWS + TILE_ROWS) * BLOCK_COLUMNS] __attribute__((aligned(64)));
    float weight[BLOCK_K * BLOCK_COLUMNS] __attribute__((aligned(64)));
    float gathered[BLOCK_ROWS * 9 * GATHER_K] __attribute__((aligned(64)));
    const float *rows[BLOCK_ROWS + TILE_ROWS];
};

/* The heart of everything: two loads, TILE_ROWS broadcasts and 2 TILE_ROWS fused multiply-adds an
 * input. Functions of their own, so that the row pointers stay in registers. Accumulating adds a
 * block's sum to the sum of the blocks before: long sums lose less than in one chain. */
static inline __attribute__((always_inline)) void tile_sum(int count, const float *const *rows,
    int64_t at, int64_t k, const float *weight, float *sum, int64_t stride, bool accumulate) {
    vf acc[TILE_ROWS][2];
    const float *row[TILE_ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < count; r++) {
        row[r] = rows[r] + at;
        acc[r][0] = acc[r][1] = (vf){ 0 };
    }
    for (int64_t i = 0; i < k; i++) {
        vf w0 = load(weight + i * PANEL), w1 = load(weight + i * PANEL + LANES);
#pragma GCC unroll 16
        for (int r = 0; r < count; r++) {
            acc[r][0] += row[r][i] * w0;
            acc[r][1] += row[r][i] * w1;
        }
    }
    if (accumulate) {
#pragma GCC unroll 16
        for (int r = 0; r < count; r++) {
            acc[r][0] += load(sum + r * stride);
            acc[r][1] += load(sum + r * stride + LANES);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < count; r++) {
        store(sum + r * stride, acc[r][0]);
        store(sum + r * stride + LANES, acc[r][1]);
    }
}

static __attribute__((noinline)) void tile_whole(const float *const *rows, int64_t at, int64_t k,
    const float *weight, float *sum, int64_t stride, bool accumulate) {
    tile_sum(TILE_ROWS, rows, at, k, weight, sum, stride, accumulate);
}

static __attribute__((noinline)) void tile_part(const float *const *rows, int64_t at, int64_t k,
    const float *weight, float *sum, int64_t stride, bool accumulate) {
    tile_sum(TILE_PART, rows, at, k, weight, sum, stride, accumulate);
}

void MATMUL(tile_product)(int count, const float *const *rows, int64_t at, int64_t k,
    const float *weight, float *sum, int64_t stride, bool accumulate) {
    (count == TILE_ROWS ? tile_whole : tile_part)(rows, at, k, weight, sum, stride, accumulate);
}

/* rows[r] = the input pixel that tap (dy, dx) of output pixel first + r reads. */
static void find_rows(
    const struct matmul_job *job, int64_t tap, int64_t first, int count, const float **rows) {
    const struct matmul_weight *weight = job->weight;
    if (weight->taps == 1 && job->stride == 1) {
        for (int r = 0; r < count; r++)
            rows[r] = (const float *)job->x + (first + r) * weight->k;
    } else {
        int64_t pixels = job->h_out * job->w_out;
        int64_t row = first / pixels, oy = first % pixels / job->w_out, ox = first % job->w_out;
        int64_t h_in = job->upsample ? job->h_out : job->h;
        int64_t w_in = job->upsample ? job->w_out : job->w;
        for (int r = 0; r < count; r++) {
            int64_t y = oy * job->stride + tap / 3 - job->padding;
            int64_t x = ox * job->stride + tap % 3 - job->padding;
            bool inside = y >= 0 && y < h_in && x >= 0 && x < w_in;
            if (job->upsample) {
                y /= 2;
                x /= 2;
            }
            rows[r] = inside ? (const float *)job->x + ((row * job->h + y) * job->w + x) * weight->k
                             : weight->zeros;
            if (++ox == job->w_out) {
                ox = 0;
                if (++oy == job->h_out) {
                    oy = 0;
                    row++;
                }
            }
        }
    }
    for (int r = count; r < count + TILE_ROWS; r++)
        rows[r] = rows[0]; /* computed and thrown away */
}

/* With few input channels: the nine taps of each pixel side by side, as one row of 9 k inputs. */
static void gather_taps(
    const struct matmul_job *job, int64_t first, int count, struct block *block) {
    int64_t k = job->weight->k;
    for (int64_t tap = 0; tap < 9; tap++) {
        find_rows(job, tap, first, count, block->rows);
        for (int r = 0; r < count; r++)
            memcpy(block->gathered + (r * 9 + tap) * k, block->rows[r], k * sizeof(float));
    }
    for (int r = 0; r < count + TILE_ROWS; r++)
        block->rows[r] = block->gathered + (r < count ? r : 0) * 9 * k;
}

/* The panel's inputs [position, position + k) in f32: the weight itself, or expanded to `scratch`.
 */
static const float *panel_block(const struct matmul_weight *weight, int64_t panel, int64_t position,
    int64_t k, float *scratch) {
    int64_t offset = (panel * weight->taps * weight->k + position) * PANEL;
    if (!weight->bf16)
        return (const float *)weight->panels + offset;
    const uint16_t *source = (const uint16_t *)weight->panels + offset;
    for (int64_t i = 0; i < k * PANEL; i += LANES)
        store(scratch + i, load_bf16(source + i));
    return scratch;
}

/* block->sum = the sums of `count` output pixels from `first` on and `panels` panels. */
static void sum_block(const struct matmul_job *job, int64_t first, int count, int64_t panel,
    int panels, struct block *block) {
    const struct matmul_weight *weight = job->weight;
    bool gather = weight->taps == 9 && weight->k < GATHER_K;
    int64_t taps = gather ? 1 : weight->taps, k = gather ? 9 * weight->k : weight->k;
    int64_t blocks = (k + BLOCK_K - 1) / BLOCK_K, step = (k + blocks - 1) / blocks;
    if (gather)
        gather_taps(job, first, count, block);
    for (int64_t tap = 0; tap < taps; tap++) {
        if (!gather)
            find_rows(job, tap, first, count, block->rows);
        for (int64_t at = 0; at < k; at += step) {
            int64_t length = at + step < k ? step : k - at;
            const float *weights[BLOCK_PANELS];
            for (int p = 0; p < panels; p++)
                weights[p] = panel_block(
                    weight, panel + p, tap * k + at, length, block->weight + p * BLOCK_K * PANEL);
            for (int r = 0, tile; r < count; r += tile) {
                tile = tile_rows(count - r);
                for (int p = 0; p < panels; p++)
                    MATMUL(tile_product)
                (tile, block->rows + r, at, length, weights[p],
                    block->sum + r * BLOCK_COLUMNS + p * PANEL, BLOCK_COLUMNS, tap > 0 || at > 0);
            }
        }
    }
}

/* Writes `columns` of y's columns from `column` on, for output pixel `pixel`; `sum` and `bias` are
 * padded to whole vectors. */
static void finish_row(const struct matmul_job *job, int64_t pixel, int64_t column, int columns,
    const float *sum, const float *bias) {
    int64_t n = job->weight->n, at = pixel * n + column;
    int64_t row = pixel / (job->h_out * job->w_out);
    for (int c = 0; c < columns; c += LANES) {
        int lanes = columns - c < LANES ? columns - c : LANES;
        vf v = vf_activate(job->activation, load(sum + c) + load(bias + c));
        if (job->row_add)
            v += load_lanes(job->row_add, row * n + column + c, lanes, job->row_add_bf16);
        if (job->residual)
            v += load_lanes(job->residual, at + c, lanes, false);
        store_lanes(job->y, at + c, v, lanes, false);
    }
}

/* y[at..] = a * gelu(gate) + residual[at..] */
INLINE void finish_gate(
    vf a, vf gate, const void *residual, void *y, int64_t at, int lanes, bool bf16) {
    vf v = a * vf_gelu(gate);
    if (residual)
        v += load_lanes(residual, at, lanes, bf16);
    store_lanes(y, at, v, lanes, bf16);
}

/* As finish_row for a pair of panels: first half times gelu of the gate. */
static void finish_row_geglu(const struct matmul_job *job, int64_t pixel, int64_t column,
    int columns, const float *sum, const float *bias) {
    int64_t at = pixel * job->weight->n / 2 + column;
    for (int c = 0; c < columns; c += LANES)
        finish_gate(load(sum + c) + load(bias + c), load(sum + PANEL + c) + load(bias + PANEL + c),
            job->residual, job->y, at + c, columns - c < LANES ? columns - c : LANES, false);
}

static void finish_block(const struct matmul_job *job, int64_t first, int count, int64_t panel,
    int panels, const struct block *block) {
    const struct matmul_weight *weight = job->weight;
    const bool gate = weight->geglu && !job->ungated;
    int64_t n = weight->geglu ? weight->n / 2 : weight->n;
    for (int r = 0; r < count; r++) {
        for (int p = 0; p < panels; p += gate ? 2 : 1) {
            int64_t column = (weight->geglu ? (panel + p) / 2 : panel + p) * PANEL;
            int columns = n - column < PANEL ? (int)(n - column) : PANEL;
            const float *sum = block->sum + r * BLOCK_COLUMNS + p * PANEL;
            const float *bias = weight->bias + (panel + p) * PANEL;
            if (weight->geglu && !gate)
                column += (panel + p) % 2 * n;
            (gate ? finish_row_geglu : finish_row)(job, first + r, column, columns, sum, bias);
        }
    }
}

void MATMUL(direct)(const struct matmul_job *job) {
    int64_t pixels = job->rows * job->h_out * job->w_out;
    int64_t panel_count = job->weight->panel_count;
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t first = 0; first < pixels; first += BLOCK_ROWS) {
        for (int64_t panel = 0; panel < panel_count; panel += BLOCK_PANELS) {
            struct block block;
            int count = pixels - first < BLOCK_ROWS ? (int)(pixels - first) : BLOCK_ROWS;
            int64_t left = panel_count - panel;
            int panels = left < BLOCK_PANELS ? (int)left : BLOCK_PANELS;
            sum_block(job, first, count, panel, panels, &block);
            finish_block(job, first, count, panel, panels, &block);
        }
    }
}

/* `bf16` is a constant. */
INLINE void gate_rows(
    const void *h, int64_t rows, int64_t n, bool bf16, const void *residual, void *y) {
    int64_t half = n / 2;
#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t c = 0; c < half; c += LANES) {
            int lanes = half - c < LANES ? (int)(half - c) : LANES;
            finish_gate(load_lanes(h, i * n + c, lanes, bf16),
                load_lanes(h, i * n + half + c, lanes, bf16), residual, y, i * half + c, lanes,
                bf16);
        }
    }
}

void MATMUL(geglu)(
    const void *h, int64_t rows, int64_t n, enum dtype dtype, const void *residual, void *y) {
    if (dtype == DTYPE_BF16)
        gate_rows(h, rows, n, true, residual, y);
    else
        gate_rows(h, rows, n, false, residual, y);
}

const struct matmul MATMUL(table) = {
    .name = MATMUL_TEXT(ISA),
    .width = PANEL,
    .direct = MATMUL(direct),
    .winograd = MATMUL(winograd),
    .winograd_scratch = MATMUL(winograd_scratch),
    .geglu = MATMUL(geglu),
};
