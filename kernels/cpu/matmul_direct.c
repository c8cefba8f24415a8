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
#define GATHER_K 16 /* with fewer input channels, the nine taps are gathered first */

struct block {
    float sum[(BLOCK_ROWS + TILE_ROWS) * BLOCK_COLUMNS] __attribute__((aligned(64)));
    float weight[BLOCK_K * BLOCK_COLUMNS] __attribute__((aligned(64)));
    float gathered[BLOCK_ROWS * 9 * GATHER_K] __attribute__((aligned(64)));
    const float *rows[BLOCK_ROWS + TILE_ROWS];
};

/* The innermost loop of all products: two loads, TILE_ROWS broadcasts and 2 TILE_ROWS fused
 * multiply-adds per input. tile_whole and tile_part are separate functions so that the row pointers
 * stay in registers. With `accumulate`, a block's sum is added to the sum of the blocks before it,
 * which loses less precision than one long chain. */
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

/* The pixels of y that one pass computes: (top + step i, left + step j) for i < h, j < w of every
 * row. A grid is all of y, except in the gradient of a convolution with stride 2. There, each grid
 * has those pixels that are computed from the same taps. */
struct grid {
    int64_t step, top, left, h, w;
};

/* Returns the number of taps of a grid's pixels. Upsampling's gradient has 36: nine for each of a
 * pixel's four copies. */
static int64_t tap_count(const struct matmul_job *job) {
    return job->weight->taps * (job->weight->turned && job->upsample ? 4 : 1);
}

static bool tap_applies(const struct matmul_job *job, const struct grid *grid, int64_t tap) {
    return grid->step == 1 || (((grid->top + job->padding - tap / 3) & 1) == 0 &&
                                  ((grid->left + job->padding - tap % 3) & 1) == 0);
}

/* Returns the pixel that a tap of output pixel (y, x) reads, or NULL if it lies outside the
 * image. */
INLINE const float *source(
    const struct matmul_job *job, int64_t row, int64_t y, int64_t x, int64_t tap) {
    int64_t h = job->h, w = job->w;
    if (job->weight->turned) {
        if (job->upsample) {
            y = 2 * y + tap / 18;
            x = 2 * x + tap / 9 % 2;
            if (y >= h || x >= w) /* an odd size: the last pixel has one copy */
                return NULL;
            tap %= 9;
        }
        y += job->padding - tap / 3;
        x += job->padding - tap % 3;
        if (y < 0 || x < 0)
            return NULL;
        y /= job->stride;
        x /= job->stride;
    } else {
        y = y * job->stride + tap / 3 - job->padding;
        x = x * job->stride + tap % 3 - job->padding;
        if (y < 0 || x < 0)
            return NULL;
        if (job->upsample) {
            if (y >= job->h_out || x >= job->w_out)
                return NULL;
            y /= 2;
            x /= 2;
        }
    }
    return y < h && x < w ? (const float *)job->x + ((row * h + y) * w + x) * job->weight->k : NULL;
}

/* rows[r] = the input pixel that tap `tap` of the grid's pixel first + r reads. */
static void find_rows(const struct matmul_job *job, const struct grid *grid, int64_t tap,
    int64_t first, int count, const float **rows) {
    const struct matmul_weight *weight = job->weight;
    if (weight->taps == 1 && job->stride == 1) {
        for (int r = 0; r < count; r++)
            rows[r] = (const float *)job->x + (first + r) * weight->k;
    } else {
        int64_t pixels = grid->h * grid->w;
        int64_t row = first / pixels, i = first % pixels / grid->w, j = first % grid->w;
        for (int r = 0; r < count; r++) {
            rows[r] = source(
                job, row, grid->top + i * grid->step, grid->left + j * grid->step, tap);
            if (!rows[r])
                rows[r] = weight->zeros;
            if (++j == grid->w) {
                j = 0;
                if (++i == grid->h) {
                    i = 0;
                    row++;
                }
            }
        }
    }
    for (int r = count; r < count + TILE_ROWS; r++)
        rows[r] = rows[0]; /* fills the tile; the result is not used */
}

/* Returns the index in y of the grid's pixel `index`. */
static int64_t pixel_of(const struct matmul_job *job, const struct grid *grid, int64_t index) {
    if (grid->step == 1)
        return index;
    int64_t pixels = grid->h * grid->w, row = index / pixels;
    int64_t y = grid->top + index % pixels / grid->w * grid->step;
    return (row * job->h_out + y) * job->w_out + grid->left + index % grid->w * grid->step;
}

