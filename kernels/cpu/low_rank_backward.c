/* The gradient of low_rank: with u = scale down x and v = scale up^T dy,
 *
 *   d_up += dy u^T;  d_down += v x^T;  dx (+)= down^T v.
 *
 * First, up (for v) and down (for dx) are transposed, and u and v of all terms are computed in
 * chunks of TOKENS output tokens, and kept. A task for d_up then takes one panel of outputs, a task
 * for d_down a few inputs. Each walks over the tokens of all rows in order, so that the bits do not
 * depend on the number of threads. A task for dx takes a few input tokens. It gathers v of the
 * outputs that read them and multiplies it with all terms at once, so that dx is rounded once.
 */
#include "kernels/cpu/low_rank_blocks.h"
#include "kernels/cpu/scratch.h"

#include <omp.h>

#define READERS_MAX 4 /* outputs that read a token under one tap, at most */

/* The sizes and buffers of one call. */
struct plan {
    const struct low_rank_backward_args *args;
    enum dtype dtype;
    struct walk walk;
    int64_t rows, k, channels, tokens, pixels; /* tokens of dy per row, pixels of x per row */
    int64_t chunks, panels;                    /* chunks per row; panels of all terms */
    int64_t chunk_floats;                      /* floats of u or of v: [panels][TOKENS][16] */
    bool to_factors;                           /* some factor's gradient is wanted */
    float *u, *v;                              /* [rows][chunks][panels][TOKENS][16] */
    float *up;                                 /* per term: [panels of ranks][n][16] */
    float *down;                               /* [panels of k][taps][panels * 16][16] */
    float *threads;                            /* per thread: [TOKENS][STEP], then gathered v */
    int64_t thread_floats;
};

/* ---- the transposed factors ---- */

static void turn_up(const struct low_rank_term *term, int64_t panel, float *out) {
    for (int64_t j = 0; j < term->n; j++)
        for (int64_t lane = 0; lane < LOW_RANK_PANEL; lane++) {
            const int64_t r = panel * LOW_RANK_PANEL + lane;
            const float *from = term->up + j / LOW_RANK_PANEL * term->rank * LOW_RANK_PANEL +
                                j % LOW_RANK_PANEL;
            *out++ = r < term->rank ? from[r * LOW_RANK_PANEL] : 0.0f;
        }
}

/* Transposes one panel of inputs of one term's down: under each tap, one row per rank. */
static void turn_down(
    const struct plan *p, const struct low_rank_term *term, int64_t panel, float *out) {
    const int64_t inner = p->walk.taps * p->k;
    for (int64_t tap = 0; tap < p->walk.taps; tap++)
        for (int64_t r = 0; r < panels_of(term) * LOW_RANK_PANEL; r++)
            for (int64_t lane = 0; lane < LOW_RANK_PANEL; lane++) {
                const int64_t c = panel * LOW_RANK_PANEL + lane;
                const int64_t at = r / LOW_RANK_PANEL * inner + tap * p->k + c;
                out[(tap * p->panels * LOW_RANK_PANEL + r) * LOW_RANK_PANEL + lane] =
                    c < p->k ? term->down[at * LOW_RANK_PANEL + r % LOW_RANK_PANEL] : 0.0f;
            }
}

/* Transposes all factors. Called by every thread of the team. */
static void turn_factors(const struct plan *p) {
    const int64_t inputs = (p->k + LOW_RANK_PANEL - 1) / LOW_RANK_PANEL;
    float *up = p->up;
    for (int i = 0; i < p->args->count; i++) {
        const struct low_rank_term *term = &p->args->terms[i];
#pragma omp for nowait
        for (int64_t panel = 0; panel < panels_of(term); panel++)
            turn_up(term, panel, up + panel * term->n * LOW_RANK_PANEL);
        up += panels_of(term) * term->n * LOW_RANK_PANEL;
    }
#pragma omp for
    for (int64_t panel = 0; panel < (p->args->dx ? inputs : 0); panel++) {
        const int64_t ranks = p->panels * LOW_RANK_PANEL;
        float *out = p->down + panel * p->walk.taps * ranks * LOW_RANK_PANEL;
        for (int i = 0; i < p->args->count; i++) {
            turn_down(p, &p->args->terms[i], panel, out);
            out += panels_of(&p->args->terms[i]) * LOW_RANK_PANEL * LOW_RANK_PANEL;
        }
    }
}

