/* low_rank_backward. */
#include "tests/kernels/kcheck/kcheck.h"

#include <math.h>

static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };

#define ROWS 3
#define TERMS_MAX 3

struct term_case {
    int64_t rank, first, n;
};

struct low_rank_case {
    enum conv_kind kind;
    int64_t h, w, k, channels;
    struct term_case terms[TERMS_MAX]; /* unused terms have rank 0 */
    bool accumulate, frozen;           /* the first term's factors are not trained */
    enum when when;
    int64_t shorter; /* pixels missing from an upsampling's output, 0 or 1 */
};

/* Inputs: dy, x, initial dx; then each term's factors in panels; then, as outputs, their
 * gradients. */
#define FACTORS 3

static int count_of(const struct low_rank_case *p) {
    int count = 0;
    while (count < TERMS_MAX && p->terms[count].rank)
        count++;
    return count;
}

static void run_low_rank(
    struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    const struct low_rank_case *p = s->params;
    struct tensor dy = subject_row(s, 0, row), x = subject_row(s, 1, row);
    struct tensor before = subject_row(s, 2, row);
    struct low_rank_term terms[TERMS_MAX];
    struct low_rank_gradient gradients[TERMS_MAX];
    const int count = count_of(p);
    for (int i = 0; i < count; i++) {
        const struct buffer *factors = &s->inputs[FACTORS + 2 * i];
        const struct buffer *slopes = &factors[2 * count];
        terms[i] = (struct low_rank_term){ factors[0].t.data, factors[1].t.data, p->terms[i].rank,
            p->terms[i].first, p->terms[i].n, 0.7f - 0.45f * (float)i };
        gradients[i] = (struct low_rank_gradient){ slopes[0].t.data, slopes[1].t.data };
        if (p->frozen && i == 0)
            gradients[i] = (struct low_rank_gradient){ NULL, NULL };
    }
    if (p->accumulate)
        op_convert(c, &(struct convert_args){ .x = &before, .y = y });
    op_low_rank_backward(c, &(struct low_rank_backward_args){
                                &dy, &x, p->kind, terms, gradients, count, y, p->accumulate });
}

static int64_t panels(int64_t n) {
    return (n + LOW_RANK_PANEL - 1) / LOW_RANK_PANEL;
}

/* Adds a factor of `n` lanes as panels [panels][inner][16], padded with zeros. */
static void add_factor(struct kcheck *k, struct subject *s, int64_t n, int64_t inner, float scale) {
    const struct tensor *t = subject_input(
        k, s, tensor_3d(NULL, DTYPE_F32, panels(n), inner, LOW_RANK_PANEL), scale, 0);
    for (int64_t i = 0; i < tensor_elements(t); i++)
        if (i / (inner * LOW_RANK_PANEL) * LOW_RANK_PANEL + i % LOW_RANK_PANEL >= n)
            ((float *)t->data)[i] = 0;
}

static void check_low_rank_case(struct kcheck *k, const struct low_rank_case *p, enum dtype dtype) {
    static const char *const kinds[] = { "linear", "3x3", "3x3 down", "3x3 down right", "3x3 up" };
    struct subject s;
    const int count = count_of(p);
    if (!subject_start(k, &s, "low_rank_backward",
            "%s %dx%lldx%lldx%lld%s to %lld, %d terms, rank %lld%s%s %s", kinds[p->kind], ROWS,
            (long long)p->h, (long long)p->w, (long long)p->k, p->shorter ? " shorter" : "",
            (long long)p->channels, count, (long long)p->terms[0].rank,
            p->accumulate ? " accumulate" : "", p->frozen ? " frozen" : "", dtype_name(dtype)))
        return;
    const int64_t inner = (p->kind == CONV_1X1 ? 1 : 9) * p->k;
    s.tolerance = tolerance_for("low_rank_backward", dtype, dtype);
    subject_input(k, &s,
        tensor_4d(NULL, dtype, ROWS, conv_out_size(p->kind, p->h) - p->shorter,
            conv_out_size(p->kind, p->w) - p->shorter, p->channels),
        1, 0);
    const double tokens = (double)(tensor_elements(&s.inputs[0].t) / p->channels);
    s.y = tensor_4d(NULL, dtype, ROWS, p->h, p->w, p->k);
    subject_input(k, &s, s.y, 1, 0);
    subject_input(k, &s, s.y, 1, 0);
    for (int i = 0; i < count; i++) {
        const struct term_case *t = &p->terms[i];
        add_factor(k, &s, t->rank, inner, 2 / sqrtf((float)inner));
        add_factor(k, &s, t->n, t->rank, 2 / sqrtf((float)t->rank));
        s.flops += 4.0 * tokens * (double)t->rank * (double)(inner + t->n);
    }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < 2; j++)
            subject_gradient(k, &s, s.inputs[FACTORS + 2 * i + j].t,
                tolerance_for("low_rank_backward", DTYPE_F32, DTYPE_F32));
    s.run = run_low_rank;
    s.params = p;
    s.classes = CLASSES_SPREAD;
    s.bytes = (double)tensor_bytes(&s.inputs[0].t) + 2 * (double)tensor_bytes(&s.y);
    subject_check(k, &s);
}

