/* low_rank and geglu. */
#include "kernels/compute/overlay.h"
#include "tests/kernels/kcheck/kcheck.h"
#include "tests/kernels/narrow.h"

#include <math.h>
#include <stdlib.h>

static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };

/* ---- low_rank ---- */

#define ROWS 3
#define TERMS_MAX 8

struct term_case {
    int row;
    int64_t rank, first, n;
};

struct low_rank_case {
    enum conv_kind kind;
    int64_t h, w, k, channels;
    struct term_case terms[TERMS_MAX]; /* sorted by row; unused terms have rank 0 */
    enum when when;
    int64_t shorter; /* pixels missing from an upsampling's output, 0 or 1 */
};

struct low_rank_subject {
    const struct low_rank_case *p;
    struct low_rank_pair *pairs[2][TERMS_MAX]; /* owned; [0] the table under test, [1] reference */
};

/* y starts as a copy of input 1. */
static void run_low_rank(
    struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    const struct low_rank_subject *l = s->params;
    const int of_reference = c->kernels == kernels_reference();
    struct low_rank_term terms[TERMS_MAX];
    struct low_rank_row rows[ROWS] = { { NULL, 0 } };
    for (int i = 0; i < TERMS_MAX && l->p->terms[i].rank; i++) {
        const struct term_case *t = &l->p->terms[i];
        terms[i] = low_rank_pair_term(
            l->pairs[of_reference][i], t->first, 0.7f - 0.45f * (float)(i % 3));
        if (!rows[t->row].count++)
            rows[t->row].terms = &terms[i];
    }
    struct tensor x = subject_row(s, 0, row), before = subject_row(s, 1, row);
    op_convert(c, &(struct convert_args){ .x = &before, .y = y });
    op_low_rank(c, &(struct low_rank_args){
                       .x = &x, .kind = l->p->kind, .rows = rows + (row < 0 ? 0 : row), .y = y });
}

/* Makes factors whose product with x is about as large as y. */
static void make_pairs(struct kcheck *k, struct subject *s, struct low_rank_subject *l) {
    const struct kernels *tables[] = { k->table, kernels_reference() };
    const struct low_rank_case *p = l->p;
    const int64_t size = p->kind == CONV_1X1 ? 1 : 3;
    struct error err = { 0 };
    for (int i = 0; i < TERMS_MAX && p->terms[i].rank; i++) {
        const struct term_case *t = &p->terms[i];
        struct buffer down = buffer_create(
            tensor_4d(NULL, DTYPE_F32, t->rank, p->k, size, size), 0);
        struct buffer up = buffer_create(tensor_2d(NULL, DTYPE_F16, t->n, t->rank), 0);
        const float scale = 2 / sqrtf((float)(p->k * size * size));
        for (int64_t j = 0; j < tensor_elements(&down.t); j++)
            ((float *)down.t.data)[j] = random_float(k) * scale;
        for (int64_t j = 0; j < tensor_elements(&up.t); j++)
            ((uint16_t *)up.t.data)[j] = f32_to_f16(random_float(k) * 2 / sqrtf((float)t->rank));
        for (int table = 0; table < 2; table++) {
            const struct packed target = { .is_conv = size == 3,
                .kind = p->kind,
                .n = p->channels,
                .k = p->k,
                .owner = tables[table] };
            if (!low_rank_pair_create(
                    s->op, &target, t->n, &down.t, &up.t, &l->pairs[table][i], &err)) {
                printf("kcheck: %s\n", err.message);
                exit(1);
            }
        }
        buffer_finish(&down);
        buffer_finish(&up);
        s->flops += 2.0 * (double)(tensor_elements(&s->y) / p->channels / ROWS) * (double)t->rank *
                    (double)(p->k * size * size + t->n);
    }
}

/* Whether y is rounded more than once: between two terms whose outputs overlap only in part, and on
 * a GPU after every 64 ranks. */
static bool is_rounded_twice(const struct kcheck *k, const struct low_rank_case *p) {
    const struct term_case *t = p->terms;
    for (int i = 0; i < TERMS_MAX && t[i].rank; i++) {
        int64_t ranks = t[i].rank;
        for (int j = 0; j < i; j++) {
            if (t[j].row != t[i].row || t[j].first + t[j].n <= t[i].first ||
                t[i].first + t[i].n <= t[j].first)
                continue;
            ranks += t[j].rank;
            if (t[i].first != t[j].first || t[i].n != t[j].n)
                return true;
        }
        if (k->table->device != DEVICE_CPU && ranks > 64)
            return true;
    }
    return false;
}

