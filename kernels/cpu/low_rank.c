/* low_rank: y += scale * up (down x) of each row's own terms.
 *
 * A task takes TOKENS tokens of one row, so that x is read once for all terms of the row (a stacked
 * weight has several) and y is updated while it is in the cache:
 *
 *   t[panel][token][16] = scale * x . down    a block of STEP inputs at a time, expanded to f32
 *   y[token][first..] += t . up               terms to the same outputs together, one rounding
 *
 * Register tiles have TILE tokens by one panel of 16 ranks or outputs. The block of x and t lie in
 * rows of one fixed length, so that the tokens of a tile are offsets and need no registers. All is
 * f32: the work is a hundredth of the layer's own.
 */
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"

#include <omp.h>

#define VECTORS (LOW_RANK_PANEL / LANES) /* of a panel */
#if LANES == 16
#define TILE 16 /* accumulators of 32 registers */
#define TOKENS 64
#else
#define TILE (12 / VECTORS) /* 12 accumulators of 16 registers */
#define TOKENS 66
#endif
#define STEP 320

_Static_assert(TOKENS % TILE == 0, "a task is whole tiles");

/* How the taps of an output token find their pixel. */
struct walk {
    int64_t taps, stride, before, shift, limit_h, limit_w, w, w_out;
};

/* One task: tokens first .. first + count - 1 of one row. */
struct task {
    const struct low_rank_row *row;
    enum dtype dtype;
    const void *x; /* the row's */
    void *y;
    int64_t k, channels, first;
    int count;
    float *block; /* [TOKENS][STEP] */
    float *t;     /* [panels of all terms][TOKENS][16] */
};

static struct walk walk_of(const struct low_rank_args *args) {
    const int64_t *in = args->x->shape, *out = args->y->shape;
    const bool up = args->kind == CONV_3X3_UP;
    if (args->kind == CONV_1X1)
        return (struct walk){ .taps = 1 };
    return (struct walk){ .taps = 9,
        .stride = args->kind == CONV_3X3_DOWN || args->kind == CONV_3X3_DOWN_RIGHT ? 2 : 1,
        .before = args->kind == CONV_3X3_DOWN_RIGHT ? 0 : 1,
        .shift = up,
        .limit_h = up ? out[1] : in[1],
        .limit_w = up ? out[2] : in[2],
        .w = in[2],
        .w_out = out[2] };
}

/* The token of x that tap `tap` of output token `token` reads, or -1. */
static int64_t source(const struct walk *w, int64_t token, int64_t tap) {
    if (w->taps == 1)
        return token;
    const int64_t y = token / w->w_out * w->stride + tap / 3 - w->before;
    const int64_t x = token % w->w_out * w->stride + tap % 3 - w->before;
    if (y < 0 || y >= w->limit_h || x < 0 || x >= w->limit_w)
        return -1;
    return (y >> w->shift) * w->w + (x >> w->shift);
}

/* `dtype` is a constant. */
INLINE void expand(float *to, const void *x, enum dtype dtype, int64_t at, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store(to + i, load_as(x, dtype, at + i));
    if (i < count) {
        vf last = load_some(x, dtype, at + i, count - i);
        memcpy(to + i, &last, (size_t)(count - i) * sizeof(float));
    }
}

/* The block's rows become inputs [from, from + count) of the tokens' pixels under `tap`, zeros
 * outside the image and behind the last token of a tile. */
static void fill_block(
    const struct task *t, const struct walk *walk, int64_t tap, int64_t from, int64_t count) {
    for (int token = 0; token < (t->count + TILE - 1) / TILE * TILE; token++) {
        float *to = t->block + token * STEP;
        const int64_t at = token < t->count ? source(walk, t->first + token, tap) : -1;
        if (at < 0)
            memset(to, 0, (size_t)count * sizeof(float));
        else if (t->dtype == DTYPE_F32)
            expand(to, t->x, DTYPE_F32, at * t->k + from, count);
        else
            expand(to, t->x, DTYPE_BF16, at * t->k + from, count);
    }
}

