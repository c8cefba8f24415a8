/* group_norm_backward, layer_norm_backward and attention_backward. */
#include "tests/kernels/kcheck/kcheck.h"

#include <string.h>

static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };

/* ---- norms ---- */

struct norm_case {
    int64_t rows, h, w, c;
    int groups; /* 0: layer_norm */
    bool silu;
    float offset;                /* the inputs' mean */
    bool accumulate, parameters; /* parameters: also dgamma and dbeta */
    enum when when;
};

/* Inputs: dy, x, gamma, beta, initial dx; outputs: dgamma, dbeta. */
static void run_norm(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    const struct norm_case *p = s->params;
    struct tensor dy = subject_row(s, 0, row), x = subject_row(s, 1, row);
    struct tensor before = subject_row(s, 4, row);
    struct tensor dgamma = s->inputs[5].t, dbeta = s->inputs[6].t;
    const struct tensor *gamma = &s->inputs[2].t, *beta = &s->inputs[3].t;
    if (p->accumulate)
        op_convert(c, &(struct convert_args){ .x = &before, .y = y });
    if (p->groups)
        op_group_norm_backward(c,
            &(struct group_norm_backward_args){ &dy, &x, gamma, beta, p->groups, 1e-5f, p->silu, y,
                p->accumulate, p->parameters ? &dgamma : NULL, p->parameters ? &dbeta : NULL });
    else
        op_layer_norm_backward(
            c, &(struct layer_norm_backward_args){ &dy, &x, gamma, 1e-5f, y, p->accumulate,
                   p->parameters ? &dgamma : NULL, p->parameters ? &dbeta : NULL });
}

static void check_norm_case(struct kcheck *k, const struct norm_case *p, enum dtype dtype) {
    struct subject s;
    const char *op = p->groups ? "group_norm_backward" : "layer_norm_backward";
    if (!subject_start(k, &s, op, "%lldx%lldx%lldx%lld in %d%s mean %g%s%s %s", (long long)p->rows,
            (long long)p->h, (long long)p->w, (long long)p->c, p->groups, p->silu ? " silu" : "",
            (double)p->offset, p->accumulate ? " accumulate" : "",
            p->parameters ? " parameters" : "", dtype_name(dtype)))
        return;
    const struct tensor channels = tensor_1d(NULL, DTYPE_F32, p->c);
    const struct tolerance sums = tolerance_for(op, DTYPE_F32, DTYPE_F32);
    s.y = tensor_4d(NULL, dtype, p->rows, p->h, p->w, p->c);
    subject_input(k, &s, s.y, 1, 0);
    subject_input(k, &s, s.y, 1, p->offset);
    subject_input(k, &s, channels, 0.5f, 1);
    subject_input(k, &s, channels, 1, 0);
    subject_input(k, &s, s.y, 1, 0);
    if (p->parameters) {
        subject_gradient(k, &s, channels, sums);
        subject_gradient(k, &s, channels, sums);
    }
    s.in_place = p->accumulate ? 0 : 1;
    s.floor = 0.05;             /* dx of a small group is nearly 0 */
    s.classes = CLASSES_SPREAD; /* whether infinities cancel depends on the order of a sum */
    s.run = run_norm;
    s.params = p;
    s.tolerance = tolerance_for(op, dtype, dtype);
    s.bytes = (double)tensor_bytes(&s.y) * 5;
    subject_check(k, &s);
}

static void check_norm_cases(struct kcheck *k, const struct norm_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++)
        for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++)
            if (is_time_for(k, cases[i].when) && has_activations(k, dtypes[d]))
                check_norm_case(k, &cases[i], dtypes[d]);
}

void check_group_norm_backward(struct kcheck *k) {
    static const struct norm_case cases[] = {
        { 3, 1, 1, 1, 1, false, 0, false, true, QUICK },
        { 3, 5, 7, 6, 3, true, 0, false, true, QUICK },
        { 3, 3, 3, 17, 17, false, 0, true, true, QUICK },
        { 3, 4, 5, 33, 11, true, 0, false, false, QUICK },
        { 3, 8, 8, 64, 32, true, 100, true, false, QUICK },
        { 3, 11, 13, 96, 4, true, -3, false, true, QUICK },
        { 3, 8, 4, 320, 32, false, 0, true, true, CHANNELS },
        { 2, 64, 64, 320, 32, true, 0.5f, false, true, SLOW },
        { 2, 16, 16, 1280, 32, true, 0, true, false, SLOW },
        { 2, 16, 16, 2560, 32, false, 0, false, true, SLOW },
        { 1, 64, 64, 320, 32, true, 0, false, false, BENCH },
        { 1, 32, 32, 640, 32, true, 0, false, false, BENCH },
        { 1, 16, 16, 1280, 32, true, 0, false, false, BENCH },
        { 1, 64, 64, 320, 32, true, 0, false, true, BENCH },
    };
    check_norm_cases(k, cases, sizeof(cases) / sizeof(cases[0]));
}

