/* Each backward operation, on every path (backward_path.h), against finite differences of the
 * reference's forward; and the path's own forward against the reference's. With the loss L = sum of
 * y dy in f64 and D(h) = L(x + h) - L(x - h), every gradient is (4/5 D(h) - 1/5 D(2h) + 4/105 D(3h)
 * - 1/280 D(4h)) / h, with an error of order h^8. y is rounded to f32, which adds an error of 2^-24
 * / h of y's size for each element that depends on x. With this large h that is about 1e-6 of a
 * gradient's size. */
#include "kernels/compute/compute.h"
#include "kernels/pack.h"
#include "tests/check.h"
#include "tests/kernels/backward_path.h"
#include "tests/kernels/stream.h"

#define MAX 2048
#define H 0x1p-3
#define ALLOWED 1e-5

/* The tensors of the current case, all f32: inputs and an output, the gradient of each, and ids or
 * lengths. */
static float memory[11][MAX];
static float (*const in)[MAX] = memory, (*const d_in)[MAX] = memory + 4;
static float *const out = memory[8], *const d_out = memory[9], *const whole = memory[10];
static struct tensor t[4], d[4], y, dy, wholes;
static uint64_t compared; /* OPERATION_BITs, compared so far */
static double worst_of_all;

/* Points the case's tensors into the block, for the reference or for the path. */
static void lay(bool for_path) {
    struct tensor *const tensors[] = { &t[0], &t[1], &t[2], &t[3], &d[0], &d[1], &d[2], &d[3], &y,
        &dy, &wholes };
    for (int i = 0; i < 11; i++) {
        tensors[i]->data = memory[i];
        tensors[i]->device = DEVICE_CPU;
        if (for_path)
            *tensors[i] = on_path(*tensors[i]);
    }
}

/* Random multiples of 2^-10, so that x + h is exact; the gradient starts as zeros. */
static void input(int i, struct tensor shape) {
    t[i] = stream(in[i], (uint32_t)i + 1, shape);
    for (int64_t j = 0; j < tensor_elements(&shape); j++)
        in[i][j] = rintf(in[i][j] * 1024) / 1024;
    d[i] = shape;
    d[i].data = memset(d_in[i], 0, sizeof(d_in[i]));
}

static void output(struct tensor shape) {
    dy = stream(d_out, 9, shape);
    y = shape;
    y.data = out;
}

typedef void step(struct compute *c, const void *user);

static double loss(step *forward, const void *user) {
    struct compute c = { .kernels = kernels_reference() };
    double sum = 0;
    forward(&c, user);
    CHECK(compute_ok(&c), "%s", c.error.message);
    for (int64_t i = 0; i < tensor_elements(&y); i++)
        sum += (double)out[i] * (double)d_out[i];
    return sum;
}

static double difference(step *forward, const void *user, float *x, double h) {
    const float before = *x;
    *x = (float)((double)before + h);
    const double above = loss(forward, user);
    *x = (float)((double)before - h);
    const double below = loss(forward, user);
    *x = before;
    return above - below;
}

static double slope(step *forward, const void *user, float *x) {
    static const double weights[] = { 4.0 / 5, -1.0 / 5, 4.0 / 105, -1.0 / 280 };
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += weights[i] * difference(forward, user, x, (i + 1) * H);
    return sum / H;
}

/* Returns the largest difference as a fraction of the root mean square of `want`. Stores that root
 * mean square in *size. */
static double distance(const float *got, const double *want, int64_t n, double *size) {
    double squares = 0, worst = 0;
    for (int64_t i = 0; i < n; i++)
        squares += want[i] * want[i] / (double)n;
    *size = sqrt(squares);
    for (int64_t i = 0; i < n; i++) {
        const double off = fabs((double)got[i] - want[i]) / *size;
        worst = worse_of(worst, off);
    }
    return worst;
}