/* ---- u and v ---- */

static void make_chunk(const struct plan *p, int64_t item) {
    const struct low_rank_row terms = { p->args->terms, p->args->count };
    const int64_t row = item / p->chunks, first = item % p->chunks * TOKENS;
    const size_t element = dtype_size(p->dtype);
    const struct walk plain = { .taps = 1 };
    struct task task = { .row = &terms,
        .dtype = p->dtype,
        .x = (const char *)p->args->dy->data + (size_t)(row * p->tokens * p->channels) * element,
        .k = p->channels,
        .first = first,
        .count = p->tokens - first < TOKENS ? (int)(p->tokens - first) : TOKENS,
        .block = p->threads + omp_get_thread_num() * p->thread_floats,
        .t = p->v + item * p->chunk_floats };
    const float *up = p->up;
    float *v = task.t;
    for (int i = 0; i < terms.count; i++) {
        struct low_rank_term turned = terms.terms[i];
        turned.down = up;
        for (int64_t at = 0; at < turned.n; at += STEP) {
            const int64_t count = turned.n - at < STEP ? turned.n - at : STEP;
            fill_block(&task, &plain, 0, turned.first + at, count);
            inner_products(&task, &turned, turned.n, at, count, at + count == turned.n, v);
        }
        up += panels_of(&turned) * turned.n * LOW_RANK_PANEL;
        v += panels_of(&turned) * TOKENS * LOW_RANK_PANEL;
    }
    if (!p->to_factors)
        return;
    task.x = (const char *)p->args->x->data + (size_t)(row * p->pixels * p->k) * element;
    task.k = p->k;
    task.t = p->u + item * p->chunk_floats;
    make_inner(&task, &p->walk);
}

/* ---- the factors' gradients ---- */

/* sums[i][16] += a[i] b[16] for i < TILE. */
INLINE void outer(const float *a, const vf b[VECTORS], vf sums[TILE][VECTORS]) {
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            sums[i][v] += a[i] * b[v];
}

/* totals[i][16] += sums[i][16] for i < TILE. `totals` are plain floats, because the compiler need
 * not align vectors on the stack here. */
INLINE void keep_sums(vf sums[TILE][VECTORS], float totals[TILE][LOW_RANK_PANEL]) {
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            store(totals[i] + v * LANES, load(totals[i] + v * LANES) + sums[i][v]);
}

/* to[i][0..lanes) += totals[i][..] for i < count; rows are 16 apart. */
static void add_totals(
    float *to, float totals[TILE][LOW_RANK_PANEL], int64_t count, int64_t lanes) {
    for (int64_t i = 0; i < count && i < TILE; i++)
        for (int64_t lane = 0; lane < lanes && lane < LOW_RANK_PANEL; lane++)
            to[i * LOW_RANK_PANEL + lane] += totals[i][lane];
}

/* Computes d_up of one term, for ranks [rank, rank + TILE) and one panel of outputs. u: the panel
 * of these ranks, in the first chunk. `dtype` is a compile-time constant. */