void check_layer_norm_backward(struct kcheck *k) {
    static const struct norm_case cases[] = {
        { 3, 1, 1, 1, 0, false, 0, false, true, QUICK },
        { 3, 1, 5, 7, 0, false, 0, true, true, QUICK },
        { 3, 1, 5, 17, 0, false, 0, false, false, QUICK },
        { 3, 1, 7, 320, 0, false, 100, false, true, QUICK },
        { 3, 2, 9, 64, 0, false, 0, true, false, QUICK },
        { 3, 1, 77, 768, 0, false, 0, false, true, SLOW },
        { 2, 1, 4096, 320, 0, false, 0, true, true, SLOW },
        { 2, 1, 256, 1280, 0, false, 0, false, false, SLOW },
        { 1, 1, 4096, 320, 0, false, 0, false, false, BENCH },
        { 1, 1, 1024, 640, 0, false, 0, false, false, BENCH },
        { 1, 1, 256, 1280, 0, false, 0, false, false, BENCH },
        { 1, 1, 4096, 320, 0, false, 0, false, true, BENCH },
    };
    check_norm_cases(k, cases, sizeof(cases) / sizeof(cases[0]));
}

/* ---- attention ---- */

struct attention_case {
    int64_t rows, tq, tk;
    int heads, d;
    bool causal, fused;     /* fused: q, k, v are parts of one projection, as are their gradients */
    float size;             /* of q and k: larger makes sharper weights */
    bool accumulate, no_kv; /* dq alone */
    enum when when;
    int lengths[3]; /* keys of each row, or 0: all; NaN lies behind them */
};

static int64_t keys_of(const struct attention_case *p, int64_t row) {
    return p->lengths[0] ? p->lengths[row] : p->tk;
}

/* Offsets of the heads in a case that is not fused: unaligned, with k and v in one tensor. */
#define Q_OFFSET 1
#define V_OFFSET(width) ((width) + 3)

static int64_t width_of(const struct attention_case *p) {
    return (int64_t)p->heads * p->d;
}

/* Inputs: dy, y, q (or the whole projection), k and v in one tensor, initial dq, lengths; output:
 * dkv. */
static void run_attention(
    struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    const struct attention_case *p = s->params;
    const int64_t width = width_of(p);
    struct tensor dy = subject_row(s, 0, row), out = subject_row(s, 1, row);
    struct tensor q = subject_row(s, 2, row), kv = p->fused ? q : subject_row(s, 3, row);
    struct tensor before = subject_row(s, 4, row), lengths = subject_row(s, 5, row);
    struct tensor dkv = subject_row(s, 6, row);
    op_convert(c, &(struct convert_args){ .x = &before, .y = y });
    op_attention_backward(c, &(struct attention_backward_args){ .q = &q,
                                 .k = &kv,
                                 .v = &kv,
                                 .y = &out,
                                 .dy = &dy,
                                 .q_offset = p->fused ? 0 : Q_OFFSET,
                                 .k_offset = p->fused ? width : 0,
                                 .v_offset = p->fused ? 2 * width : V_OFFSET(width),
                                 .heads = p->heads,
                                 .head_dim = p->d,
                                 .scale = p->d == 40 ? 0.158113883f : 0.125f,
                                 .causal = p->causal,
                                 .lengths = p->lengths[0] ? &lengths : NULL,
                                 .dq = y,
                                 .dk = p->no_kv   ? NULL
                                       : p->fused ? y
                                                  : &dkv,
                                 .dv = p->no_kv   ? NULL
                                       : p->fused ? y
                                                  : &dkv,
                                 .accumulate = p->accumulate });
}

/* Computes the forward's y with the reference. Writes NaN behind the keys. */
static void prepare(struct subject *s, const struct attention_case *p) {
    const int64_t width = width_of(p);
    const struct tensor *q = &s->inputs[2].t, *kv = p->fused ? q : &s->inputs[3].t;
    int32_t *lengths = s->inputs[5].t.data;
    for (int64_t row = 0; row < p->rows; row++) {
        lengths[row] = (int32_t)keys_of(p, row);
        if (p->fused)
            continue;
        const struct tensor t = subject_row(s, 3, row);
        const size_t key_bytes = tensor_bytes(&t) / (size_t)p->tk;
        memset((char *)t.data + (size_t)keys_of(p, row) * key_bytes, 0xff,
            (size_t)(p->tk - keys_of(p, row)) * key_bytes);
    }
    struct compute c = { .kernels = kernels_reference() };
    op_attention(&c, &(struct attention_args){ q, kv, kv, p->fused ? 0 : Q_OFFSET,
                         p->fused ? width : 0, p->fused ? 2 * width : V_OFFSET(width), p->heads,
                         p->d, p->d == 40 ? 0.158113883f : 0.125f, p->causal, &s->inputs[1].t,
                         p->lengths[0] ? &s->inputs[5].t : NULL });
    if (!compute_ok(&c))
        printf("kcheck: %s\n", c.error.message); /* the call under test fails too */
}