static void check_low_rank_case(struct kcheck *k, const struct low_rank_case *p, enum dtype dtype) {
    static const char *const kinds[] = { "linear", "3x3", "3x3 down", "3x3 down right", "3x3 up" };
    struct low_rank_subject l = { .p = p };
    struct subject s;
    int count = 0;
    while (count < TERMS_MAX && p->terms[count].rank)
        count++;
    if (!subject_start(k, &s, "low_rank", "%s %dx%lldx%lldx%lld%s to %lld, %d terms, rank %lld %s",
            kinds[p->kind], ROWS, (long long)p->h, (long long)p->w, (long long)p->k,
            p->shorter ? " shorter" : "", (long long)p->channels, count,
            (long long)p->terms[0].rank, dtype_name(dtype)))
        return;
    subject_input(k, &s, tensor_4d(NULL, dtype, ROWS, p->h, p->w, p->k), 1, 0);
    s.y = tensor_4d(NULL, dtype, ROWS, conv_out_size(p->kind, p->h) - p->shorter,
        conv_out_size(p->kind, p->w) - p->shorter, p->channels);
    subject_input(k, &s, s.y, 1, 0);
    make_pairs(k, &s, &l);
    s.run = run_low_rank;
    s.params = &l;
    s.tolerance = tolerance_for("low_rank", dtype, dtype);
    if (dtype != DTYPE_F32 && is_rounded_twice(k, p))
        s.tolerance = (struct tolerance){ dtype == DTYPE_F16 ? 3e-4 : 2.4e-3,
            "rounded between terms (2^-9 or 2^-12 each time), then stored" };
    s.bytes = (double)tensor_bytes(&s.inputs[0].t) + 2 * (double)tensor_bytes(&s.y);
    subject_check(k, &s);
    for (int table = 0; table < 2; table++)
        for (int i = 0; i < TERMS_MAX; i++)
            low_rank_pair_destroy(l.pairs[table][i]);
}