INLINE void up_tile(const struct plan *p, const struct low_rank_term *term, const float *u,
    int64_t panel, int64_t rank, enum dtype dtype, float *to) {
    const int64_t lanes = term->n - panel * LOW_RANK_PANEL;
    const int64_t column = term->first + panel * LOW_RANK_PANEL;
    float totals[TILE][LOW_RANK_PANEL] = { { 0 } };
    for (int64_t item = 0; item < p->rows * p->chunks; item++) {
        const int64_t first = item % p->chunks * TOKENS, row = item / p->chunks;
        const int64_t count = p->tokens - first < TOKENS ? p->tokens - first : TOKENS;
        const float *own = u + item * p->chunk_floats + rank % LOW_RANK_PANEL;
        vf sums[TILE][VECTORS] = { { { 0 } } };
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = (row * p->tokens + first + i) * p->channels + column;
            vf dy[VECTORS] = { { 0 } };
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++)
                if (v * LANES < lanes)
                    dy[v] = load_up_to(p->args->dy->data, dtype, at + v * LANES, lanes - v * LANES);
            outer(own + i * LOW_RANK_PANEL, dy, sums);
        }
        keep_sums(sums, totals);
    }
    const int64_t in_panel = LOW_RANK_PANEL - rank % LOW_RANK_PANEL;
    add_totals(to + rank * LOW_RANK_PANEL, totals,
        term->rank - rank < in_panel ? term->rank - rank : in_panel, lanes);
}

/* Computes d_down for inputs [c, c + TILE) under one tap and one panel of ranks. v: the panel of
 * these ranks, in the first chunk. `dtype` is a compile-time constant. */
INLINE void down_tile(const struct plan *p, const float *v, int64_t tap, int64_t c, int64_t lanes,
    enum dtype dtype, float *to) {
    const int64_t left = p->k - c;
    float totals[TILE][LOW_RANK_PANEL] = { { 0 } };
    for (int64_t item = 0; item < p->rows * p->chunks; item++) {
        const int64_t first = item % p->chunks * TOKENS, row = item / p->chunks;
        const int64_t count = p->tokens - first < TOKENS ? p->tokens - first : TOKENS;
        const float *own = v + item * p->chunk_floats;
        vf sums[TILE][VECTORS] = { { { 0 } } };
        for (int64_t i = 0; i < count; i++) {
            const int64_t from = source(&p->walk, first + i, tap);
            const int64_t at = (row * p->pixels + from) * p->k + c;
            float x[LOW_RANK_PANEL + LANES];
            vf ranks[VECTORS];
            if (from < 0)
                continue;
            for (int j = 0; j < TILE && j < left; j += LANES)
                store(x + j, load_up_to(p->args->x->data, dtype, at + j, left - j));
#pragma GCC unroll 4
            for (int w = 0; w < VECTORS; w++)
                ranks[w] = load(own + i * LOW_RANK_PANEL + w * LANES);
            outer(x, ranks, sums);
        }
        keep_sums(sums, totals);
    }
    add_totals(to + c * LOW_RANK_PANEL, totals, left, lanes);
}

/* Computes d_up and d_down of one term, whose u and v start at panel `at`. Called by every thread
 * of the team. */
static void term_gradients(const struct plan *p, int index, int64_t at) {
    const struct low_rank_term *term = &p->args->terms[index];
    const struct low_rank_gradient gradient = p->args->gradients[index];
    const int64_t outputs = (term->n + LOW_RANK_PANEL - 1) / LOW_RANK_PANEL;
    const int64_t ranks = panels_of(term), tiles = (LOW_RANK_PANEL + TILE - 1) / TILE;
    const int64_t inputs = (p->k + TILE - 1) / TILE;
#pragma omp for schedule(dynamic) nowait
    for (int64_t item = 0; item < (gradient.up ? outputs * ranks * tiles : 0); item++) {
        const int64_t panel = item / (ranks * tiles), of = item / tiles % ranks;
        const int64_t rank = of * LOW_RANK_PANEL + item % tiles * TILE;
        const float *u = p->u + (at + of) * TOKENS * LOW_RANK_PANEL;
        float *to = gradient.up + panel * term->rank * LOW_RANK_PANEL;
        if (rank < term->rank && p->dtype == DTYPE_F32)
            up_tile(p, term, u, panel, rank, DTYPE_F32, to);
        else if (rank < term->rank)
            up_tile(p, term, u, panel, rank, DTYPE_BF16, to);
    }
#pragma omp for schedule(dynamic) nowait
    for (int64_t item = 0; item < (gradient.down ? ranks * p->walk.taps * inputs : 0); item++) {
        const int64_t of = item / (p->walk.taps * inputs), tap = item / inputs % p->walk.taps;
        const int64_t c = item % inputs * TILE, lanes = term->rank - of * LOW_RANK_PANEL;
        const float *v = p->v + (at + of) * TOKENS * LOW_RANK_PANEL;
        float *to = gradient.down + (of * p->walk.taps + tap) * p->k * LOW_RANK_PANEL;
        const int64_t most = lanes < LOW_RANK_PANEL ? lanes : LOW_RANK_PANEL;
        if (p->dtype == DTYPE_F32)
            down_tile(p, v, tap, c, most, DTYPE_F32, to);
        else
            down_tile(p, v, tap, c, most, DTYPE_BF16, to);
    }
}