/* For few input channels: puts the nine taps of each pixel side by side, as one row of 9 k
 * inputs. */
static void gather_taps(const struct matmul_job *job, const struct grid *grid, int64_t first,
    int count, struct block *block) {
    int64_t k = job->weight->k;
    for (int64_t tap = 0; tap < 9; tap++) {
        find_rows(job, grid, tap, first, count, block->rows);
        for (int r = 0; r < count; r++)
            memcpy(block->gathered + (r * 9 + tap) * k, block->rows[r], k * sizeof(float));
    }
    for (int r = 0; r < count + TILE_ROWS; r++)
        block->rows[r] = block->gathered + (r < count ? r : 0) * 9 * k;
}

/* Transposes LANES x LANES elements of a panel, from `at` on, to `out`. Rows are PANEL apart in
 * both. Prefetches the elements needed next, `next` elements further: they lie in another panel,
 * often on another page, where the processor's prefetchers do not look. */
INLINE void turn_square(const void *panels, bool bf16, int64_t at, int64_t next, float *out) {
    vu square[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        square[i] = (vu)load_as(panels, bf16 ? DTYPE_BF16 : DTYPE_F32, at + i * PANEL);
        __builtin_prefetch((const char *)panels + (at + i * PANEL + next) * (bf16 ? 2 : 4));
    }
    transpose(square);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        store(out + i * PANEL, (vf)square[i]);
}

/* Does what turn_square does for `count` inputs of the turned weight and `lanes` of its outputs.
 * The other outputs become zero. */
static void turn_part(
    const void *panels, bool bf16, int64_t at, int64_t count, int64_t lanes, float *out) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < PANEL; j++) {
            int64_t from = at + j * PANEL + i;
            out[i * PANEL + j] = j >= lanes ? 0.0f
                                 : bf16     ? bf16_to_f32(((const uint16_t *)panels)[from])
                                            : ((const float *)panels)[from];
        }
}

/* Transposes `count` inputs of the turned weight, which lie side by side in a panel, for PANEL
 * outputs. */
static void turn_run(const void *panels, bool bf16, int64_t at, int64_t next, int64_t count,
    int64_t lanes, float *out) {
    int64_t i = 0;
    for (; lanes >= PANEL && i + LANES <= count; i += LANES)
        for (int j = 0; j < PANEL; j += LANES) {
            if (bf16)
                turn_square(panels, true, at + i + j * PANEL, next, out + i * PANEL + j);
            else
                turn_square(panels, false, at + i + j * PANEL, next, out + i * PANEL + j);
        }
    turn_part(panels, bf16, at + i, count - i, lanes, out + i * PANEL);
}

void MATMUL(turned_block)(const struct matmul_weight *weight, int64_t panel, int64_t position,
    int64_t length, float *out) {
    const struct matmul_weight *own = weight->turned;
    const int64_t half = own->geglu ? own->n / 2 : own->n, first = panel * PANEL;
    const int64_t lanes = own->k - first, next = own->taps * own->k * PANEL * (own->geglu ? 2 : 1);
    while (length > 0) {
        int64_t tap = position / own->n, n = position % own->n;
        int64_t column = n % half, lane = column % PANEL;
        int64_t from = own->geglu ? column / PANEL * 2 + n / half : column / PANEL;
        int64_t run = PANEL - lane < half - column ? PANEL - lane : half - column;
        run = run < length ? run : length;
        turn_run(own->panels, own->bf16, ((from * own->taps + tap) * own->k + first) * PANEL + lane,
            next, run, lanes, out);
        position += run;
        length -= run;
        out += run * PANEL;
    }
}

/* Returns the panel's inputs [position, position + k) in f32: a part of the weight itself, or a
 * copy in `scratch`. */
static const float *panel_block(const struct matmul_weight *weight, int64_t panel, int64_t position,
    int64_t k, float *scratch) {
    if (weight->turned) {
        MATMUL(turned_block)(weight, panel, position, k, scratch);
        return scratch;
    }
    int64_t offset = (panel * weight->taps * weight->k + position) * PANEL;
    if (!weight->bf16)
        return (const float *)weight->panels + offset;
    const uint16_t *source = (const uint16_t *)weight->panels + offset;
    for (int64_t i = 0; i < k * PANEL; i += LANES)
        store(scratch + i, load_bf16(source + i));
    return scratch;
}

