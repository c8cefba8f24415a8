/* The backward of embedding, activations, geglu and concat; dropout, mse, square_pieces, and
 * the optimizers. */
#include "tests/kernels/kcheck/kcheck.h"

#include <math.h>

/* Elements of a row. --bench uses only the last one; --quick omits it. */
static const int64_t lengths[] = { 1, 17, 8191, 8200, 1310720 };

static bool is_length_wanted(const struct kcheck *k, size_t i) {
    return is_time_for(k, i < 4 ? QUICK : SLOW) || (k->bench && !k->quick && i == 4);
}

static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
#define DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

static const char *how(bool accumulate) {
    return accumulate ? " accumulate" : "";
}

/* Sets y to its initial contents before a gradient is added. */
static void start_y(
    struct compute *c, const struct tensor *before, bool accumulate, struct tensor *y) {
    if (accumulate)
        op_convert(c, &(struct convert_args){ .x = before, .y = y });
}

/* ---- embedding ---- */

/* Inputs: dy, ids, and one number, of which y is a copy; outputs: dtable, dpositions. */
static void run_embedding(
    struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    struct tensor table = s->inputs[3].t, positions = s->inputs[4].t;
    (void)row;
    start_y(c, &s->inputs[2].t, true, y);
    op_embedding_backward(c,
        &(struct embedding_backward_args){ &s->inputs[1].t, &s->inputs[0].t, &table, &positions });
}

static void check_embedding_case(
    struct kcheck *k, int64_t vocabulary, int64_t t, int64_t c, enum dtype dtype) {
    struct subject s;
    if (!subject_start(k, &s, "embedding_backward", "%lld 3x%lldx%lld %s", (long long)vocabulary,
            (long long)t, (long long)c, dtype_name(dtype)))
        return;
    subject_input(k, &s, tensor_3d(NULL, dtype, 3, t, c), 1, 0);
    struct tensor *ids = subject_input(k, &s, tensor_2d(NULL, DTYPE_F32, 3, t), 1, 0);
    ids->dtype = DTYPE_I32;
    for (int64_t i = 0; i < 3 * t; i++) /* one id occurs often, as padding does */
        ((int32_t *)ids->data)[i] = (int32_t)(i % 3 ? vocabulary - 1 : random_below(k, vocabulary));
    s.y = tensor_1d(NULL, DTYPE_F32, 1);
    subject_input(k, &s, s.y, 1, 0);
    const struct tolerance tolerance = tolerance_for("embedding_backward", DTYPE_F32, DTYPE_F32);
    subject_gradient(k, &s, tensor_2d(NULL, DTYPE_F32, vocabulary, c), tolerance);
    subject_gradient(k, &s, tensor_2d(NULL, DTYPE_F32, t + 2, c), tolerance);
    s.is_whole = true;
    s.run = run_embedding;
    s.bytes = 4.0 * (double)(3 * t * c);
    subject_check(k, &s);
}

void check_embedding_backward(struct kcheck *k) {
    for (size_t d = 0; d < DTYPES; d++) {
        if (!has_activations(k, dtypes[d]))
            continue;
        check_embedding_case(k, 1, 1, 1, dtypes[d]);
        check_embedding_case(k, 7, 19, 33, dtypes[d]);
        check_embedding_case(k, 500, 77, 768, dtypes[d]);
    }
}

/* ---- activation ---- */

struct activation_case {
    enum activation activation;
    bool accumulate;
};

static void run_activation(
    struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    const struct activation_case *p = s->params;
    struct tensor dy = subject_row(s, 0, row), x = subject_row(s, 1, row);
    struct tensor before = subject_row(s, 2, row);
    start_y(c, &before, p->accumulate, y);
    op_activation_backward(
        c, &(struct activation_backward_args){ &dy, p->activation == ACTIVATION_NONE ? NULL : &x,
               p->activation, y, p->accumulate });
}