/* ---- dx ---- */

/* The output positions along one axis that read input position `at` under a tap's row or column. */
static int readers_along(
    const struct walk *w, int64_t at, int64_t tap, int64_t limit, int64_t outputs, int64_t out[2]) {
    int count = 0;
    for (int64_t copy = at << w->shift; copy < (at + 1) << w->shift && copy < limit; copy++) {
        const int64_t from = copy + w->before - tap;
        if (from >= 0 && from % w->stride == 0 && from / w->stride < outputs)
            out[count++] = from / w->stride;
    }
    return count;
}

static int readers(
    const struct walk *w, int64_t tokens, int64_t pixel, int64_t tap, int64_t out[READERS_MAX]) {
    int64_t rows[2], columns[2];
    int count = 0;
    out[0] = pixel;
    if (w->taps == 1)
        return 1;
    const int ys = readers_along(w, pixel / w->w, tap / 3, w->limit_h, tokens / w->w_out, rows);
    const int xs = readers_along(w, pixel % w->w, tap % 3, w->limit_w, w->w_out, columns);
    for (int y = 0; y < ys; y++)
        for (int x = 0; x < xs; x++)
            out[count++] = rows[y] * w->w_out + columns[x];
    return count;
}

/* gathered[tap][rank][TILE]: for each of `count` pixels, the sum of v over the outputs that read
 * it. */
static void gather(
    const struct plan *p, int64_t row, int64_t first, int64_t count, float *gathered) {
    const int64_t ranks = p->panels * LOW_RANK_PANEL;
    memset(gathered, 0, (size_t)(p->walk.taps * ranks * TILE) * sizeof(float));
    for (int64_t tap = 0; tap < p->walk.taps; tap++, gathered += ranks * TILE)
        for (int64_t i = 0; i < count; i++) {
            int64_t from[READERS_MAX];
            const int found = readers(&p->walk, p->tokens, first + i, tap, from);
            for (int j = 0; j < found; j++) {
                const float *v = p->v + (row * p->chunks + from[j] / TOKENS) * p->chunk_floats +
                                 from[j] % TOKENS * LOW_RANK_PANEL;
                for (int64_t r = 0; r < ranks; r++)
                    gathered[r * TILE + i] +=
                        v[r / LOW_RANK_PANEL * TOKENS * LOW_RANK_PANEL + r % LOW_RANK_PANEL];
            }
        }
}

/* Computes one panel of dx's channels for `count` pixels from `first` on. This is a separate
 * function so that the sums stay in registers. */
static __attribute__((noinline)) void dx_tile(const struct plan *p, const float *gathered,
    int64_t row, int64_t first, int64_t count, int64_t panel) {
    const int64_t inner = p->walk.taps * p->panels * LOW_RANK_PANEL;
    const float *down = p->down + panel * inner * LOW_RANK_PANEL;
    const int64_t lanes = p->k - panel * LOW_RANK_PANEL;
    vf sums[TILE][VECTORS] = { { { 0 } } };
    for (int64_t r = 0; r < inner; r++) {
        vf d[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            d[v] = load(down + r * LOW_RANK_PANEL + v * LANES);
        outer(gathered + r * TILE, d, sums);
    }
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = (row * p->pixels + first + i) * p->k + panel * LOW_RANK_PANEL;
        for (int v = 0; v < VECTORS && v * LANES < lanes; v++)
            store_up_to(p->args->dx->data, p->dtype, at + v * LANES, lanes - v * LANES,
                p->args->accumulate, sums[i][v]);
    }
}