/* Computes y and the gradients on the path, and compares y with the reference's. */
static void compute_gradients(const char *name, step *forward, step *backward, const void *user) {
    struct compute c = { .kernels = &path }, reference = { .kernels = kernels_reference() };
    double want[MAX], size;
    forward(&reference, user);
    for (int64_t i = 0; i < tensor_elements(&y); i++)
        want[i] = (double)out[i];
    lay(true);
    memset(out, 0xff, sizeof(memory[0]));
    forward(&c, user);
    const double off = distance(out, want, tensor_elements(&y), &size);
    path_entered = 0;
    backward(&c, user);
    lay(false);
    compared |= path_entered;
    CHECK(compute_ok(&c), "%s: %s", name, c.error.message);
    CHECK(off < ALLOWED, "%s: the forward is off by %g of its size", name, off);
}

/* Compares all gradients of the inputs whose bits are set in `wanted`. */
static void compare(
    const char *name, unsigned wanted, step *forward, step *backward, const void *user) {
    compute_gradients(name, forward, backward, user);
    for (int i = 0; i < 4; i++) {
        const int64_t n = wanted >> i & 1 ? tensor_elements(&t[i]) : 0;
        double slopes[MAX], size;
        for (int64_t j = 0; j < n; j++)
            slopes[j] = slope(forward, user, &in[i][j]);
        const double worst = distance(d_in[i], slopes, n, &size);
        if (n)
            printf(
                "%-28s input %d: size %.3f, worst difference %.2g of it\n", name, i, size, worst);
        CHECK(worst < ALLOWED, "%s: input %d is off by %g of its size", name, i, worst);
        worst_of_all = fmax(worst_of_all, worst);
    }
}

/* ---- layers: x, weight, bias, row_add ---- */

struct layer {
    bool is_conv, geglu;
    enum conv_kind kind;
};

/* Packs the weight from the block. It is [n][k], or [n][kh][kw][k] like its gradient. */
static struct packed *pack(struct compute *c, const struct layer *l, bool bias) {
    const struct tensor b = tensor_1d(in[2], DTYPE_F32, t[2].shape[0]);
    struct packed *weight = NULL;
    bool ok;
    if (l->is_conv) {
        static float turned[MAX];
        const int64_t *s = t[1].shape, taps = s[1] * s[2];
        for (int64_t i = 0; i < tensor_elements(&t[1]); i++)
            turned[(i / (taps * s[3]) * s[3] + i % s[3]) * taps + i / s[3] % taps] = in[1][i];
        const struct tensor w = tensor_4d(turned, DTYPE_F32, s[0], s[3], s[1], s[2]);
        ok = conv2d_pack(
            c->kernels, "w", &w, bias ? &b : NULL, l->kind, DTYPE_F32, &weight, &c->error);
    } else {
        const struct tensor w = tensor_2d(in[1], DTYPE_F32, t[1].shape[0], t[1].shape[1]);
        ok = linear_pack(
            c->kernels, "w", &w, bias ? &b : NULL, l->geglu, DTYPE_F32, &weight, &c->error);
    }
    CHECK(ok, "%s", c->error.message);
    return weight;
}

static void layer_forward(struct compute *c, const void *user) {
    const struct layer *l = user;
    struct packed *weight = pack(c, l, true);
    if (l->is_conv)
        op_conv2d(c, &(struct conv2d_args){ &t[0], weight, &t[3], NULL, &y });
    else
        op_linear(
            c, &(struct linear_args){ .x = &t[0], .weight = weight, .y = &y, .ungated = l->geglu });
    packed_destroy(weight);
}

static void layer_backward(struct compute *c, const void *user) {
    const struct layer *l = user;
    struct packed *weight = pack(c, l, false);
    if (l->is_conv)
        op_conv2d_backward(c, &(struct conv2d_backward_args){
                                  &dy, weight, &t[0], &d[0], false, &d[1], &d[2], &d[3], false });
    else
        op_linear_backward(
            c, &(struct linear_backward_args){ &dy, weight, &t[0], &d[0], false, &d[1], &d[2] });
    packed_destroy(weight);
}