static void check_activation_case(
    struct kcheck *k, int64_t n, const struct activation_case *p, enum dtype dtype) {
    struct subject s;
    if (!subject_start(k, &s, "activation_backward", "3x%lld activation %d%s %s", (long long)n,
            (int)p->activation, how(p->accumulate), dtype_name(dtype)))
        return;
    s.y = tensor_2d(NULL, dtype, 3, n);
    subject_input(k, &s, s.y, 1, 0);
    subject_input(k, &s, s.y, 8, 0);
    subject_input(k, &s, s.y, 1, 0);
    s.in_place = p->accumulate ? 0 : 1;
    s.floor = 1; /* away from 0, slopes have an absolute error of 1e-7 */
    s.classes = CLASSES_SPREAD;
    s.run = run_activation;
    s.params = p;
    s.tolerance = tolerance_for("activation_backward", dtype, dtype);
    s.bytes = (double)tensor_bytes(&s.y) * 3;
    subject_check(k, &s);
}

void check_activation_backward(struct kcheck *k) {
    static const struct activation_case cases[] = { { ACTIVATION_NONE, false },
        { ACTIVATION_NONE, true }, { ACTIVATION_SILU, false }, { ACTIVATION_SILU, true },
        { ACTIVATION_QUICK_GELU, false }, { ACTIVATION_GELU, false }, { ACTIVATION_GELU, true } };
    for (size_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); n++)
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
            for (size_t d = 0; d < DTYPES; d++)
                if (is_length_wanted(k, n) && has_activations(k, dtypes[d]))
                    check_activation_case(k, lengths[n], &cases[i], dtypes[d]);
}

/* ---- geglu ---- */

static void run_geglu(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    struct tensor dy = subject_row(s, 0, row), h = subject_row(s, 1, row);
    struct tensor before = subject_row(s, 2, row);
    const bool accumulate = *(const bool *)s->params;
    start_y(c, &before, accumulate, y);
    op_geglu_backward(c, &(struct geglu_backward_args){ &dy, &h, y, accumulate });
}

static void check_geglu_case(
    struct kcheck *k, int64_t tokens, int64_t half, const bool *accumulate, enum dtype dtype) {
    struct subject s;
    if (!subject_start(k, &s, "geglu_backward", "3x%lldx%lld%s %s", (long long)tokens,
            (long long)half, how(*accumulate), dtype_name(dtype)))
        return;
    subject_input(k, &s, tensor_3d(NULL, dtype, 3, tokens, half), 1, 0);
    s.y = tensor_3d(NULL, dtype, 3, tokens, 2 * half);
    subject_input(k, &s, s.y, 4, 0);
    subject_input(k, &s, s.y, 1, 0);
    s.floor = 1;
    s.classes = CLASSES_SPREAD;
    s.run = run_geglu;
    s.params = accumulate;
    s.tolerance = tolerance_for("geglu_backward", dtype, dtype);
    s.bytes = (double)tensor_bytes(&s.y) * 2.5;
    subject_check(k, &s);
}

void check_geglu_backward(struct kcheck *k) {
    static const bool ways[2] = { false, true };
    for (size_t d = 0; d < DTYPES; d++) {
        if (!has_activations(k, dtypes[d]))
            continue;
        for (int i = 0; !k->bench && i < 2; i++) {
            check_geglu_case(k, 1, 1, &ways[i], dtypes[d]);
            check_geglu_case(k, 5, 33, &ways[i], dtypes[d]);
            check_geglu_case(k, 3, 1280, &ways[i], dtypes[d]);
        }
        if (k->bench)
            check_geglu_case(k, 1024, 2560, &ways[0], dtypes[d]);
    }
}

/* ---- concat ---- */

struct concat_case {
    int64_t tokens, a, b;
    bool accumulate_a, accumulate_b, only_a;
};

