/* Compares training's operations with torch's autograd and optimizers
 * (tests/reference/backward_golden.py), for small shapes and on every path (backward_path.h).
 * backward_differences_test.c compares the gradients with the reference's own forward. */
#include "kernels/compute/compute.h"
#include "kernels/pack.h"
#include "tests/check.h"
#include "tests/kernels/backward_golden.h"
#include "tests/kernels/backward_path.h"
#include "tests/kernels/narrow.h"
#include "tests/kernels/stream.h"

#define MAX 1024
#define ALLOWED 1e-5
#define ALLOWED_OF_REFERENCE 1e-6

static float memory[12][MAX];
static uint64_t compared; /* OPERATION_BITs, compared so far */
static double worst_of_all;

/* Does what `stream` does, but returns the tensor on the path. */
static struct tensor input(float *out, uint32_t s, struct tensor shape) {
    return on_path(stream(out, s, shape));
}

/* out: filled with zeros, because a parameter's gradient is added to it. */
static struct tensor zeros(float *out, struct tensor shape) {
    memset(out, 0, tensor_bytes(&shape));
    shape.data = out;
    return on_path(shape);
}

/* out: filled with NaN, which a written gradient must replace. */
static struct tensor poison(float *out, struct tensor shape) {
    memset(out, 0xff, tensor_bytes(&shape));
    shape.data = out;
    return on_path(shape);
}

static bool on_reference(void) {
    return path_device == kernels_reference();
}

static struct compute fresh(void) {
    return (struct compute){ .kernels = &path };
}

/* Compares each element relative to its own size plus 0.1. A gradient near 0 is a sum of terms of
 * about 1 that cancel, so its error is as large as theirs. Also records that the operations called
 * were compared. */
static void compare(
    const char *name, const struct compute *c, const float *got, const float *want, int n) {
    CHECK(compute_ok(c), "%s: %s", name, c->error.message);
    double worst = 0;
    for (int i = 0; i < n; i++) {
        const double off = fabs((double)got[i] - (double)want[i]) / (fabs((double)want[i]) + 0.1);
        worst = worse_of(worst, off);
    }
    printf("%-36s worst relative error %.2g\n", name, worst);
    CHECK(
        worst < (on_reference() ? ALLOWED_OF_REFERENCE : ALLOWED), "%s is off by %g", name, worst);
    worst_of_all = worse_of(worst_of_all, worst);
    compared |= path_entered;
    path_entered = 0;
}
#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))
#define COMPARE(c, got, golden) compare(#golden, c, got, golden, COUNT(golden))

static void linear(void) {
    struct compute c = fresh();
    const struct tensor x = input(memory[0], 1, tensor_2d(NULL, DTYPE_F32, 5, 6));
    const struct tensor w = stream(memory[1], 2, tensor_2d(NULL, DTYPE_F32, 8, 6));
    const struct tensor dy = input(memory[2], 9, tensor_2d(NULL, DTYPE_F32, 5, 8));
    struct tensor dx = poison(memory[3], x), dw = zeros(memory[4], w);
    struct tensor dbias = zeros(memory[5], tensor_1d(NULL, DTYPE_F32, 8));
    struct packed *weight = NULL;
    CHECK(linear_pack(c.kernels, "w", &w, NULL, false, DTYPE_F32, &weight, &c.error), "pack");
    const struct linear_backward_args args = { &dy, weight, &x, &dx, false, &dw, &dbias };
    op_linear_backward(&c, &args);
    COMPARE(&c, memory[3], golden_linear_d_x);
    COMPARE(&c, memory[4], golden_linear_d_w);
    COMPARE(&c, memory[5], golden_linear_d_bias);
    /* A parameter's gradient is always added to; an activation's only with `accumulate`. */
    struct linear_backward_args again = args;
    again.accumulate = true;
    again.dbias = NULL;
    op_linear_backward(&c, &again);
    float twice[MAX];
    for (int i = 0; i < COUNT(golden_linear_d_x); i++)
        twice[i] = 2 * golden_linear_d_x[i];
    compare("twice golden_linear_d_x", &c, memory[3], twice, COUNT(golden_linear_d_x));
    for (int i = 0; i < COUNT(golden_linear_d_w); i++)
        twice[i] = 2 * golden_linear_d_w[i];
    compare("twice golden_linear_d_w", &c, memory[4], twice, COUNT(golden_linear_d_w));
    COMPARE(&c, memory[5], golden_linear_d_bias);
    packed_destroy(weight);
}

struct conv_golden {
    const float *x, *w, *bias, *row;
};