/* Computes dx. Called by every thread of the team. */
static void make_dx(const struct plan *p) {
    const int64_t tiles = (p->pixels + TILE - 1) / TILE;
    float *gathered = p->threads + omp_get_thread_num() * p->thread_floats + TOKENS * STEP;
#pragma omp for schedule(dynamic, 4)
    for (int64_t item = 0; item < p->rows * tiles; item++) {
        const int64_t row = item / tiles, first = item % tiles * TILE;
        const int64_t count = p->pixels - first < TILE ? p->pixels - first : TILE;
        gather(p, row, first, count, gathered);
        for (int64_t panel = 0; panel * LOW_RANK_PANEL < p->k; panel++)
            dx_tile(p, gathered, row, first, count, panel);
    }
}

/* ---- the call ---- */

static struct plan plan_of(const struct low_rank_backward_args *args, const struct tensor *in) {
    struct plan p = { .args = args,
        .dtype = args->dy->dtype,
        .walk = walk_of(args->kind, in, args->dy),
        .rows = in->shape[0],
        .k = in->shape[in->rank - 1],
        .channels = args->dy->shape[args->dy->rank - 1] };
    p.pixels = tensor_elements(in) / p.rows / p.k;
    p.tokens = tensor_elements(args->dy) / p.rows / p.channels;
    p.chunks = (p.tokens + TOKENS - 1) / TOKENS;
    for (int i = 0; i < args->count; i++) {
        p.panels += panels_of(&args->terms[i]);
        p.to_factors = p.to_factors ||
                       (args->gradients && (args->gradients[i].up || args->gradients[i].down));
    }
    p.chunk_floats = p.panels * TOKENS * LOW_RANK_PANEL;
    return p;
}

/* Takes the buffers from scratch memory. */
static bool take_memory(struct plan *p, struct error *err) {
    const int64_t kept = p->rows * p->chunks * p->chunk_floats + LOW_RANK_PANEL;
    const int64_t inner = p->walk.taps * p->panels * LOW_RANK_PANEL;
    int64_t up = 0;
    for (int i = 0; i < p->args->count; i++)
        up += panels_of(&p->args->terms[i]) * p->args->terms[i].n * LOW_RANK_PANEL;
    const int64_t down = (p->k + LOW_RANK_PANEL - 1) / LOW_RANK_PANEL * inner * LOW_RANK_PANEL;
    p->thread_floats = TOKENS * STEP + inner * TILE;
    p->u = cpu_scratch(
        (size_t)(2 * kept + up + down + p->thread_floats * omp_get_max_threads()) * sizeof(float),
        err);
    if (!p->u)
        return false;
    p->v = p->u + kept;
    p->up = p->v + kept;
    p->down = p->up + up;
    p->threads = p->down + down;
    return true;
}

/* Sets dx to zero, for a call without terms. */
static void clear(const struct low_rank_backward_args *args) {
    if (args->dx && !args->accumulate)
        memset(args->dx->data, 0, tensor_bytes(args->dx));
}

bool NAME(low_rank_backward)(const struct low_rank_backward_args *args, struct error *err) {
    const struct tensor *in = args->dx ? args->dx : args->x;
    if (!in)
        return true; /* no gradient is wanted */
    struct plan p = plan_of(args, in);
    if (!take_memory(&p, err))
        return false;
    if (cpu_plans())
        return true;
    if (!args->count) {
        clear(args);
        return true;
    }
#pragma omp parallel
    {
        turn_factors(&p);
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < p.rows * p.chunks; item++)
            make_chunk(&p, item);
        int64_t at = 0;
        for (int i = 0; p.to_factors && i < args->count; i++) {
            term_gradients(&p, i, at);
            at += panels_of(&args->terms[i]);
        }
        if (args->dx)
            make_dx(&p);
    }
    return true;
}
