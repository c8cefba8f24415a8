/* One step of Adafactor for one weight (struct adafactor_args, kernels/backward.h).
 *
 * Work is cut into blocks that depend on the shape alone, and their sums are added in order, so
 * that any number of threads gives the same bits. Squares are added in f64. An update is u = g a b
 * with  a = sqrt(mean of the matrix's rows / rows),  b = 1 / sqrt(cols), computed twice: once for
 * its size, once to step. */
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"

/* Numbers of a block, unless that gives more than BLOCKS_MAX blocks. */
#define BLOCK_FLOATS 65536
/* Each block of a matrix has sums of its own for all columns. */
#define BLOCKS_MAX 32
#define SIDE_MAX 3

typedef double vd __attribute__((vector_size(LANES * 8)));
typedef double vd_memory __attribute__((vector_size(LANES * 8), may_alias, aligned(8)));

struct step {
    const struct adafactor_args *a;
    struct factored_shape shape;
    int64_t groups, each, blocks; /* groups of `panel` rows: all, and those of a block */
    double *col_sums;             /* [blocks][k]; matrices only */
    double (*parts)[2];           /* [blocks]: sums of u u and of p p */
    float *b;                     /* [k]; matrices only */
    double mean;                  /* of the rows; matrices only */
    float keep, size;             /* p = keep p - size u */
};

INLINE vf gradient_at(const struct step *s, int64_t i, int64_t count) {
    const double limit = s->a->gradient_limit;
    const float most = limit > 0 ? (float)limit : INFINITY;
    const vf g = load_up_to(s->a->gradient->data, DTYPE_F32, i, count) *
                 (float)s->a->gradient_scale;
    return vf_max(splat(-most), vf_min(splat(most), g)); /* NaN stays */
}

/* Functions take vectors of f64 by address, because their calling convention depends on the
 * instruction set. */
INLINE void add_squares(vf x, vd *sums) {
    const vd wide = __builtin_convertvector(x, vd);
    *sums += wide * wide;
}

INLINE double total_of(const vd *x) {
    double sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += (*x)[i];
    return sum;
}

/* Adds the first `count` elements to sums in memory. */
INLINE void add_to(double *sums, const vd *x, int64_t count) {
    if (count >= LANES) {
        READS(sums, sizeof(vd));
        WRITES(sums, sizeof(vd));
        *(vd_memory *)sums += *x;
        return;
    }
    for (int64_t i = 0; i < count; i++)
        sums[i] += (*x)[i];
}

/* Returns the state's new value, with a mean of squares. */
INLINE float decayed(const struct step *s, float state, double mean) {
    return (float)((double)state * s->a->beta2 + (1.0 - s->a->beta2) * (mean + ADAFACTOR_EPS));
}

static int64_t block_end(const struct step *s, int64_t block) {
    const int64_t end = (block + 1) * s->each;
    return end < s->groups ? end : s->groups;
}

/* Rows of a group that are no padding. */
static int64_t rows_of(const struct step *s, int64_t group) {
    const int64_t left = s->shape.n - group * s->shape.panel;
    return left < s->shape.panel ? left : s->shape.panel;
}

/* --- matrices: [n / panel][k][panel] --- */

/* Adds up the squares of a row without panels, and adds them to the columns' sums. */
static void row_squares(const struct step *s, int64_t row, double *cols) {
    const int64_t k = s->shape.k;
    float *state = (float *)s->a->rows->data + row;
    vd sums = { 0 };
    for (int64_t c = 0; c < k; c += LANES) {
        vd squares = { 0 };
        add_squares(gradient_at(s, row * k + c, k - c), &squares);
        sums += squares;
        add_to(cols + c, &squares, k - c);
    }
    *state = decayed(s, *state, total_of(&sums) / (double)k);
}