static void conv(
    enum conv_kind kind, int64_t h, int64_t w, const struct conv_golden *golden, const char *name) {
    static const char *const parts[] = { "x", "w", "bias", "row" };
    struct compute c = fresh();
    const int64_t size = kind == CONV_1X1 ? 1 : 3;
    const struct tensor x = input(memory[0], 1, tensor_4d(NULL, DTYPE_F32, 2, 5, 4, 3));
    const struct tensor k = stream(memory[1], 2, tensor_4d(NULL, DTYPE_F32, 4, 3, size, size));
    const struct tensor dy = input(memory[2], 9, tensor_4d(NULL, DTYPE_F32, 2, h, w, 4));
    struct tensor dx = poison(memory[3], x);
    struct tensor dw = zeros(memory[4], tensor_4d(NULL, DTYPE_F32, 4, size, size, 3));
    struct tensor dbias = zeros(memory[5], tensor_1d(NULL, DTYPE_F32, 4));
    struct tensor row = poison(memory[6], tensor_2d(NULL, DTYPE_F32, 2, 4));
    struct packed *weight = NULL;
    CHECK(conv2d_pack(c.kernels, "w", &k, NULL, kind, DTYPE_F32, &weight, &c.error), "pack");
    op_conv2d_backward(&c,
        &(struct conv2d_backward_args){ &dy, weight, &x, &dx, false, &dw, &dbias, &row, false });
    const struct tensor *tensors[] = { &dx, &dw, &dbias, &row };
    const float *const wants[] = { golden->x, golden->w, golden->bias, golden->row };
    for (int i = 0; i < 4; i++) {
        char text[64];
        snprintf(text, sizeof(text), "golden_conv_%s_d_%s", name, parts[i]);
        compare(text, &c, memory[3 + i], wants[i], (int)tensor_elements(tensors[i]));
    }
    packed_destroy(weight);
}
#define CONV(kind, h, w, name)                                                                     \
    conv(kind, h, w,                                                                               \
        &(struct conv_golden){ golden_conv_##name##_d_x, golden_conv_##name##_d_w,                 \
            golden_conv_##name##_d_bias, golden_conv_##name##_d_row },                             \
        #name)

static void norms(void) {
    const struct tensor x = input(memory[0], 1, tensor_4d(NULL, DTYPE_F32, 2, 3, 4, 6));
    const struct tensor gamma = input(memory[1], 2, tensor_1d(NULL, DTYPE_F32, 6));
    const struct tensor beta = input(memory[2], 3, tensor_1d(NULL, DTYPE_F32, 6));
    struct tensor dy = input(memory[3], 9, x), dx = poison(memory[4], x);
    struct tensor dgamma = zeros(memory[5], gamma), dbeta = zeros(memory[6], beta);
    struct compute c = fresh();
    struct group_norm_backward_args args = { &dy, &x, &gamma, &beta, 3, 1e-5f, false, &dx, false,
        &dgamma, &dbeta };
    op_group_norm_backward(&c, &args);
    COMPARE(&c, memory[4], golden_group_norm_d_x);
    COMPARE(&c, memory[5], golden_group_norm_d_gamma);
    COMPARE(&c, memory[6], golden_group_norm_d_beta);
    /* dx may be the same memory as dy. */
    args.silu = true;
    args.dx = &dy;
    zeros(memory[5], gamma);
    zeros(memory[6], beta);
    op_group_norm_backward(&c, &args);
    COMPARE(&c, memory[3], golden_group_norm_silu_d_x);
    COMPARE(&c, memory[5], golden_group_norm_silu_d_gamma);
    COMPARE(&c, memory[6], golden_group_norm_silu_d_beta);

    const struct tensor tokens = tensor_view_2d(&x, 24, 6), seven = tensor_rows(&tokens, 0, 7);
    dy = input(memory[3], 9, seven);
    dx = poison(memory[4], seven);
    zeros(memory[5], gamma);
    zeros(memory[6], beta);
    op_layer_norm_backward(&c, &(struct layer_norm_backward_args){
                                   &dy, &seven, &gamma, 1e-5f, &dx, false, &dgamma, &dbeta });
    COMPARE(&c, memory[4], golden_layer_norm_d_x);
    COMPARE(&c, memory[5], golden_layer_norm_d_gamma);
    COMPARE(&c, memory[6], golden_layer_norm_d_beta);
}

static void attention(void) {
    const struct tensor qkv = input(memory[0], 1, tensor_3d(NULL, DTYPE_F32, 2, 5, 24));
    struct tensor y = poison(memory[1], tensor_3d(NULL, DTYPE_F32, 2, 5, 8));
    const struct tensor dy = input(memory[2], 9, y);
    struct tensor d = poison(memory[3], qkv);
    struct attention_backward_args args = { &qkv, &qkv, &qkv, &y, &dy, 0, 8, 16, 2, 4, 0.7f, false,
        NULL, &d, &d, &d, false };
    for (int causal = 0; causal < 2; causal++) {
        struct compute c = fresh();
        args.causal = causal;
        op_attention(&c, &(struct attention_args){
                             &qkv, &qkv, &qkv, 0, 8, 16, 2, 4, 0.7f, args.causal, &y, NULL });
        op_attention_backward(&c, &args);
        if (causal)
            COMPARE(&c, memory[3], golden_attention_causal_d_qkv);
        else
            COMPARE(&c, memory[3], golden_attention_d_qkv);
    }
    const struct tensor q = input(memory[0], 1, tensor_3d(NULL, DTYPE_F32, 2, 3, 8));
    const struct tensor kv = input(memory[1], 2, tensor_3d(NULL, DTYPE_F32, 2, 6, 16));
    const int32_t keys[2] = { 4, 6 };
    memcpy(memory[6], keys, sizeof(keys));
    const struct tensor lengths = on_path(tensor_1d(memory[6], DTYPE_I32, 2));
    struct tensor out = poison(memory[2], q), dq = poison(memory[4], q);
    struct tensor dkv = poison(memory[5], kv);
    const struct tensor d_out = input(memory[3], 9, q);
    struct compute c = fresh();
    op_attention(
        &c, &(struct attention_args){ &q, &kv, &kv, 0, 0, 8, 2, 4, 0.7f, false, &out, &lengths });
    op_attention_backward(&c, &(struct attention_backward_args){ &q, &kv, &kv, &out, &d_out, 0, 0,
                                  8, 2, 4, 0.7f, false, &lengths, &dq, &dkv, &dkv, false });
    COMPARE(&c, memory[4], golden_attention_lengths_d_q);
    COMPARE(&c, memory[5], golden_attention_lengths_d_kv);
}

static void embedding(void) {
    const int32_t values[6] = { 3, 0, 3, 1, 3, 0 };
    memcpy(memory[3], values, sizeof(values));
    const struct tensor ids = on_path(tensor_2d(memory[3], DTYPE_I32, 2, 3));
    const struct tensor dy = input(memory[0], 9, tensor_3d(NULL, DTYPE_F32, 2, 3, 4));
    struct tensor table = zeros(memory[1], tensor_2d(NULL, DTYPE_F32, 5, 4));
    struct tensor positions = zeros(memory[2], tensor_2d(NULL, DTYPE_F32, 4, 4));
    struct compute c = fresh();
    op_embedding_backward(&c, &(struct embedding_backward_args){ &ids, &dy, &table, &positions });
    COMPARE(&c, memory[1], golden_embedding_d_table);
    COMPARE(&c, memory[2], golden_embedding_d_positions);
}

static struct tensor times_four(struct tensor t) {
    for (int64_t i = 0; i < tensor_elements(&t); i++)
        ((float *)t.data)[i] *= 4;
    return t;
}

static void pointwise(void) {
    const struct tensor x = on_path(
        times_four(stream(memory[0], 1, tensor_2d(NULL, DTYPE_F32, 3, 9))));
    const struct tensor dy = input(memory[1], 9, x);
    struct tensor dx = poison(memory[2], x);
    struct compute c = fresh();
    op_activation_backward(
        &c, &(struct activation_backward_args){ &dy, &x, ACTIVATION_SILU, &dx, false });
    COMPARE(&c, memory[2], golden_silu_d_x);
    op_activation_backward(
        &c, &(struct activation_backward_args){ &dy, &x, ACTIVATION_QUICK_GELU, &dx, false });
    COMPARE(&c, memory[2], golden_quick_gelu_d_x);
    op_activation_backward(
        &c, &(struct activation_backward_args){ &dy, &x, ACTIVATION_GELU, &dx, false });
    COMPARE(&c, memory[2], golden_gelu_d_x);
    op_activation_backward(
        &c, &(struct activation_backward_args){ &dy, NULL, ACTIVATION_NONE, &dx, true });
    float want[COUNT(golden_gelu_d_x)];
    for (int i = 0; i < COUNT(want); i++)
        want[i] = golden_gelu_d_x[i] + memory[1][i];
    compare("none, accumulated on gelu", &c, memory[2], want, COUNT(want));

    const struct tensor h = on_path(
        times_four(stream(memory[0], 1, tensor_2d(NULL, DTYPE_F32, 3, 10))));
    const struct tensor d_half = input(memory[1], 9, tensor_2d(NULL, DTYPE_F32, 3, 5));
    struct tensor dh = poison(memory[2], h);
    op_geglu_backward(&c, &(struct geglu_backward_args){ &d_half, &h, &dh, false });
    COMPARE(&c, memory[2], golden_geglu_d_h);
}

/* Concatenation's gradient only splits dy, so the expected values are copied here. */
static void concat(void) {
    const struct tensor dy = input(memory[0], 9, tensor_2d(NULL, DTYPE_F32, 3, 7));
    struct tensor da = poison(memory[1], tensor_2d(NULL, DTYPE_F32, 3, 5));
    struct tensor db = input(memory[2], 3, tensor_2d(NULL, DTYPE_F32, 3, 2));
    struct compute c = fresh();
    float want_a[15], want_b[6];
    for (int i = 0; i < 15; i++)
        want_a[i] = memory[0][i / 5 * 7 + i % 5];
    for (int i = 0; i < 6; i++)
        want_b[i] = memory[0][i / 2 * 7 + 5 + i % 2] + memory[2][i];
    op_concat_backward(&c, &(struct concat_backward_args){ &dy, &da, &db, false, true });
    compare("concat, a", &c, memory[1], want_a, 15);
    compare("concat, b, accumulated", &c, memory[2], want_b, 6);
}

/* panels[ceil(n / 16)][inner][16] = rows[n][inner], filled up with zeros. */
static void to_panels(const float *rows, int64_t n, int64_t inner, float *panels) {
    memset(panels, 0, (size_t)((n + 15) / 16 * 16 * inner) * sizeof(float));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < inner; j++)
            panels[(i / 16 * inner + j) * 16 + i % 16] = rows[i * inner + j];
}

static void from_panels(const float *panels, int64_t n, int64_t inner, float *rows) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < inner; j++)
            rows[i * inner + j] = panels[(i / 16 * inner + j) * 16 + i % 16];
}

