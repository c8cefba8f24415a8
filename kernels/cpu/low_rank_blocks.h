/* Code shared by low_rank (low_rank.c) and its gradient (low_rank_backward.c): mapping tokens to
 * pixels, and the product of a block of tokens with the thin side of a factor. */
#ifndef KERNELS_CPU_LOW_RANK_BLOCKS_H
#define KERNELS_CPU_LOW_RANK_BLOCKS_H

#include "kernels/cpu/simd.h"

#define VECTORS (LOW_RANK_PANEL / LANES) /* vectors of a panel */
#if LANES == 16
#define TILE 16 /* accumulators of 32 registers */
#define TOKENS 64
#else
#define TILE (12 / VECTORS) /* 12 accumulators of 16 registers */
#define TOKENS 66
#endif
#define STEP 320

_Static_assert(TOKENS % TILE == 0, "a task is whole tiles");

/* How to find the pixel that a tap of an output token reads. */
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

static inline struct walk walk_of(
    enum conv_kind kind, const struct tensor *x, const struct tensor *y) {
    const int64_t *in = x->shape, *out = y->shape;
    const bool up = kind == CONV_3X3_UP;
    if (kind == CONV_1X1)
        return (struct walk){ .taps = 1 };
    return (struct walk){ .taps = 9,
        .stride = kind == CONV_3X3_DOWN || kind == CONV_3X3_DOWN_RIGHT ? 2 : 1,
        .before = kind == CONV_3X3_DOWN_RIGHT ? 0 : 1,
        .shift = up,
        .limit_h = up ? out[1] : in[1],
        .limit_w = up ? out[2] : in[2],
        .w = in[2],
        .w_out = out[2] };
}

/* The token of x that tap `tap` of output token `token` reads, or -1. */
static inline int64_t source(const struct walk *w, int64_t token, int64_t tap) {
    if (w->taps == 1)
        return token;
    const int64_t y = token / w->w_out * w->stride + tap / 3 - w->before;
    const int64_t x = token % w->w_out * w->stride + tap % 3 - w->before;
    if (y < 0 || y >= w->limit_h || x < 0 || x >= w->limit_w)
        return -1;
    return (y >> w->shift) * w->w + (x >> w->shift);
}

/* Converts `count` elements to f32. `dtype` is a compile-time constant. */
INLINE void expand(float *to, const void *x, enum dtype dtype, int64_t at, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store(to + i, load_as(x, dtype, at + i));
    if (i < count) {
        vf last = load_some(x, dtype, at + i, count - i);
        memcpy(to + i, &last, (size_t)(count - i) * sizeof(float));
    }
}

/* Fills the block's rows with inputs [from, from + count) of the tokens' pixels under `tap`; zeros
 * outside the image and after the last token of a tile. */
static inline void fill_block(
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

/* sums[token][16] += sum over i < count of rows[token][i] panel[i][16], for a tile of tokens whose
 * rows are `stride` floats apart; `stride` is a compile-time constant. */
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

/* t[token][16] (+)= block . panel for one tile, then times `scale`. `more`: add to t. This is a
 * separate function so that the sums stay in registers. */
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

/* For all panels of one term: t (+)= block . down. */
static inline void inner_products(const struct task *task, const struct low_rank_term *term,
    int64_t inner, int64_t at, int64_t count, bool last, float *t) {
    for (int64_t panel = 0; panel * LOW_RANK_PANEL < term->rank; panel++) {
        const float *down = term->down + (panel * inner + at) * LOW_RANK_PANEL;
        for (int token = 0; token < task->count; token += TILE)
            tile_inner(task->block + token * STEP, down, count, at > 0, last ? term->scale : 1.0f,
                t + (panel * TOKENS + token) * LOW_RANK_PANEL);
    }
}

static inline int64_t panels_of(const struct low_rank_term *term) {
    return (term->rank + LOW_RANK_PANEL - 1) / LOW_RANK_PANEL;
}

/* Computes t of all terms of the row. */
static inline void make_inner(const struct task *task, const struct walk *walk) {
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

#endif