/* Does the same for the rows of a panel, LANES at a time. */
static void panel_squares(const struct step *s, int64_t group, double *cols) {
    const int64_t k = s->shape.k, panel = s->shape.panel, rows = rows_of(s, group);
    float *states = (float *)s->a->rows->data + group * panel;
    for (int64_t first = 0; first < rows; first += LANES) {
        vd sums = { 0 };
        for (int64_t c = 0; c < k; c++) {
            vd squares = { 0 };
            add_squares(gradient_at(s, (group * k + c) * panel + first, rows - first), &squares);
            sums += squares;
            cols[c] += total_of(&squares);
        }
        for (int64_t i = 0; i < LANES && first + i < rows; i++)
            states[first + i] = decayed(s, states[first + i], sums[i] / (double)k);
    }
}

static void matrix_squares(const struct step *s, int64_t block) {
    double *cols = s->col_sums + block * s->shape.k;
    memset(cols, 0, (size_t)s->shape.k * sizeof(*cols));
    for (int64_t group = block * s->each; group < block_end(s, block); group++)
        if (s->shape.panel == 1)
            row_squares(s, group, cols);
        else
            panel_squares(s, group, cols);
}

/* Updates a column's state from the sums of all blocks. */
static void finish_column(const struct step *s, int64_t c) {
    float *state = (float *)s->a->cols->data + c;
    double sum = 0;
    for (int64_t block = 0; block < s->blocks; block++)
        sum += s->col_sums[block * s->shape.k + c];
    *state = decayed(s, *state, sum / (double)s->shape.n);
    s->b[c] = (float)(1.0 / sqrt((double)*state));
}

static double rows_mean(const struct step *s) {
    const float *rows = s->a->rows->data;
    double sum = 0;
    for (int64_t i = 0; i < s->shape.n; i++)
        sum += (double)rows[i];
    return sum / (double)s->shape.n;
}

INLINE float a_of(const struct step *s, int64_t row) {
    return (float)sqrt(s->mean / (double)((const float *)s->a->rows->data)[row]);
}

/* Uses `count` updates at place i: adds their squares and the parameters' to sums[2], or steps. */
INLINE void use(const struct step *s, vf u, int64_t i, int64_t count, vd sums[2], bool steps) {
    float *p = s->a->parameter->data;
    const vf before = load_up_to(p, DTYPE_F32, i, count);
    if (steps) {
        store_up_to(p, DTYPE_F32, i, count, false, before * s->keep - u * s->size);
    } else {
        add_squares(u, &sums[0]);
        add_squares(before, &sums[1]);
    }
}

INLINE void row_updates(const struct step *s, int64_t row, vd sums[2], bool steps) {
    const int64_t k = s->shape.k;
    const float a = a_of(s, row);
    for (int64_t c = 0; c < k; c += LANES) {
        const vf u = gradient_at(s, row * k + c, k - c) * a * load_up_to(s->b, DTYPE_F32, c, k - c);
        use(s, u, row * k + c, k - c, sums, steps);
    }
}

INLINE void panel_updates(const struct step *s, int64_t group, vd sums[2], bool steps) {
    const int64_t k = s->shape.k, panel = s->shape.panel, rows = rows_of(s, group);
    for (int64_t first = 0; first < rows; first += LANES) {
        vf a = { 0 };
        for (int64_t i = 0; i < LANES && first + i < rows; i++)
            a[i] = a_of(s, group * panel + first + i);
        for (int64_t c = 0; c < k; c++) {
            const int64_t i = (group * k + c) * panel + first;
            use(s, gradient_at(s, i, rows - first) * a * s->b[c], i, rows - first, sums, steps);
        }
    }
}

/* `steps` is a compile-time constant. */
INLINE void matrix_updates(const struct step *s, int64_t block, vd sums[2], bool steps) {
    for (int64_t group = block * s->each; group < block_end(s, block); group++)
        if (s->shape.panel == 1)
            row_updates(s, group, sums, steps);
        else
            panel_updates(s, group, sums, steps);
}

/* --- kernels: [n / panel][side][side][k panel], a matrix [side][side] for each number of the last
 * dimension --- */