static void layers(void) {
    for (int geglu = 0; geglu < 2; geglu++) {
        input(0, tensor_3d(NULL, DTYPE_F32, 2, 3, 5));
        input(1, tensor_2d(NULL, DTYPE_F32, 6, 5));
        input(2, tensor_1d(NULL, DTYPE_F32, 6));
        output(tensor_3d(NULL, DTYPE_F32, 2, 3, 6));
        compare(geglu ? "linear ungated" : "linear", 7, layer_forward, layer_backward,
            &(struct layer){ .geglu = geglu });
    }
    static const struct {
        const char *name;
        enum conv_kind kind;
        int64_t h, w; /* output's size, for an input of 5 x 4 */
    } kinds[] = { { "conv 1x1", CONV_1X1, 5, 4 }, { "conv 3x3", CONV_3X3, 5, 4 },
        { "conv down", CONV_3X3_DOWN, 3, 2 }, { "conv down right", CONV_3X3_DOWN_RIGHT, 2, 2 },
        { "conv up", CONV_3X3_UP, 10, 8 }, { "conv up shorter", CONV_3X3_UP, 9, 7 } };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const int64_t size = kinds[i].kind == CONV_1X1 ? 1 : 3;
        input(0, tensor_4d(NULL, DTYPE_F32, 2, 5, 4, 2));
        input(1, tensor_4d(NULL, DTYPE_F32, 3, size, size, 2));
        input(2, tensor_1d(NULL, DTYPE_F32, 3));
        input(3, tensor_2d(NULL, DTYPE_F32, 2, 3));
        output(tensor_4d(NULL, DTYPE_F32, 2, kinds[i].h, kinds[i].w, 3));
        compare(kinds[i].name, 15, layer_forward, layer_backward,
            &(struct layer){ .is_conv = true, .kind = kinds[i].kind });
    }
}

/* ---- norms: x, gamma, beta ---- */

static void group_norm_forward(struct compute *c, const void *silu) {
    op_group_norm(
        c, &(struct group_norm_args){ &t[0], &t[1], &t[2], 3, 1e-5f, *(const bool *)silu, &y });
}

static void group_norm_backward(struct compute *c, const void *silu) {
    op_group_norm_backward(c, &(struct group_norm_backward_args){ &dy, &t[0], &t[1], &t[2], 3,
                                  1e-5f, *(const bool *)silu, &d[0], false, &d[1], &d[2] });
}

static void layer_norm_forward(struct compute *c, const void *user) {
    (void)user;
    op_layer_norm(c, &(struct layer_norm_args){ &t[0], &t[1], &t[2], 1e-5f, &y });
}

static void layer_norm_backward(struct compute *c, const void *user) {
    (void)user;
    op_layer_norm_backward(c,
        &(struct layer_norm_backward_args){ &dy, &t[0], &t[1], 1e-5f, &d[0], false, &d[1], &d[2] });
}

static void norms(void) {
    static const bool silu[2] = { false, true };
    for (int i = 0; i < 3; i++) {
        input(0, tensor_4d(NULL, DTYPE_F32, 2, 3, 4, 6));
        input(1, tensor_1d(NULL, DTYPE_F32, 6));
        input(2, tensor_1d(NULL, DTYPE_F32, 6));
        output(t[0]);
        if (i < 2)
            compare(i ? "group_norm silu" : "group_norm", 7, group_norm_forward,
                group_norm_backward, &silu[i]);
        else
            compare("layer_norm", 7, layer_norm_forward, layer_norm_backward, NULL);
    }
}

/* ---- attention: q, and k and v in one tensor ---- */

struct attention {
    bool causal, lengths;
};

static void attention_forward(struct compute *c, const void *user) {
    const struct attention *a = user;
    op_attention(c, &(struct attention_args){ &t[0], &t[1], &t[1], 1, 9, 0, 2, 4, 0.7f, a->causal,
                        &y, a->lengths ? &wholes : NULL });
}

static void attention_backward(struct compute *c, const void *user) {
    const struct attention *a = user;
    op_attention_backward(
        c, &(struct attention_backward_args){ &t[0], &t[1], &t[1], &y, &dy, 1, 9, 0, 2, 4, 0.7f,
               a->causal, a->lengths ? &wholes : NULL, &d[0], &d[1], &d[1], true });
}