/* Turns a file's down[rank][k][taps] into panels [rank / 16][taps][k][16]. */
static void down_to_panels(
    const float *down, int64_t rank, int64_t k, int64_t taps, float *panels) {
    float rows[MAX];
    for (int64_t i = 0; i < rank * k * taps; i++)
        rows[(i / (k * taps) * taps + i % taps) * k + i / taps % k] = down[i];
    to_panels(rows, rank, k * taps, panels);
}

static void low_rank(
    enum conv_kind kind, int64_t h, int64_t w, const float *const wants[5], const char *name) {
    const int64_t taps = kind == CONV_1X1 ? 1 : 9, ranks[2] = { 2, 17 }, outputs[2] = { 5, 3 };
    float(*const down)[MAX] = memory + 3, (*const up)[MAX] = memory + 5;
    float(*const d_down)[MAX] = memory + 7, (*const d_up)[MAX] = memory + 9, rows[MAX];
    struct low_rank_term terms[2] = { { path_address(down[0]), path_address(up[0]), 2, 0, 5, 0.5f },
        { path_address(down[1]), path_address(up[1]), 17, 2, 3, -1.25f } };
    const struct low_rank_gradient gradients[2] = { { path_address(d_down[0]),
                                                        path_address(d_up[0]) },
        { path_address(d_down[1]), path_address(d_up[1]) } };
    for (int i = 0; i < 2; i++) {
        stream(rows, 2 + 2 * (uint32_t)i, tensor_1d(NULL, DTYPE_F32, ranks[i] * 3 * taps));
        down_to_panels(rows, ranks[i], 3, taps, down[i]);
        stream(rows, 3 + 2 * (uint32_t)i, tensor_1d(NULL, DTYPE_F32, outputs[i] * ranks[i]));
        to_panels(rows, outputs[i], ranks[i], up[i]);
    }
    memset(memory + 7, 0, 4 * sizeof(memory[0]));
    const struct tensor x = input(memory[0], 1, tensor_4d(NULL, DTYPE_F32, 2, 5, 4, 3));
    const struct tensor dy = input(memory[1], 9, tensor_4d(NULL, DTYPE_F32, 2, h, w, 5));
    struct tensor dx = poison(memory[2], x);
    struct compute c = fresh();
    op_low_rank_backward(
        &c, &(struct low_rank_backward_args){ &dy, &x, kind, terms, gradients, 2, &dx, false });
    char text[64];
    snprintf(text, sizeof(text), "golden_low_rank_%s_d_x", name);
    compare(text, &c, memory[2], wants[0], 120);
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof(text), "golden_low_rank_%s_d_down%d", name, i);
        from_panels(d_down[i], ranks[i], 3 * taps, rows);
        compare(text, &c, rows, wants[1 + 2 * i], (int)(ranks[i] * 3 * taps));
        snprintf(text, sizeof(text), "golden_low_rank_%s_d_up%d", name, i);
        from_panels(d_up[i], outputs[i], ranks[i], rows);
        compare(text, &c, rows, wants[2 + 2 * i], (int)(outputs[i] * ranks[i]));
    }
    /* The first term has rank 2; the other lanes of its panel of 16 are padding. */
    for (int j = 0; j < 3 * taps; j++)
        for (int lane = 2; lane < 16; lane++)
            CHECK(d_down[0][j * 16 + lane] == 0, "%s: padding was written", name);
}
#define LOW_RANK(kind, h, w, name)                                                                 \
    low_rank(kind, h, w,                                                                           \
        (const float *const[]){ golden_low_rank_##name##_d_x, golden_low_rank_##name##_d_down0,    \
            golden_low_rank_##name##_d_up0, golden_low_rank_##name##_d_down1,                      \
            golden_low_rank_##name##_d_up1 },                                                      \
        #name)

static void training(void) {
    struct compute c = fresh();
    const struct tensor prediction = input(memory[0], 1, tensor_4d(NULL, DTYPE_F32, 2, 3, 2, 2));
    const struct tensor target = input(memory[1], 2, prediction);
    const float weights[2] = { 0.5f, -3 };
    struct tensor loss = poison(memory[2], tensor_1d(NULL, DTYPE_F32, 2));
    struct tensor d = poison(memory[3], prediction);
    op_mse(&c, &(struct mse_args){ &prediction, &target, weights, &loss, &d });
    COMPARE(&c, memory[2], golden_mse);
    COMPARE(&c, memory[3], golden_mse_d_prediction);

    const struct tensor x = input(memory[0], 1, tensor_1d(NULL, DTYPE_F32, 30));
    const uint64_t seed = UINT64_C(0x123456789abcdef0), step = UINT64_C(0x500000007);
    struct tensor y = poison(memory[1], x);
    op_dropout(&c, &(struct dropout_args){ &x, 0.3f, &seed, &step, 3, &y, false });
    COMPARE(&c, memory[1], golden_dropout);

    struct tensor pieces = poison(memory[2], tensor_2d(NULL, DTYPE_F64, 1, 2));
    const double *sums = (const double *)(const void *)memory[2];
    double want = 0;
    for (int i = 0; i < 30; i++)
        want += (double)memory[0][i] * (double)memory[0][i];
    op_square_pieces(&c, &(struct square_pieces_args){ &x, &pieces });
    compare("square_pieces", &c, (const float[]){ (float)sums[0], (float)sums[1] },
        (const float[]){ (float)want, 0 }, 2);
    memory[0][3] = NAN;
    memory[0][17] = -INFINITY;
    op_square_pieces(&c, &(struct square_pieces_args){ &x, &pieces });
    CHECK(isnan(sums[0]) && sums[1] == 2, "%g, %g not finite", sums[0], sums[1]);

    struct tensor parameter = input(memory[0], 1, tensor_1d(NULL, DTYPE_F32, 12));
    struct tensor m = zeros(memory[1], parameter), v = zeros(memory[2], parameter);
    for (int i = 1; i <= 3; i++) { /* the loss is scaled by 8, and again by 2 here */
        struct tensor gradient = input(memory[3], 1 + (uint32_t)i, parameter);
        for (int j = 0; j < 12; j++)
            memory[3][j] *= 16;
        op_adamw(&c, &(struct adamw_args){ &parameter, &gradient, &m, &v, 0.01, 0.9, 0.99, 0.01,
                         0.1, 1.0 / 8, i, 0 });
    }
    COMPARE(&c, memory[0], golden_adamw);
    COMPARE(&c, memory[1], golden_adamw_m);
    COMPARE(&c, memory[2], golden_adamw_v);
}

/* In the following, gradients are twice their stream, as in backward_golden.py. */
static struct tensor next_gradient(float *out, int step, struct tensor shape) {
    const struct tensor gradient = input(out, 2 + (uint32_t)step, shape);
    for (int64_t i = 0; i < tensor_elements(&shape); i++)
        out[i] *= 2;
    return gradient;
}

static void lion_and_prodigy(void) {
    struct compute c = fresh();
    const struct tensor shape = tensor_1d(NULL, DTYPE_F32, 12);
    struct tensor parameter = input(memory[0], 1, shape), m = zeros(memory[1], shape);
    for (int i = 0; i < 3; i++) {
        const struct tensor gradient = next_gradient(memory[3], i, shape);
        op_lion(&c, &(struct lion_args){ &parameter, &gradient, &m, 0.01, 0.9, 0.99, 0.1, 1, 0 });
    }
    COMPARE(&c, memory[0], golden_lion);
    COMPARE(&c, memory[1], golden_lion_m);

    const struct tensor start = input(memory[6], 1, shape);
    float numerator = 0;
    parameter = input(memory[0], 1, shape);
    m = zeros(memory[1], shape);
    struct tensor v = zeros(memory[2], shape), s = zeros(memory[4], shape), sums;
    for (int i = 0; i < 3; i++) { /* d is 0.5, the rate 0.02, so d lr is 0.01 */
        const struct tensor gradient = next_gradient(memory[3], i, shape);
        sums = zeros(memory[5], tensor_1d(NULL, DTYPE_F32, 2));
        op_prodigy_sums(&c, &(struct prodigy_sums_args){ &parameter, &start, &gradient, &m, &v, &s,
                                &sums, 0.5, 0.01, 0.9, 0.99, 0.95, 0, 1, 0 });
        op_prodigy(&c, &(struct prodigy_args){ &parameter, &m, &v, 0.01, 0.5 * 0.01, 0.1 });
        numerator = 0.95f * numerator + 0.01f * memory[5][0];
    }
    memory[5][0] = numerator;
    COMPARE(&c, memory[0], golden_prodigy);
    COMPARE(&c, memory[1], golden_prodigy_m);
    COMPARE(&c, memory[2], golden_prodigy_v);
    COMPARE(&c, memory[4], golden_prodigy_s);
    COMPARE(&c, memory[5], golden_prodigy_sums);
}

/* Converts [n][k][taps] to the order of the buffers, [n][taps][k]. */
static void turn(float *x, int n, int k, int taps) {
    float copy[MAX];
    memcpy(copy, x, sizeof(copy));
    for (int i = 0; i < n * k * taps; i++)
        x[(i / (k * taps) * taps + i % taps) * k + i / taps % k] = copy[i];
}

static void adafactor(struct factored_shape shape) {
    struct compute c = fresh();
    const int taps = shape.side * shape.side;
    const struct tensor flat = tensor_1d(NULL, DTYPE_F32, factored_floats(&shape));
    struct tensor parameter = input(memory[0], 1, flat);
    struct tensor rows = zeros(memory[1], tensor_1d(NULL, DTYPE_F32, factored_rows(&shape)));
    struct tensor cols = zeros(memory[2], tensor_1d(NULL, DTYPE_F32, factored_cols(&shape)));
    turn(memory[0], (int)shape.n, (int)shape.k, taps);
    for (int i = 0; i < 3; i++) {
        const struct tensor gradient = next_gradient(memory[3], i, flat);
        turn(memory[3], (int)shape.n, (int)shape.k, taps);
        op_adafactor(&c, &(struct adafactor_args){ &parameter, &gradient, shape, &rows, &cols, 0.1,
                             1 - pow(i + 1, -0.8), 0.5, 0.1, true, 1, 0 });
    }
    if (shape.is_matrix) {
        COMPARE(&c, memory[0], golden_adafactor_matrix);
        COMPARE(&c, memory[1], golden_adafactor_matrix_rows);
        COMPARE(&c, memory[2], golden_adafactor_matrix_cols);
    } else {
        COMPARE(&c, memory[0], golden_adafactor_kernels);
        COMPARE(&c, memory[1], golden_adafactor_kernels_rows);
        COMPARE(&c, memory[2], golden_adafactor_kernels_cols);
    }
}

/* ---- bf16: the results of f32 tensors with equal values, rounded once ---- */

/* Rounds memory[i] to bf16 in place, and returns the same numbers as a bf16 tensor at memory[i +
 * 6]. */
static struct tensor halved(int i, const struct tensor *t) {
    struct tensor half = *t;
    half.dtype = DTYPE_BF16;
    half.data = memory[i + 6];
    convert_elements(half.data, DTYPE_BF16, t->data, DTYPE_F32, tensor_elements(t));
    convert_elements(t->data, DTYPE_F32, half.data, DTYPE_BF16, tensor_elements(t));
    return half;
}

static void compare_halves(
    const char *name, const struct compute *c, const struct tensor *got, const float *want) {
    int different = 0;
    CHECK(compute_ok(c), "%s: %s", name, c->error.message);
    for (int64_t i = 0; i < tensor_elements(got); i++)
        different += ((const uint16_t *)got->data)[i] != f32_to_bf16(want[i]);
    printf("bf16 %-31s %d of %d differ\n", name, different, (int)tensor_elements(got));
    CHECK(!different, "bf16 %s: %d differ", name, different);
}

static void bf16_of_attention(void) {
    const struct tensor qkv = stream(memory[0], 1, tensor_3d(NULL, DTYPE_F32, 2, 5, 24));
    const struct tensor dy = stream(memory[1], 9, tensor_3d(NULL, DTYPE_F32, 2, 5, 8));
    const struct tensor y = stream(memory[2], 2, dy);
    struct tensor d = stream(memory[3], 3, qkv);
    const struct tensor qkv16 = halved(0, &qkv), dy16 = halved(1, &dy), y16 = halved(2, &y);
    struct tensor d16 = halved(3, &d);
    struct attention_backward_args args = { &qkv, &qkv, &qkv, &y, &dy, 0, 8, 16, 2, 4, 0.7f, true,
        NULL, &d, &d, &d, true };
    struct compute c = fresh();
    op_attention_backward(&c, &args);
    args = (struct attention_backward_args){ &qkv16, &qkv16, &qkv16, &y16, &dy16, 0, 8, 16, 2, 4,
        0.7f, true, NULL, &d16, &d16, &d16, true };
    op_attention_backward(&c, &args);
    compare_halves("attention, accumulated", &c, &d16, memory[3]);
}

static void bf16(void) {
    const struct tensor x = stream(memory[0], 1, tensor_2d(NULL, DTYPE_F32, 5, 6));
    const struct tensor w = stream(memory[1], 2, tensor_2d(NULL, DTYPE_F32, 8, 6));
    const struct tensor dy = stream(memory[2], 9, tensor_2d(NULL, DTYPE_F32, 5, 8));
    const struct tensor x16 = halved(0, &x), dy16 = halved(2, &dy);
    struct tensor dx = stream(memory[3], 4, x), dw = zeros(memory[4], w),
                  dw16 = zeros(memory[5], w);
    struct tensor dx16 = halved(3, &dx);
    struct compute c = fresh();
    struct packed *weight = NULL;
    CHECK(linear_pack(c.kernels, "w", &w, NULL, false, DTYPE_BF16, &weight, &c.error), "pack");
    op_linear_backward(&c, &(struct linear_backward_args){ &dy, weight, &x, &dx, true, &dw, NULL });
    op_linear_backward(
        &c, &(struct linear_backward_args){ &dy16, weight, &x16, &dx16, true, &dw16, NULL });
    compare_halves("linear, accumulated", &c, &dx16, memory[3]);
    CHECK(memcmp(memory[4], memory[5], tensor_bytes(&dw)) == 0, "dw of bf16 is another");
    packed_destroy(weight);

    const struct tensor gate = stream(memory[1], 2, x);
    const struct tensor gate16 = halved(1, &gate);
    struct tensor d = poison(memory[3], x), d16 = halved(3, &d);
    op_activation_backward(
        &c, &(struct activation_backward_args){ &x, &gate, ACTIVATION_GELU, &d, false });
    op_activation_backward(
        &c, &(struct activation_backward_args){ &x16, &gate16, ACTIVATION_GELU, &d16, false });
    compare_halves("activation", &c, &d16, memory[3]);
    bf16_of_attention();
}

/* ---- sums of squares that are computed in parts ---- */

#define PIECES 4
#define FLOATS ((PIECES - 1) * SQUARE_PIECE + 12345)

/* Sums the squares of the floats [from, to) on the device, into their pieces. */
static void sum_part(struct compute *c, float *x, double *pieces, int64_t from, int64_t to) {
    struct tensor part = tensor_1d(x + from, DTYPE_F32, to - from);
    struct tensor sums = tensor_2d(
        pieces + from / SQUARE_PIECE * 2, DTYPE_F64, square_pieces_count(to - from), 2);
    part.device = sums.device = path_device->device;
    op_square_pieces(c, &(struct square_pieces_args){ &part, &sums });
}

/* An array that is cut at a piece has the same pieces, bit for bit, and the fold of all is the
 * plain sum of all squares. Two orders of a sum of n positive numbers differ by at most 2 (n - 1)
 * 2^-53 of it. */
static void squares_of_parts(void) {
    const struct device_memory *on = path_device->memory;
    struct compute c = { .kernels = path_device };
    const size_t bytes = FLOATS * sizeof(float), sums_bytes = PIECES * 2 * sizeof(double);
    const double allowed = 2.0 * FLOATS * 0x1p-53;
    double whole[PIECES][2], plain = 0, sum = 0;
    float *numbers = malloc(bytes);
    void *x = NULL, *sums = NULL;
    int64_t broken = 0;
    CHECK(numbers && on->alloc(MEMORY_ACTIVATIONS, bytes, &x, &c.error) &&
              on->alloc(MEMORY_ACTIVATIONS, sums_bytes, &sums, &c.error),
        "%s", c.error.message);
    if (!sums)
        exit(1);
    for (int i = 0; i < FLOATS; i++) {
        numbers[i] = (float)(sin(0.37 * i) * exp2(i % 41 - 20));
        plain += (double)numbers[i] * (double)numbers[i];
    }
    CHECK(on->upload(x, numbers, bytes, &c.error), "%s", c.error.message);
    for (int cut = 0; cut < PIECES; cut++) {
        if (cut)
            sum_part(&c, x, sums, 0, (int64_t)cut * SQUARE_PIECE);
        sum_part(&c, x, sums, (int64_t)cut * SQUARE_PIECE, FLOATS);
        const void *seen = compute_ok(&c) ? on->view(sums, sums_bytes, &c.error) : NULL;
        CHECK(seen, "%s", c.error.message);
        if (seen && !cut)
            memcpy(whole, seen, sums_bytes);
        CHECK(!seen || memcmp(whole, seen, sums_bytes) == 0, "other pieces when cut at %d", cut);
        CHECK(on->zero(sums, sums_bytes, &c.error), "%s", c.error.message);
    }
    square_pieces_fold(whole[0], PIECES, &sum, &broken);
    const double off = fabs(sum - plain) / plain;
    printf("%-36s off the plain sum by %.2g, at most %.2g\n", "pieces of squares", off, allowed);
    CHECK(off <= allowed && broken == 0, "%.17g, not %.17g; %lld broken", sum, plain,
        (long long)broken);
    numbers[7] = NAN;
    numbers[2 * SQUARE_PIECE] = -INFINITY;
    numbers[2 * SQUARE_PIECE + 1] = INFINITY;
    CHECK(on->upload(x, numbers, bytes, &c.error), "%s", c.error.message);
    sum_part(&c, x, sums, 0, FLOATS);
    const double *seen = compute_ok(&c) ? on->view(sums, sums_bytes, &c.error) : NULL;
    CHECK(seen, "%s", c.error.message);
    if (seen)
        square_pieces_fold(seen, PIECES, &sum, &broken);
    CHECK(isnan(sum) && broken == 3, "%g, %lld of 3 broken", sum, (long long)broken);
    on->release(MEMORY_ACTIVATIONS, x, bytes);
    on->release(MEMORY_ACTIVATIONS, sums, sums_bytes);
    free(numbers);
}

static void every_operation_is_compared(void) {
#define COMPARED(name)                                                                             \
    CHECK(compared >> OPERATION_##name & 1, "%s is compared with no numbers of torch", #name);
    TRAINING_OPERATIONS(COMPARED)
#undef COMPARED
}

int main(int argc, char **argv) {
    const int status = path_open(argc, argv, memory, sizeof(memory));
    if (status)
        return status;
    linear();
    CONV(CONV_1X1, 5, 4, 1x1);
    CONV(CONV_3X3, 5, 4, 3x3);
    CONV(CONV_3X3_DOWN, 3, 2, down);
    CONV(CONV_3X3_DOWN_RIGHT, 2, 2, down_right);
    CONV(CONV_3X3_UP, 10, 8, up);
    CONV(CONV_3X3_UP, 9, 7, up_shorter);
    norms();
    attention();
    embedding();
    pointwise();
    concat();
    LOW_RANK(CONV_1X1, 5, 4, linear);
    LOW_RANK(CONV_3X3_DOWN, 3, 2, down);
    training();
    squares_of_parts();
    lion_and_prodigy();
    adafactor((struct factored_shape){ 5, 3, 1, 1, true });
    adafactor((struct factored_shape){ 2, 2, 3, 1, false });
    every_operation_is_compared();
    printf("%s: worst relative error of all %.2g\n", path.name, worst_of_all);
    if (on_reference())
        bf16();
    path_close();
    return check_done();
}