/* LANES neighbouring matrices of a group, from number j of the last dimension on. */
struct chunk {
    int64_t at, stride;    /* place of the first number of each; from one tap to the next */
    int64_t count;         /* of matrices, with padding */
    int64_t states[LANES]; /* where their states begin; -1: padding */
    vi is_there;           /* -1; 0: padding */
    vf a[SIDE_MAX], b[SIDE_MAX];
};

static void find_chunk(const struct step *s, int64_t group, int64_t j, struct chunk *out) {
    const int64_t k = s->shape.k, panel = s->shape.panel, side = s->shape.side;
    out->stride = k * panel;
    out->at = group * side * side * out->stride + j;
    out->count = out->stride - j < LANES ? out->stride - j : LANES;
    out->is_there = (vi){ 0 };
    for (int64_t i = 0; i < out->count; i++) {
        const int64_t row = group * panel + (j + i) % panel;
        out->states[i] = row < s->shape.n ? (row * k + (j + i) / panel) * side : -1;
        out->is_there[i] = -(row < s->shape.n);
    }
}

/* Updates the states of a chunk. */
static void chunk_squares(const struct step *s, const struct chunk *c) {
    const int side = s->shape.side;
    float *rows = s->a->rows->data, *cols = s->a->cols->data;
    vd row_sums[SIDE_MAX] = { { 0 } }, col_sums[SIDE_MAX] = { { 0 } };
    for (int y = 0; y < side; y++)
        for (int x = 0; x < side; x++) {
            vd squares = { 0 };
            add_squares(gradient_at(s, c->at + (y * side + x) * c->stride, c->count), &squares);
            row_sums[y] += squares;
            col_sums[x] += squares;
        }
    for (int64_t i = 0; i < c->count; i++)
        for (int t = 0; t < side && c->states[i] >= 0; t++) {
            float *row = &rows[c->states[i] + t], *col = &cols[c->states[i] + t];
            *row = decayed(s, *row, row_sums[t][i] / side);
            *col = decayed(s, *col, col_sums[t][i] / side);
        }
}

/* Computes the factors of a chunk's updates. Those of padding are not used. */
static void chunk_factors(const struct step *s, struct chunk *c) {
    const int side = s->shape.side;
    const float *rows = s->a->rows->data, *cols = s->a->cols->data;
    float row[SIDE_MAX][LANES], col[SIDE_MAX][LANES];
    vf mean = { 0 };
    for (int t = 0; t < side; t++) {
        for (int i = 0; i < LANES; i++) {
            const bool is_there = c->is_there[i];
            row[t][i] = is_there ? rows[c->states[i] + t] : 1;
            col[t][i] = is_there ? cols[c->states[i] + t] : 1;
        }
        mean += load(row[t]) * (1.0f / (float)side);
    }
    for (int t = 0; t < side; t++) {
        c->a[t] = vf_sqrt(mean / load(row[t]));
        c->b[t] = 1.0f / vf_sqrt(load(col[t]));
    }
}

/* As `use`, without the padding. */
INLINE void use_chunk(
    const struct step *s, const struct chunk *c, vf u, int64_t i, vd sums[2], bool steps) {
    float *p = s->a->parameter->data;
    const vf before = load_up_to(p, DTYPE_F32, i, c->count);
    if (steps) {
        store_up_to(p, DTYPE_F32, i, c->count, false,
            choose(c->is_there, before * s->keep - u * s->size, before));
    } else {
        add_squares(choose(c->is_there, u, splat(0)), &sums[0]);
        add_squares(choose(c->is_there, before, splat(0)), &sums[1]);
    }
}

INLINE void kernel_updates(const struct step *s, int64_t block, vd sums[2], bool steps) {
    const int side = s->shape.side;
    struct chunk c;
    for (int64_t group = block * s->each; group < block_end(s, block); group++)
        for (int64_t j = 0; j < s->shape.k * s->shape.panel; j += LANES) {
            find_chunk(s, group, j, &c);
            if (!steps)
                chunk_squares(s, &c);
            chunk_factors(s, &c);
            for (int tap = 0; tap < side * side; tap++) {
                const int64_t i = c.at + tap * c.stride;
                const vf u = gradient_at(s, i, c.count) * c.a[tap / side] * c.b[tap % side];
                use_chunk(s, &c, u, i, sums, steps);
            }
        }
}