static void attention(void) {
    const int32_t keys[2] = { 3, 5 };
    const struct attention cases[] = { { false, false }, { true, false }, { false, true },
        { true, true } };
    memcpy(whole, keys, sizeof(keys));
    wholes = tensor_1d(whole, DTYPE_I32, 2);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        input(0, tensor_3d(NULL, DTYPE_F32, 2, 4, 10));
        input(1, tensor_3d(NULL, DTYPE_F32, 2, 5, 18));
        output(tensor_3d(NULL, DTYPE_F32, 2, 4, 8));
        compare(i < 2 ? "attention" : "attention lengths", 3, attention_forward, attention_backward,
            &cases[i]);
    }
}

/* ---- element by element ---- */

static void activation_forward(struct compute *c, const void *user) {
    op_add(c, &(struct add_args){ &t[0], NULL, *(const enum activation *)user, &y });
}

static void activation_backward(struct compute *c, const void *user) {
    op_activation_backward(c, &(struct activation_backward_args){
                                  &dy, &t[0], *(const enum activation *)user, &d[0], false });
}

static void geglu_forward(struct compute *c, const void *user) {
    (void)user;
    op_geglu(c, &(struct geglu_args){ &t[0], NULL, &y });
}

static void geglu_backward(struct compute *c, const void *user) {
    (void)user;
    op_geglu_backward(c, &(struct geglu_backward_args){ &dy, &t[0], &d[0], false });
}

static void concat_forward(struct compute *c, const void *user) {
    (void)user;
    op_concat(c, &(struct concat_args){ &t[0], &t[1], &y });
}

static void concat_backward(struct compute *c, const void *user) {
    (void)user;
    op_concat_backward(c, &(struct concat_backward_args){ &dy, &d[0], &d[1], false, false });
}

static void embedding_forward(struct compute *c, const void *user) {
    (void)user;
    op_embedding(c, &(struct embedding_args){ &wholes, &t[0], &t[1], &y });
}

static void embedding_backward(struct compute *c, const void *user) {
    (void)user;
    op_embedding_backward(c, &(struct embedding_backward_args){ &wholes, &dy, &d[0], &d[1] });
}

static const uint64_t seed = 42, training_step = 7;

static void dropout_forward(struct compute *c, const void *user) {
    (void)user;
    op_dropout(c, &(struct dropout_args){ &t[0], 0.4f, &seed, &training_step, 3, &y, false });
}

static void dropout_backward(struct compute *c, const void *user) {
    (void)user;
    op_dropout(c, &(struct dropout_args){ &dy, 0.4f, &seed, &training_step, 3, &d[0], false });
}

static void pointwise(void) {
    static const enum activation activations[] = { ACTIVATION_SILU, ACTIVATION_QUICK_GELU,
        ACTIVATION_GELU };
    for (size_t i = 0; i < sizeof(activations) / sizeof(activations[0]); i++) {
        input(0, tensor_2d(NULL, DTYPE_F32, 3, 9));
        output(t[0]);
        for (int j = 0; j < 27; j++)
            in[0][j] *= 4;
        compare("activation", 1, activation_forward, activation_backward, &activations[i]);
    }
    input(0, tensor_2d(NULL, DTYPE_F32, 3, 10));
    output(tensor_2d(NULL, DTYPE_F32, 3, 5));
    compare("geglu", 1, geglu_forward, geglu_backward, NULL);
    input(0, tensor_2d(NULL, DTYPE_F32, 3, 5));
    input(1, tensor_2d(NULL, DTYPE_F32, 3, 2));
    output(tensor_2d(NULL, DTYPE_F32, 3, 7));
    compare("concat", 3, concat_forward, concat_backward, NULL);
    const int32_t ids[6] = { 3, 0, 3, 1, 3, 0 };
    memcpy(whole, ids, sizeof(ids));
    wholes = tensor_2d(whole, DTYPE_I32, 2, 3);
    input(0, tensor_2d(NULL, DTYPE_F32, 5, 4));
    input(1, tensor_2d(NULL, DTYPE_F32, 4, 4));
    output(tensor_3d(NULL, DTYPE_F32, 2, 3, 4));
    compare("embedding", 3, embedding_forward, embedding_backward, NULL);
    input(0, tensor_2d(NULL, DTYPE_F32, 3, 9));
    output(t[0]);
    compare("dropout", 1, dropout_forward, dropout_backward, NULL);
}