/* Inputs: dy, initial da; output: db. */
static void run_concat(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    const struct concat_case *p = s->params;
    struct tensor dy = subject_row(s, 0, row), before = subject_row(s, 1, row);
    struct tensor db = subject_row(s, 2, row);
    start_y(c, &before, p->accumulate_a, y);
    op_concat_backward(c, &(struct concat_backward_args){
                              &dy, y, p->only_a ? NULL : &db, p->accumulate_a, p->accumulate_b });
}

static void check_concat_case(struct kcheck *k, const struct concat_case *p, enum dtype dtype) {
    struct subject s;
    if (!subject_start(k, &s, "concat_backward", "3x%lldx(%lld%s+%lld%s)%s %s",
            (long long)p->tokens, (long long)p->a, how(p->accumulate_a), (long long)p->b,
            how(p->accumulate_b), p->only_a ? " first" : "", dtype_name(dtype)))
        return;
    const struct tolerance tolerance = tolerance_for("concat_backward", DTYPE_F32, DTYPE_F32);
    subject_input(k, &s, tensor_3d(NULL, dtype, 3, p->tokens, p->a + p->b), 1, 0);
    s.y = tensor_3d(NULL, dtype, 3, p->tokens, p->a);
    subject_input(k, &s, s.y, 1, 0);
    subject_output(k, &s, tensor_3d(NULL, dtype, 3, p->tokens, p->b), true,
        p->accumulate_b || p->only_a, tolerance);
    s.run = run_concat;
    s.params = p;
    s.tolerance = tolerance;
    s.bytes = 2.0 * (double)tensor_bytes(&s.inputs[0].t);
    subject_check(k, &s);
}

void check_concat_backward(struct kcheck *k) {
    static const struct concat_case cases[] = { { 1, 1, 1, false, false, false },
        { 13, 7, 17, false, true, false }, { 13, 7, 17, true, false, false },
        { 5, 32, 48, true, true, false }, { 5, 32, 48, true, false, true },
        { 1024, 640, 320, false, true, false } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t d = 0; d < DTYPES; d++)
            if (has_activations(k, dtypes[d]))
                check_concat_case(k, &cases[i], dtypes[d]);
}

/* ---- dropout ---- */

struct dropout_case {
    float p;
    bool accumulate;
};

static void run_dropout(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    static const uint64_t seed = UINT64_C(0x123456789abcdef0), step = UINT64_C(0x1ffffffff);
    const struct dropout_case *p = s->params;
    struct tensor x = subject_row(s, 0, row), before = subject_row(s, 1, row);
    start_y(c, &before, p->accumulate, y);
    op_dropout(c, &(struct dropout_args){ &x, p->p, &seed, &step, 17, y, p->accumulate });
}

static void check_dropout_case(
    struct kcheck *k, int64_t n, const struct dropout_case *p, enum dtype dtype) {
    struct subject s;
    if (!subject_start(k, &s, "dropout", "3x%lld p %g%s %s", (long long)n, (double)p->p,
            how(p->accumulate), dtype_name(dtype)))
        return;
    s.y = tensor_2d(NULL, dtype, 3, n);
    subject_input(k, &s, s.y, 1, 0);
    subject_input(k, &s, s.y, 1, 0);
    s.in_place = p->accumulate ? 0 : 1;
    s.is_whole = true;
    s.run = run_dropout;
    s.params = p;
    s.tolerance = tolerance_for("dropout", dtype, dtype);
    s.bytes = (double)tensor_bytes(&s.y) * 2;
    subject_check(k, &s);
}

void check_dropout(struct kcheck *k) {
    static const struct dropout_case cases[] = { { 0, false }, { 0.1f, false }, { 0.1f, true },
        { 0.9375f, false } };
    for (size_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); n++)
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
            for (size_t d = 0; d < DTYPES; d++)
                if (is_length_wanted(k, n) && has_activations(k, dtypes[d]))
                    check_dropout_case(k, lengths[n], &cases[i], dtypes[d]);
}

/* ---- mse ---- */