/* sums[token][16] = or += sum over i < count of rows[token][i] panel[i][16], for a tile of tokens
 * whose rows are `stride` floats apart, a constant. */
INLINE void tile_product(
    const float *rows, int64_t stride, const float *panel, int64_t count, vf sums[TILE][VECTORS]) {
    for (int64_t i = 0; i < count; i++) {
        vf p[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            p[v] = load(panel + i * LOW_RANK_PANEL + v * LANES);
#pragma GCC unroll 16
        for (int token = 0; token < TILE; token++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++)
                sums[token][v] += rows[token * stride + i] * p[v];
    }
}

/* t[token][16] (+)= block . panel for one tile; at the end times `scale`. A function of its own, so
 * that the sums stay in registers. */
static __attribute__((noinline)) void tile_inner(
    const float *block, const float *panel, int64_t count, bool more, float scale, float *t) {
    vf sums[TILE][VECTORS] = { { { 0 } } };
    tile_product(block, STEP, panel, count, sums);
#pragma GCC unroll 16
    for (int token = 0; token < TILE; token++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            float *to = t + token * LOW_RANK_PANEL + v * LANES;
            store(to, (more ? load(to) + sums[token][v] : sums[token][v]) * scale);
        }
}

/* All panels of one term: t (+)= block . down. */
static void inner_products(const struct task *task, const struct low_rank_term *term, int64_t inner,
    int64_t at, int64_t count, bool last, float *t) {
    for (int64_t panel = 0; panel * LOW_RANK_PANEL < term->rank; panel++) {
        const float *down = term->down + (panel * inner + at) * LOW_RANK_PANEL;
        for (int token = 0; token < task->count; token += TILE)
            tile_inner(task->block + token * STEP, down, count, at > 0, last ? term->scale : 1.0f,
                t + (panel * TOKENS + token) * LOW_RANK_PANEL);
    }
}

static int64_t panels_of(const struct low_rank_term *term) {
    return (term->rank + LOW_RANK_PANEL - 1) / LOW_RANK_PANEL;
}

/* t of all terms of the row. */
static void make_inner(const struct task *task, const struct walk *walk) {
    const int64_t inner = walk->taps * task->k;
    for (int64_t tap = 0; tap < walk->taps; tap++) {
        for (int64_t from = 0; from < task->k; from += STEP) {
            const int64_t count = task->k - from < STEP ? task->k - from : STEP;
            const int64_t at = tap * task->k + from;
            float *t = task->t;
            fill_block(task, walk, tap, from, count);
            for (int i = 0; i < task->row->count; i++) {
                const struct low_rank_term *term = &task->row->terms[i];
                inner_products(task, term, inner, at, count, at + count == inner, t);
                t += panels_of(term) * TOKENS * LOW_RANK_PANEL;
            }
        }
    }
}

INLINE bool same_outputs(const struct low_rank_term *a, const struct low_rank_term *b) {
    return a->first == b->first && a->n == b->n;
}

/* What terms `from` and those behind it to the same outputs add to a panel of outputs, for one
 * tile. t: that of term `from`. */
INLINE void outer_sums(const struct low_rank_row *row, int from, int64_t panel, const float *t,
    vf sums[TILE][VECTORS]) {
    for (int i = from; i < row->count; i++) {
        const struct low_rank_term *term = &row->terms[i];
        if (same_outputs(term, &row->terms[from])) {
            const float *up = term->up + panel * term->rank * LOW_RANK_PANEL;
            for (int64_t r = 0; r < term->rank; r += LOW_RANK_PANEL)
                tile_product(t + r * TOKENS, LOW_RANK_PANEL, up + r * LOW_RANK_PANEL,
                    term->rank - r < LOW_RANK_PANEL ? term->rank - r : LOW_RANK_PANEL, sums);
        }
        t += panels_of(term) * TOKENS * LOW_RANK_PANEL;
    }
}

/* y[token][at..] += sums of `lanes` outputs. `dtype` is a constant. */
INLINE void add_sums(void *y, enum dtype dtype, int64_t at, int64_t lanes, const vf *sums) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        const int64_t here = lanes - v * LANES, i = at + v * LANES;
        if (here >= LANES)
            store_as(y, dtype, i, load_as(y, dtype, i) + sums[v]);
        else if (here > 0)
            store_some(y, dtype, i, here, load_some(y, dtype, i, here) + sums[v]);
    }
}