/* --- a step --- */

static void measure_block(const struct step *s, int64_t block) {
    vd sums[2] = { { 0 } };
    if (s->shape.is_matrix)
        matrix_updates(s, block, sums, false);
    else
        kernel_updates(s, block, sums, false);
    s->parts[block][0] = total_of(&sums[0]);
    s->parts[block][1] = total_of(&sums[1]);
}

static void step_block(const struct step *s, int64_t block) {
    if (s->shape.is_matrix)
        matrix_updates(s, block, NULL, true);
    else
        kernel_updates(s, block, NULL, true);
}

static struct step cut(const struct adafactor_args *args) {
    struct step s = { .a = args, .shape = args->shape };
    if (!s.shape.is_matrix && s.shape.side == 1 && s.shape.panel == 1 && s.shape.k < LANES) {
        /* Each number is a matrix of its own, so one long row is the same as many short ones. */
        s.shape.k *= s.shape.n;
        s.shape.n = 1;
    }
    const int64_t floats = s.shape.k * s.shape.panel * s.shape.side * s.shape.side;
    s.groups = (s.shape.n + s.shape.panel - 1) / s.shape.panel;
    s.each = floats < BLOCK_FLOATS ? BLOCK_FLOATS / floats : 1;
    if (s.groups > s.each * BLOCKS_MAX)
        s.each = (s.groups + BLOCKS_MAX - 1) / BLOCKS_MAX;
    s.blocks = (s.groups + s.each - 1) / s.each;
    return s;
}

/* Takes the scratch memory; false with an error if it is refused. */
static bool take_scratch(struct step *s, struct error *err) {
    const size_t blocks = (size_t)s->blocks, k = s->shape.is_matrix ? (size_t)s->shape.k : 0;
    char *at = cpu_scratch(
        blocks * (sizeof(*s->parts) + k * sizeof(double)) + k * sizeof(float), err);
    if (!at)
        return false;
    s->parts = (void *)at;
    s->col_sums = (void *)(at + blocks * sizeof(*s->parts));
    s->b = (void *)(at + blocks * (sizeof(*s->parts) + k * sizeof(double)));
    return true;
}

/* Decides the size of the step from the blocks' sums. */
static void decide(struct step *s) {
    const struct adafactor_args *a = s->a;
    const double count = (double)(s->shape.n * s->shape.k * s->shape.side * s->shape.side);
    double squares = 0, own = 0;
    for (int64_t block = 0; block < s->blocks; block++) {
        squares += s->parts[block][0];
        own += s->parts[block][1];
    }
    const double rms = sqrt(squares / count), own_rms = sqrt(own / count);
    const double rate = a->lr * (a->scale_parameter ? fmax(ADAFACTOR_LEAST_SCALE, own_rms) : 1);
    s->keep = (float)(1.0 - rate * a->weight_decay);
    s->size = (float)(rate / fmax(1, rms / a->clip_threshold));
}

bool NAME(adafactor)(const struct adafactor_args *args, struct error *err) {
    struct step s = cut(args);
    if (!take_scratch(&s, err) || cpu_plans())
        return s.parts != NULL;
    if (s.shape.is_matrix) {
#pragma omp parallel for if (s.blocks > 1)
        for (int64_t block = 0; block < s.blocks; block++)
            matrix_squares(&s, block);
#pragma omp parallel for if (s.blocks > 1)
        for (int64_t c = 0; c < s.shape.k; c++)
            finish_column(&s, c);
        s.mean = rows_mean(&s);
    }
#pragma omp parallel for if (s.blocks > 1)
    for (int64_t block = 0; block < s.blocks; block++)
        measure_block(&s, block);
    decide(&s);
#pragma omp parallel for if (s.blocks > 1)
    for (int64_t block = 0; block < s.blocks; block++)
        step_block(&s, block);
    return true;
}