/* Inputs: prediction, target; output d_prediction. */
static void run_mse(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    static const float weights[3] = { 1, -0.25f, 3 };
    struct tensor prediction = subject_row(s, 0, row), target = subject_row(s, 1, row);
    struct tensor d = subject_row(s, 2, row);
    op_mse(c, &(struct mse_args){ &prediction, &target, weights + (row < 0 ? 0 : row), y, &d });
}

void check_mse(struct kcheck *k) {
    for (size_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); n++) {
        struct subject s;
        if (!is_length_wanted(k, n) ||
            !subject_start(k, &s, "mse", "3x%lld", (long long)lengths[n]))
            continue;
        const struct tensor shape = tensor_2d(NULL, DTYPE_F32, 3, lengths[n]);
        s.tolerance = tolerance_for("mse", DTYPE_F32, DTYPE_F32);
        s.y = tensor_1d(NULL, DTYPE_F32, 3);
        subject_input(k, &s, shape, 1, 0);
        subject_input(k, &s, shape, 1, 0);
        subject_output(k, &s, shape, true, false, s.tolerance);
        s.run = run_mse;
        s.bytes = (double)tensor_bytes(&shape) * 3;
        subject_check(k, &s);
    }
}

/* ---- square_pieces ---- */

/* A row of y is a piece: computed alone, it must have the same bits. */
static void run_square_pieces(
    struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    struct tensor x = s->inputs[0].t;
    if (row >= 0) {
        const int64_t left = x.shape[0] - row * SQUARE_PIECE;
        x.data = (float *)x.data + row * SQUARE_PIECE;
        x.shape[0] = left < SQUARE_PIECE ? left : SQUARE_PIECE;
    }
    op_square_pieces(c, &(struct square_pieces_args){ &x, y });
}

static void check_square_pieces_of(struct kcheck *k, int64_t n) {
    struct subject s;
    if (!subject_start(k, &s, "square_pieces", "%lld", (long long)n))
        return;
    s.y = tensor_2d(NULL, DTYPE_F64, square_pieces_count(n), 2);
    subject_input(k, &s, tensor_1d(NULL, DTYPE_F32, n), 1, 0);
    s.run = run_square_pieces;
    s.tolerance = tolerance_for("square_pieces", DTYPE_F32, DTYPE_F32);
    s.bytes = (double)tensor_bytes(&s.inputs[0].t);
    subject_check(k, &s);
}

void check_square_pieces(struct kcheck *k) {
    static const int64_t some[] = { 1, 17, 8191, SQUARE_PIECE, SQUARE_PIECE + 1,
        3 * SQUARE_PIECE + 8200 };
    for (size_t i = 0; !k->bench && i < sizeof(some) / sizeof(some[0]); i++)
        check_square_pieces_of(k, some[i]);
    if (is_length_wanted(k, 4))
        check_square_pieces_of(k, lengths[4]);
}

/* ---- adamw ---- */

/* Inputs: the gradient, the old parameter; outputs: m, v. */
static void run_adamw(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    struct tensor m = s->inputs[2].t, v = s->inputs[3].t;
    const int64_t step = *(const int64_t *)s->params;
    const double limit = step == 2 ? 0.2 : 0;
    (void)row;
    start_y(c, &s->inputs[1].t, true, y);
    op_adamw(c, &(struct adamw_args){
                    y, &s->inputs[0].t, &m, &v, 1e-2, 0.9, 0.999, 1e-8, 1e-2, 0.5, step, limit });
}