void check_low_rank_backward(struct kcheck *k) {
    static const struct low_rank_case cases[] = {
        { CONV_1X1, 1, 1, 1, 1, { { 1, 0, 1 } }, false, false, QUICK, 0 },
        { CONV_1X1, 1, 7, 13, 17, { { 3, 5, 12 } }, false, false, QUICK, 0 },
        { CONV_1X1, 1, 7, 13, 17, { { 3, 5, 12 }, { 17, 0, 17 } }, true, true, QUICK, 0 },
        { CONV_1X1, 5, 13, 33, 51, { { 16, 0, 17 }, { 16, 17, 17 }, { 16, 34, 17 } }, false, false,
            QUICK, 0 },
        { CONV_1X1, 1, 67, 48, 48, { { 8, 0, 48 }, { 33, 0, 48 }, { 4, 8, 24 } }, true, false,
            QUICK, 0 },
        { CONV_1X1, 3, 50, 64, 96, { { 128, 0, 96 } }, false, false, QUICK, 0 },
        { CONV_3X3, 1, 1, 1, 1, { { 1, 0, 1 }, { 2, 0, 1 } }, false, false, QUICK, 0 },
        { CONV_3X3, 5, 7, 19, 33, { { 4, 0, 33 } }, true, false, QUICK, 0 },
        { CONV_3X3_DOWN, 7, 6, 16, 24, { { 18, 0, 24 } }, false, false, QUICK, 0 },
        { CONV_3X3_DOWN_RIGHT, 6, 8, 5, 9, { { 7, 0, 9 } }, true, false, QUICK, 0 },
        { CONV_3X3_UP, 3, 5, 16, 16, { { 4, 0, 16 }, { 9, 0, 16 } }, false, false, QUICK, 0 },
        { CONV_3X3_UP, 4, 3, 7, 10, { { 16, 0, 10 } }, true, false, QUICK, 1 },
        { CONV_3X3_UP, 9, 7, 6, 10, { { 33, 0, 10 } }, true, false, QUICK, 0 },
        { CONV_1X1, 1, 70, 320, 960, { { 16, 0, 320 }, { 16, 320, 320 }, { 16, 640, 320 } }, false,
            false, CHANNELS, 0 },
        { CONV_1X1, 1, 9, 1280, 1280, { { 33, 0, 1280 } }, true, false, CHANNELS, 0 },
        { CONV_3X3, 5, 5, 320, 320, { { 16, 0, 320 } }, false, false, CHANNELS, 0 },
        { CONV_1X1, 1, 37, 5120, 1280, { { 16, 0, 1280 } }, false, false, SLOW, 0 },
        { CONV_1X1, 64, 64, 320, 960, { { 16, 0, 320 }, { 16, 320, 320 }, { 16, 640, 320 } }, false,
            false, BENCH, 0 },
        { CONV_1X1, 64, 64, 320, 320, { { 16, 0, 320 } }, false, false, BENCH, 0 },
        { CONV_1X1, 32, 32, 640, 640, { { 16, 0, 640 } }, false, false, BENCH, 0 },
        { CONV_1X1, 16, 16, 1280, 1280, { { 16, 0, 1280 } }, false, false, BENCH, 0 },
        { CONV_1X1, 16, 16, 1280, 1280, { { 128, 0, 1280 } }, false, false, BENCH, 0 },
        { CONV_3X3, 64, 64, 320, 320, { { 16, 0, 320 } }, false, false, BENCH, 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++)
            if (is_time_for(k, cases[i].when) && has_activations(k, dtypes[d]))
                check_low_rank_case(k, &cases[i], dtypes[d]);
}