/* ---- low_rank: x, down, up; here all 16 lanes of a panel are used ---- */

static struct low_rank_term low_rank_term(void) {
    return (struct low_rank_term){ t[1].data, t[2].data, 16, 1, 16, -0.3f };
}

static void low_rank_forward(struct compute *c, const void *user) {
    const struct low_rank_term term = low_rank_term();
    const struct low_rank_row rows[2] = { { &term, 1 }, { &term, 1 } };
    memset(out, 0, sizeof(memory[0]));
    op_low_rank(c, &(struct low_rank_args){
                       .x = &t[0], .kind = *(const enum conv_kind *)user, .rows = rows, .y = &y });
}

static void low_rank_backward(struct compute *c, const void *user) {
    const struct low_rank_term term = low_rank_term();
    const struct low_rank_gradient gradient = { d[1].data, d[2].data };
    op_low_rank_backward(c, &(struct low_rank_backward_args){ &dy, &t[0],
                                *(const enum conv_kind *)user, &term, &gradient, 1, &d[0], false });
}

static void low_rank(void) {
    static const enum conv_kind kinds[] = { CONV_1X1, CONV_3X3, CONV_3X3_DOWN, CONV_3X3_DOWN_RIGHT,
        CONV_3X3_UP };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const int64_t taps = kinds[i] == CONV_1X1 ? 1 : 9;
        input(0, tensor_4d(NULL, DTYPE_F32, 2, 3, 4, 2));
        input(1, tensor_3d(NULL, DTYPE_F32, taps, 2, LOW_RANK_PANEL));
        input(2, tensor_2d(NULL, DTYPE_F32, 16, LOW_RANK_PANEL));
        output(tensor_4d(
            NULL, DTYPE_F32, 2, conv_out_size(kinds[i], 3), conv_out_size(kinds[i], 4), 17));
        compare("low_rank", 7, low_rank_forward, low_rank_backward, &kinds[i]);
    }
}

/* ---- mse: prediction; y is the loss of each row times its weight ---- */

static void mse_forward(struct compute *c, const void *user) {
    op_mse(c, &(struct mse_args){ &t[0], &t[1], user, &y, NULL });
}

static void mse_backward(struct compute *c, const void *user) {
    (void)user;
    op_mse(c, &(struct mse_args){ &t[0], &t[1], d_out, &y, &d[0] });
}

static void mse(void) {
    input(0, tensor_2d(NULL, DTYPE_F32, 3, 8));
    input(1, t[0]);
    output(tensor_1d(NULL, DTYPE_F32, 3));
    compare("mse", 1, mse_forward, mse_backward, d_out);
}

/* Checks that every training operation was compared, except those that have no gradient. */
static void every_operation_is_compared(void) {
    const uint64_t others = OPERATION_BIT(square_pieces) | OPERATION_BIT(adamw) |
                            OPERATION_BIT(lion) | OPERATION_BIT(prodigy_sums) |
                            OPERATION_BIT(prodigy) | OPERATION_BIT(adafactor);
#define COMPARED(name)                                                                             \
    CHECK((compared | others) >> OPERATION_##name & 1, "%s is compared with no differences", #name);
    TRAINING_OPERATIONS(COMPARED)
#undef COMPARED
}

int main(int argc, char **argv) {
    const int status = path_open(argc, argv, memory, sizeof(memory));
    if (status)
        return status;
    layers();
    norms();
    attention();
    pointwise();
    low_rank();
    mse();
    every_operation_is_compared();
    printf("%s: worst difference of all %.2g\n", path.name, worst_of_all);
    path_close();
    return check_done();
}