void check_adamw(struct kcheck *k) {
    static const int64_t steps[] = { 1, 2, 1000, 100000 };
    for (size_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); n++) {
        for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
            struct subject s;
            if (!is_length_wanted(k, n) || !subject_start(k, &s, "adamw", "%lld at step %lld",
                                               (long long)lengths[n], (long long)steps[i]))
                continue;
            s.tolerance = tolerance_for("adamw", DTYPE_F32, DTYPE_F32);
            s.y = tensor_1d(NULL, DTYPE_F32, lengths[n]);
            subject_input(k, &s, s.y, 1, 0);
            subject_input(k, &s, s.y, 1, 0);
            subject_output(k, &s, s.y, false, true, s.tolerance);
            subject_output(k, &s, s.y, false, true, s.tolerance);
            for (int64_t j = 0; j < lengths[n]; j++) { /* the mean of squares is never negative */
                float *v = (float *)s.inputs[3].copy + j;
                *v = fabsf(*v);
            }
            s.is_whole = true;
            s.run = run_adamw;
            s.params = &steps[i];
            s.bytes = (double)tensor_bytes(&s.y) * 7;
            subject_check(k, &s);
        }
    }
}

/* ---- the other optimizers ---- */

/* Makes an input's numbers positive. */
static void make_positive(const struct subject *s, int input) {
    float *x = (float *)s->inputs[input].copy;
    for (int64_t i = 0; i < tensor_elements(&s->inputs[input].t); i++)
        x[i] = fabsf(x[i]) + 0.01f;
}

/* Inputs: the gradient, the old parameter; output: m. */
static void run_lion(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    struct tensor m = s->inputs[2].t;
    (void)row;
    start_y(c, &s->inputs[1].t, true, y);
    op_lion(c, &(struct lion_args){ y, &s->inputs[0].t, &m, 1e-2, 0.9, 0.99, 0.1, 0.5, 0.2 });
}

void check_lion(struct kcheck *k) {
    for (size_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); n++) {
        struct subject s;
        if (!is_length_wanted(k, n) || !subject_start(k, &s, "lion", "%lld", (long long)lengths[n]))
            continue;
        s.tolerance = tolerance_for("lion", DTYPE_F32, DTYPE_F32);
        s.y = tensor_1d(NULL, DTYPE_F32, lengths[n]);
        subject_input(k, &s, s.y, 1, 0);
        subject_input(k, &s, s.y, 1, 0);
        subject_output(k, &s, s.y, false, true, s.tolerance);
        /* The same signs, so that no rounding decides the sign of the step. */
        const float *gradient = s.inputs[0].t.data;
        float *m = (float *)s.inputs[2].copy;
        for (int64_t i = 0; i < lengths[n]; i++)
            m[i] = copysignf(m[i], gradient[i]);
        s.is_whole = true;
        s.run = run_lion;
        s.bytes = (double)tensor_bytes(&s.y) * 5;
        subject_check(k, &s);
    }
}

/* Inputs: parameter, start, gradient; outputs: m, v, s. */
static void run_prodigy_sums(
    struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    struct tensor m = s->inputs[3].t, v = s->inputs[4].t, size = s->inputs[5].t;
    (void)row;
    start_y(c, &s->inputs[6].t, true, y);
    op_prodigy_sums(
        c, &(struct prodigy_sums_args){ &s->inputs[0].t, &s->inputs[1].t, &s->inputs[2].t, &m, &v,
               &size, y, 0.5, 0.3, 0.9, 0.99, 0.995, 0.01, 0.5, 0.2 });
}

void check_prodigy_sums(struct kcheck *k) {
    for (size_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); n++) {
        struct subject s;
        if (!is_length_wanted(k, n) ||
            !subject_start(k, &s, "prodigy_sums", "%lld", (long long)lengths[n]))
            continue;
        const struct tensor shape = tensor_1d(NULL, DTYPE_F32, lengths[n]);
        s.tolerance = tolerance_for("prodigy_sums", DTYPE_F32, DTYPE_F32);
        s.y = tensor_1d(NULL, DTYPE_F32, 2);
        subject_input(k, &s, shape, 1, 0);
        subject_input(
            k, &s, shape, 1, 2); /* a start on one side, so that the sum does not cancel */
        subject_input(k, &s, shape, 1, 1);
        for (int i = 0; i < 3; i++)
            subject_output(k, &s, shape, false, true, s.tolerance);
        subject_input(k, &s, s.y, 1, 0);
        make_positive(&s, 4);
        s.is_whole = true;
        s.run = run_prodigy_sums;
        s.bytes = (double)tensor_bytes(&shape) * 9;
        subject_check(k, &s);
    }
}