/* One tile, from token `token` of the task on, of the outputs of term `from`. */
static __attribute__((noinline)) void tile_outer(
    const struct task *task, int from, const float *t, int token) {
    const struct low_rank_term *term = &task->row->terms[from];
    const int tokens = task->count - token < TILE ? task->count - token : TILE;
    for (int64_t column = 0; column < term->n; column += LOW_RANK_PANEL) {
        vf sums[TILE][VECTORS] = { { { 0 } } };
        outer_sums(task->row, from, column / LOW_RANK_PANEL, t + token * LOW_RANK_PANEL, sums);
#pragma GCC unroll 16
        for (int i = 0; i < TILE; i++) {
            const int64_t at = (task->first + token + i) * task->channels + term->first + column;
            if (i < tokens && task->dtype == DTYPE_F32)
                add_sums(task->y, DTYPE_F32, at, term->n - column, sums[i]);
            else if (i < tokens)
                add_sums(task->y, DTYPE_BF16, at, term->n - column, sums[i]);
        }
    }
}

static void add_outer(const struct task *task) {
    const struct low_rank_row *row = task->row;
    const float *t = task->t;
    for (int i = 0; i < row->count; i++) {
        bool done = false;
        for (int before = 0; before < i; before++)
            done = done || same_outputs(&row->terms[before], &row->terms[i]);
        for (int token = 0; !done && token < task->count; token += TILE)
            tile_outer(task, i, t, token);
        t += panels_of(&row->terms[i]) * TOKENS * LOW_RANK_PANEL;
    }
}

/* Floats of one thread's scratch. */
static int64_t scratch_floats(const struct low_rank_args *args, int64_t rows) {
    int64_t most = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t panels = 0;
        for (int i = 0; i < args->rows[row].count; i++)
            panels += panels_of(&args->rows[row].terms[i]);
        most = panels > most ? panels : most;
    }
    return TOKENS * (STEP + most * LOW_RANK_PANEL);
}

bool NAME(low_rank)(const struct low_rank_args *args, struct error *err) {
    const int64_t rows = args->x->shape[0], k = args->x->shape[args->x->rank - 1];
    const int64_t channels = args->y->shape[args->y->rank - 1];
    const int64_t tokens = tensor_elements(args->y) / rows / channels;
    const int64_t blocks = (tokens + TOKENS - 1) / TOKENS, own = scratch_floats(args, rows);
    const size_t element = dtype_size(args->y->dtype);
    const struct walk walk = walk_of(args);
    float *scratch = cpu_scratch((size_t)(own * omp_get_max_threads()) * sizeof(float), err);
    if (!scratch || cpu_plans())
        return scratch != NULL;
#pragma omp parallel for schedule(dynamic)
    for (int64_t item = 0; item < rows * blocks; item++) {
        const int64_t row = item / blocks, first = item % blocks * TOKENS;
        if (!args->rows[row].count)
            continue;
        float *block = scratch + omp_get_thread_num() * own;
        const struct task task = { .row = &args->rows[row],
            .dtype = args->y->dtype,
            .x = (const char *)args->x->data +
                 (size_t)(row * (tensor_elements(args->x) / rows)) * element,
            .y = (char *)args->y->data + (size_t)(row * tokens * channels) * element,
            .k = k,
            .channels = channels,
            .first = first,
            .count = tokens - first < TOKENS ? (int)(tokens - first) : TOKENS,
            .block = block,
            .t = block + TOKENS * STEP };
        make_inner(&task, &walk);
        add_outer(&task);
    }
    return true;
}
