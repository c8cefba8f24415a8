/* low_rank: y += scale * up (down x) of each row's own terms.
 *
 * A task takes TOKENS tokens of one row, so that x is read once for all terms of the row (a stacked
 * weight has several) and y is updated while it is in the cache:
 *
 *   t[panel][token][16] = scale * x . down    a block of STEP inputs at a time, expanded to f32
 *   y[token][first..] += t . up               terms to the same outputs together, one rounding
 *
 * Register tiles have TILE tokens by one panel of 16 ranks or outputs. The block of x and t have
 * rows of a fixed length, so that the tokens of a tile are constant offsets and need no registers.
 * All arithmetic is f32, because this is only a hundredth of the layer's own work.
 */
#include "kernels/cpu/low_rank_blocks.h"
#include "kernels/cpu/scratch.h"

#include <omp.h>

INLINE bool same_outputs(const struct low_rank_term *a, const struct low_rank_term *b) {
    return a->first == b->first && a->n == b->n;
}

/* For one tile and one panel of outputs: adds to `sums` term `from` and every later term with the
 * same outputs. `t`: the inner products of term `from`, followed by those of the later terms. */
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

/* y[token][at..] += sums of `lanes` outputs. `dtype` is a compile-time constant. */
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

/* Computes the outputs of term `from` for one tile, which begins at token `token` of the task. */
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

/* Returns the number of floats of one thread's scratch. */
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
    const struct walk walk = walk_of(args->kind, args->x, args->y);
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