/* block->sum = the sums of `count` output pixels from `first` on, for `panels` panels. */
static void sum_block(const struct matmul_job *job, const struct grid *grid, int64_t first,
    int count, int64_t panel, int panels, struct block *block) {
    const struct matmul_weight *weight = job->weight;
    bool gather = tap_count(job) == 9 && weight->k < GATHER_K && grid->step == 1;
    int64_t taps = gather ? 1 : tap_count(job), k = gather ? 9 * weight->k : weight->k;
    int64_t blocks = (k + BLOCK_K - 1) / BLOCK_K, step = (k + blocks - 1) / blocks;
    bool more = false;
    if (weight->turned) /* whole squares for turn_square */
        step = (step + PANEL - 1) / PANEL * PANEL;
    if (gather)
        gather_taps(job, grid, first, count, block);
    for (int64_t tap = 0; tap < taps; tap++) {
        if (!tap_applies(job, grid, tap))
            continue;
        if (!gather)
            find_rows(job, grid, tap, first, count, block->rows);
        for (int64_t at = 0; at < k; at += step) {
            int64_t length = at + step < k ? step : k - at;
            const float *weights[BLOCK_PANELS];
            for (int p = 0; p < panels; p++)
                weights[p] = panel_block(weight, panel + p, tap % 9 * k + at, length,
                    block->weight + p * BLOCK_K * PANEL);
            for (int r = 0, tile; r < count; r += tile) {
                tile = tile_rows(count - r);
                for (int p = 0; p < panels; p++)
                    MATMUL(tile_product)
                (tile, block->rows + r, at, length, weights[p],
                    block->sum + r * BLOCK_COLUMNS + p * PANEL, BLOCK_COLUMNS, more);
            }
            more = true;
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
            v += load_lanes(
                job->row_add, row * job->row_add_step + column + c, lanes, job->row_add_bf16);
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

/* Does what finish_row does for a pair of panels: y = first panel * gelu(second panel) +
 * residual. */
static void finish_row_geglu(const struct matmul_job *job, int64_t pixel, int64_t column,
    int columns, const float *sum, const float *bias) {
    int64_t at = pixel * job->weight->n / 2 + column;
    for (int c = 0; c < columns; c += LANES)
        finish_gate(load(sum + c) + load(bias + c), load(sum + PANEL + c) + load(bias + PANEL + c),
            job->residual, job->y, at + c, columns - c < LANES ? columns - c : LANES, false);
}

static void finish_block(const struct matmul_job *job, const struct grid *grid, int64_t first,
    int count, int64_t panel, int panels, const struct block *block) {
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
            (gate ? finish_row_geglu : finish_row)(
                job, pixel_of(job, grid, first + r), column, columns, sum, bias);
        }
    }
}

static void run_grid(const struct matmul_job *job, const struct grid *grid) {
    int64_t pixels = job->rows * grid->h * grid->w;
    int64_t panel_count = job->weight->panel_count;
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t first = 0; first < pixels; first += BLOCK_ROWS) {
        for (int64_t panel = 0; panel < panel_count; panel += BLOCK_PANELS) {
            struct block block;
            int count = pixels - first < BLOCK_ROWS ? (int)(pixels - first) : BLOCK_ROWS;
            int64_t left = panel_count - panel;
            int panels = left < BLOCK_PANELS ? (int)left : BLOCK_PANELS;
            sum_block(job, grid, first, count, panel, panels, &block);
            finish_block(job, grid, first, count, panel, panels, &block);
        }
    }
}

void MATMUL(direct)(const struct matmul_job *job) {
    const int64_t step = job->weight->turned ? job->stride : 1;
    for (int64_t top = 0; top < step && top < job->h_out; top++)
        for (int64_t left = 0; left < step && left < job->w_out; left++) {
            const struct grid grid = { .step = step,
                .top = top,
                .left = left,
                .h = (job->h_out - top + step - 1) / step,
                .w = (job->w_out - left + step - 1) / step };
            run_grid(job, &grid);
        }
}

/* y = h[..][..n/2] * gelu(h[..][n/2..]) + residual. `bf16` is a compile-time constant. */
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
    .gradient = MATMUL(gradient),
    .gradient_sums = MATMUL(gradient_sums),
    .geglu = MATMUL(geglu),
};