void check_low_rank(struct kcheck *k) {
    static const struct low_rank_case cases[] = {
        /* one token; odd sizes; a row with two terms for different outputs; a row without terms */
        { CONV_1X1, 1, 1, 1, 1, { { 0, 1, 0, 1 } }, QUICK, 0 },
        { CONV_1X1, 1, 1, 40, 56, { { 0, 4, 0, 56 }, { 1, 4, 0, 56 }, { 2, 4, 0, 56 } }, QUICK, 0 },
        { CONV_1X1, 1, 7, 13, 17, { { 0, 3, 5, 12 }, { 2, 17, 0, 17 }, { 2, 1, 16, 1 } }, QUICK,
            0 },
        { CONV_1X1, 5, 13, 33, 51, { { 1, 16, 0, 17 }, { 1, 16, 17, 17 }, { 1, 16, 34, 17 } },
            QUICK, 0 },
        /* the same outputs twice and three times, and a term that overlaps them */
        { CONV_1X1, 1, 67, 48, 48,
            { { 0, 8, 0, 48 }, { 0, 33, 0, 48 }, { 2, 5, 0, 48 }, { 2, 4, 8, 24 }, { 2, 16, 0, 48 },
                { 2, 7, 0, 48 } },
            QUICK, 0 },
        { CONV_1X1, 3, 50, 64, 96, { { 0, 256, 0, 96 }, { 1, 64, 32, 32 }, { 2, 127, 0, 96 } },
            QUICK, 0 },
        { CONV_3X3, 1, 1, 1, 1, { { 0, 1, 0, 1 }, { 2, 2, 0, 1 } }, QUICK, 0 },
        { CONV_3X3, 5, 7, 19, 33, { { 0, 4, 0, 33 }, { 2, 18, 0, 33 }, { 2, 3, 0, 33 } }, QUICK,
            0 },
        { CONV_3X3_DOWN, 7, 6, 16, 24, { { 0, 8, 0, 24 }, { 1, 16, 0, 24 } }, QUICK, 0 },
        { CONV_3X3_DOWN_RIGHT, 6, 8, 5, 9, { { 1, 7, 0, 9 } }, QUICK, 0 },
        { CONV_3X3_UP, 3, 5, 16, 16, { { 0, 4, 0, 16 }, { 2, 9, 0, 16 } }, QUICK, 0 },
        { CONV_3X3_UP, 4, 3, 7, 10, { { 1, 16, 0, 10 } }, QUICK, 1 },
        { CONV_1X1, 1, 70, 320, 960,
            { { 0, 16, 0, 320 }, { 0, 16, 320, 320 }, { 0, 16, 640, 320 }, { 2, 128, 320, 320 } },
            CHANNELS, 0 },
        { CONV_1X1, 1, 9, 1280, 1280, { { 0, 16, 0, 1280 }, { 1, 33, 0, 1280 } }, CHANNELS, 0 },
        { CONV_3X3, 5, 5, 320, 320, { { 0, 16, 0, 320 }, { 1, 4, 0, 320 } }, CHANNELS, 0 },
        { CONV_1X1, 1, 37, 5120, 1280, { { 0, 16, 0, 1280 }, { 2, 4, 0, 1280 } }, SLOW, 0 },
        { CONV_3X3, 5, 6, 1280, 320, { { 0, 8, 0, 320 } }, SLOW, 0 },
        { CONV_1X1, 64, 64, 320, 960,
            { { 0, 16, 0, 320 }, { 0, 16, 320, 320 }, { 0, 16, 640, 320 }, { 1, 16, 0, 320 },
                { 1, 16, 320, 320 }, { 1, 16, 640, 320 } },
            BENCH, 0 },
        { CONV_1X1, 64, 64, 320, 320, { { 0, 16, 0, 320 }, { 1, 16, 0, 320 } }, BENCH, 0 },
        { CONV_1X1, 32, 32, 640, 640, { { 0, 16, 0, 640 }, { 1, 16, 0, 640 } }, BENCH, 0 },
        { CONV_1X1, 16, 16, 1280, 1280, { { 0, 16, 0, 1280 }, { 1, 16, 0, 1280 } }, BENCH, 0 },
        { CONV_1X1, 16, 16, 1280, 1280, { { 0, 128, 0, 1280 }, { 1, 128, 0, 1280 } }, BENCH, 0 },
        { CONV_3X3, 64, 64, 320, 320, { { 0, 16, 0, 320 }, { 1, 16, 0, 320 } }, BENCH, 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++)
            if (is_time_for(k, cases[i].when) && has_activations(k, dtypes[d]))
                check_low_rank_case(k, &cases[i], dtypes[d]);
}

/* ---- geglu ---- */

static void run_geglu(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    struct tensor h = subject_row(s, 0, row), residual = { 0 };
    if (s->input_count > 1)
        residual = subject_row(s, 1, row);
    op_geglu(c, &(struct geglu_args){ &h, s->input_count > 1 ? &residual : NULL, y });
}

static void check_geglu_case(
    struct kcheck *k, int64_t tokens, int64_t half, bool residual, enum dtype dtype) {
    struct subject s;
    if (!subject_start(k, &s, "geglu", "3x%lldx%lld%s %s", (long long)tokens, (long long)half,
            residual ? " residual" : "", dtype_name(dtype)))
        return;
    subject_input(k, &s, tensor_3d(NULL, dtype, 3, tokens, 2 * half), 4, 0);
    s.y = tensor_3d(NULL, dtype, 3, tokens, half);
    if (residual) {
        subject_input(k, &s, s.y, 1, 0);
        s.in_place = s.input_count;
    }
    s.floor = 1; /* gelu's far tails have an absolute error of 1e-7 */
    s.run = run_geglu;
    s.tolerance = tolerance_for("geglu", dtype, dtype);
    s.bytes = (double)tensor_bytes(&s.inputs[0].t) + (double)tensor_bytes(&s.y);
    subject_check(k, &s);
}

void check_geglu(struct kcheck *k) {
    for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
        if (!has_activations(k, dtypes[d]))
            continue;
        for (int residual = 0; !k->bench && residual < 2; residual++) {
            check_geglu_case(k, 1, 1, residual, dtypes[d]);
            check_geglu_case(k, 5, 33, residual, dtypes[d]);
            check_geglu_case(k, 3, 1280, residual, dtypes[d]);
        }
        if (k->bench)
            check_geglu_case(k, 1024, 2560, false, dtypes[d]);
    }
}