/* Inputs: the old parameter, m, v. */
static void run_prodigy(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    (void)row;
    start_y(c, &s->inputs[0].t, true, y);
    op_prodigy(c, &(struct prodigy_args){ y, &s->inputs[1].t, &s->inputs[2].t, 1e-2, 1e-8, 0.1 });
}

void check_prodigy(struct kcheck *k) {
    for (size_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); n++) {
        struct subject s;
        if (!is_length_wanted(k, n) ||
            !subject_start(k, &s, "prodigy", "%lld", (long long)lengths[n]))
            continue;
        s.tolerance = tolerance_for("prodigy", DTYPE_F32, DTYPE_F32);
        s.y = tensor_1d(NULL, DTYPE_F32, lengths[n]);
        subject_input(k, &s, s.y, 1, 0);
        subject_input(k, &s, s.y, 1, 0);
        subject_input(k, &s, s.y, 1, 1.01f);
        s.is_whole = true;
        s.run = run_prodigy;
        s.bytes = (double)tensor_bytes(&s.y) * 4;
        subject_check(k, &s);
    }
}

struct adafactor_case {
    struct factored_shape shape;
    bool scale_parameter;
};

/* Inputs: the gradient, the old parameter; outputs: rows, cols. */
static void run_adafactor(
    struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    const struct adafactor_case *p = s->params;
    struct tensor rows = s->inputs[2].t, cols = s->inputs[3].t;
    (void)row;
    start_y(c, &s->inputs[1].t, true, y);
    op_adafactor(c, &(struct adafactor_args){ y, &s->inputs[0].t, p->shape, &rows, &cols, 1e-2, 0.9,
                        1, 0.1, p->scale_parameter, 0.5, 0.3 });
}

void check_adafactor(struct kcheck *k) {
    static const struct adafactor_case cases[] = { { { 1, 1, 1, 1, true }, false },
        { { 70, 33, 1, 1, true }, true }, { { 20, 130, 1, 16, true }, false },
        { { 130, 5, 1, 16, true }, true }, { { 7, 5, 3, 1, false }, true },
        { { 20, 9, 3, 16, false }, false }, { { 33, 4, 1, 16, false }, true },
        { { 77, 1, 1, 1, false }, false }, { { 1280, 640, 1, 1, true }, true },
        { { 320, 320, 3, 1, false }, false } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct factored_shape *shape = &cases[i].shape;
        struct subject s;
        const bool is_real = i >= 8;
        if (!(is_time_for(k, is_real ? SLOW : QUICK) || (k->bench && !k->quick && is_real)) ||
            !subject_start(k, &s, "adafactor", "%s of %lldx%lld, side %d, panels of %d%s",
                shape->is_matrix ? "matrix" : "matrices", (long long)shape->n, (long long)shape->k,
                shape->side, shape->panel, cases[i].scale_parameter ? ", scaled" : ""))
            continue;
        s.tolerance = tolerance_for("adafactor", DTYPE_F32, DTYPE_F32);
        s.y = tensor_1d(NULL, DTYPE_F32, factored_floats(shape));
        subject_input(k, &s, s.y, 1, 0);
        subject_input(k, &s, s.y, 1, 0);
        subject_output(
            k, &s, tensor_1d(NULL, DTYPE_F32, factored_rows(shape)), false, true, s.tolerance);
        subject_output(
            k, &s, tensor_1d(NULL, DTYPE_F32, factored_cols(shape)), false, true, s.tolerance);
        make_positive(&s, 2);
        make_positive(&s, 3);
        s.is_whole = true;
        s.run = run_adafactor;
        s.params = &cases[i];
        s.bytes = (double)tensor_bytes(&s.y) * 5;
        subject_check(k, &s);
    }
}