static void check_attention_case(
    struct kcheck *k, const struct attention_case *p, enum dtype dtype) {
    static const struct tolerance rounded = { 6e-3,
        "y, weights and their slopes rounded to bf16 (2^-9) before they are multiplied" };
    static const struct tolerance rounded_f16 = { 8e-4, "the same, rounded to f16 (2^-12)" };
    struct subject s;
    if (!subject_start(k, &s, "attention_backward",
            "%lldx%lld to %lld %d heads of %d%s%s%s size %g%s%s %s", (long long)p->rows,
            (long long)p->tq, (long long)p->tk, p->heads, p->d, p->causal ? " causal" : "",
            p->fused ? " fused" : "", p->lengths[0] ? " lengths" : "", (double)p->size,
            p->accumulate ? " accumulate" : "", p->no_kv ? " dq" : "", dtype_name(dtype)))
        return;
    const int64_t width = width_of(p);
    const struct tensor out = tensor_3d(NULL, dtype, p->rows, p->tq, width);
    s.tolerance = dtype == DTYPE_BF16  ? rounded
                  : dtype == DTYPE_F16 ? rounded_f16
                                       : tolerance_for("attention_backward", dtype, dtype);
    subject_input(k, &s, out, 1, 0);
    subject_input(k, &s, out, 1, 0);
    s.y = tensor_3d(NULL, dtype, p->rows, p->tq, p->fused ? 3 * width : width + 2);
    subject_input(k, &s, s.y, p->size, 0);
    const struct tensor kv = tensor_3d(
        NULL, dtype, p->rows, p->tk, p->fused ? 1 : V_OFFSET(width) + width);
    subject_input(k, &s, kv, p->size, 0);
    subject_input(k, &s, s.y, 1, 0);
    s.inputs[s.input_count++] = buffer_create(tensor_1d(NULL, DTYPE_I32, p->rows), 0);
    /* Memory between the heads must not be written, so it starts with random numbers and must keep
     * them. */
    subject_output(k, &s, kv, true, true, s.tolerance);
    prepare(&s, p);
    s.classes = CLASSES_SPREAD;
    s.run = run_attention;
    s.params = p;
    s.floor = 0.01;
    s.flops = (p->no_kv ? 6.0 : 10.0) * (double)(p->rows * p->tq * p->tk) * (double)width;
    subject_check(k, &s);
}

void check_attention_backward(struct kcheck *k) {
    static const struct attention_case cases[] = {
        { 3, 1, 1, 1, 1, false, false, 1, false, false, QUICK, { 0 } },
        { 3, 5, 3, 2, 7, false, false, 1, false, false, QUICK, { 0 } },
        { 3, 5, 3, 2, 7, false, false, 1, true, true, QUICK, { 0 } },
        { 3, 7, 7, 3, 8, true, true, 2, false, false, QUICK, { 0 } },
        { 3, 47, 127, 2, 40, false, false, 1, true, false, QUICK, { 0 } },
        { 3, 49, 129, 1, 40, false, false, 4, false, false, QUICK, { 0 } },
        { 3, 97, 97, 2, 24, false, true, 1, true, false, QUICK, { 0 } },
        { 3, 77, 77, 2, 64, true, true, 1, false, false, QUICK, { 0 } },
        { 3, 131, 33, 1, 33, true, false, 2, false, false, QUICK, { 0 } },
        { 3, 16, 77, 2, 160, false, false, 1, false, false, QUICK, { 0 } },
        { 3, 20, 231, 2, 40, false, false, 2, false, false, QUICK, { 77, 231, 154 } },
        { 3, 9, 70, 1, 12, false, false, 1, true, false, QUICK, { 1, 33, 32 } },
        { 3, 33, 300, 1, 16, false, false, 1, false, true, QUICK, { 300, 257, 5 } },
        { 2, 70, 70, 2, 80, false, true, 1, false, false, CHANNELS, { 0 } },
        { 2, 67, 67, 2, 160, false, true, 1, true, false, CHANNELS, { 0 } },
        { 2, 256, 256, 2, 160, false, true, 1, false, false, SLOW, { 0 } },
        { 2, 1024, 1024, 1, 40, false, true, 2, false, false, SLOW, { 0 } },
        { 2, 1024, 77, 2, 40, false, false, 1, false, false, SLOW, { 0 } },
        { 1, 4096, 4096, 8, 40, false, true, 1, false, false, BENCH, { 0 } },
        { 1, 1024, 1024, 8, 80, false, true, 1, false, false, BENCH, { 0 } },
        { 1, 256, 256, 8, 160, false, true, 1, false, false, BENCH, { 0 } },
        { 1, 4096, 77, 8, 40, false, false, 1, false, false, BENCH, { 0 } },
        { 1, 4096, 77, 8, 40, false, false, 1, false, true, BENCH, { 0 } },
        { 1, 1024, 77, 8, 80, false, false, 1, false, false, BENCH, { 0 } },
        { 1, 77, 77, 12, 64, true, true, 1, false, false, BENCH, { 0 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++)
            if (is_time_for(k, cases[i].when) && has_activations(k, dtypes[d]))
                check_attention_case(k, &cases[i], dtypes[d]);
}
