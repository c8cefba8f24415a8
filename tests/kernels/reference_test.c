/* The reference against torch and diffusers (tests/reference/kernels_golden.py), at small shapes.
 * All other code is compared with the reference, so the reference itself must be right. */
#include "kernels/compute/compute.h"
#include "kernels/pack.h"
#include "tests/check.h"
#include "tests/kernels/reference_golden.h"
#include "tests/kernels/stream.h"

#define MAX 1024

static float memory[5][MAX], output[MAX];

static void compare(const char *name, const struct compute *c, const float *want, int n) {
    CHECK(compute_ok(c), "%s: %s", name, c->error.message);
    double worst = 0;
    for (int i = 0; i < n; i++) {
        double off = fabs((double)output[i] - (double)want[i]) / (fabs((double)want[i]) + 0.1);
        worst = worse_of(worst, off);
    }
    printf("%-24s worst relative error %.2g\n", name, worst);
    CHECK(worst < 1e-6, "%s is off by %g", name, worst);
}
#define COMPARE(c, golden) compare(#golden, (c), golden, sizeof(golden) / sizeof(golden[0]))

static struct compute fresh(void) {
    memset(output, 0xff, sizeof(output));
    return (struct compute){ .kernels = kernels_reference() };
}

static void linear(
    enum activation activation, bool geglu, bool add, const float *want, const char *name, int n) {
    struct compute c = fresh();
    struct tensor x = stream(memory[0], 1, tensor_2d(NULL, DTYPE_F32, 5, 6));
    struct tensor w = stream(memory[1], 2, tensor_2d(NULL, DTYPE_F32, 8, 6));
    struct tensor b = stream(memory[2], 3, tensor_1d(NULL, DTYPE_F32, 8));
    struct tensor r = stream(memory[3], 4, tensor_2d(NULL, DTYPE_F32, 5, 8));
    struct tensor y = tensor_2d(output, DTYPE_F32, 5, geglu ? 4 : 8);
    struct packed *weight = NULL;
    CHECK(linear_pack(c.kernels, "w", &w, &b, geglu, DTYPE_F32, &weight, &c.error), "pack");
    op_linear(&c, &(struct linear_args){ &x, weight, activation, add ? &r : NULL, &y });
    compare(name, &c, want, n);
    packed_destroy(weight);
}
#define LINEAR(activation, geglu, add, golden)                                                     \
    linear(activation, geglu, add, golden, #golden, sizeof(golden) / sizeof(golden[0]))

static void conv(enum conv_kind kind, int64_t h, int64_t w, bool add, const float *want,
    const char *name, int n) {
    struct compute c = fresh();
    struct tensor x = stream(memory[0], 1, tensor_4d(NULL, DTYPE_F32, 2, 5, 4, 3));
    struct tensor k = stream(memory[1], 2, tensor_4d(NULL, DTYPE_F32, 4, 3, 3, 3));
    struct tensor b = stream(memory[2], 3, tensor_1d(NULL, DTYPE_F32, 4));
    struct tensor row = stream(memory[3], 4, tensor_2d(NULL, DTYPE_F32, 2, 4));
    struct tensor y = tensor_4d(output, DTYPE_F32, 2, h, w, 4);
    struct packed *weight = NULL;
    CHECK(conv2d_pack(c.kernels, "w", &k, &b, kind, DTYPE_F32, &weight, &c.error), "pack");
    op_conv2d(&c,
        &(struct conv2d_args){ .x = &x, .weight = weight, .row_add = add ? &row : NULL, .y = &y });
    compare(name, &c, want, n);
    packed_destroy(weight);
}
#define CONV(kind, h, w, add, golden)                                                              \
    conv(kind, h, w, add, golden, #golden, sizeof(golden) / sizeof(golden[0]))

static void norms(void) {
    struct tensor x = stream(memory[0], 1, tensor_4d(NULL, DTYPE_F32, 2, 3, 4, 6));
    struct tensor gamma = stream(memory[1], 2, tensor_1d(NULL, DTYPE_F32, 6));
    struct tensor beta = stream(memory[2], 3, tensor_1d(NULL, DTYPE_F32, 6));
    struct tensor y = x;
    y.data = output;
    struct compute c = fresh();
    op_group_norm(&c, &(struct group_norm_args){ &x, &gamma, &beta, 3, 1e-5f, true, &y });
    COMPARE(&c, golden_group_norm_silu);
    x = tensor_view_2d(&x, 7, 6);
    y = tensor_view_2d(&y, 7, 6);
    c = fresh();
    op_layer_norm(&c, &(struct layer_norm_args){ &x, &gamma, &beta, 1e-5f, &y });
    COMPARE(&c, golden_layer_norm);
}

static void blend(void) {
    const struct tensor a = stream(memory[0], 1, tensor_3d(NULL, DTYPE_F32, 2, 3, 4));
    const struct tensor b = stream(memory[1], 2, tensor_3d(NULL, DTYPE_F32, 2, 3, 4));
    const struct tensor mask = stream(memory[2], 3, tensor_3d(NULL, DTYPE_F32, 2, 3, 1));
    struct tensor y = a;
    y.data = output;
    struct compute c = fresh();
    op_blend(&c, &(struct blend_args){ &a, &b, &mask, &y });
    COMPARE(&c, golden_blend);
}

static void attention(void) {
    struct tensor qkv = stream(memory[0], 1, tensor_3d(NULL, DTYPE_F32, 2, 5, 24));
    struct tensor y = tensor_3d(output, DTYPE_F32, 2, 5, 8);
    struct attention_args args = { &qkv, &qkv, &qkv, 0, 8, 16, 2, 4, 0.7f, false, &y };
    struct compute c = fresh();
    op_attention(&c, &args);
    COMPARE(&c, golden_attention);
    args.causal = true;
    c = fresh();
    op_attention(&c, &args);
    COMPARE(&c, golden_attention_causal);
}

static void timesteps(void) {
    float t[3] = { 0, 1, 999 };
    struct tensor in = tensor_1d(t, DTYPE_F32, 3), y = tensor_2d(output, DTYPE_F32, 3, 8);
    struct compute c = fresh();
    op_timestep_embedding(&c, &(struct timestep_embedding_args){ &in, true, 0, &y });
    COMPARE(&c, golden_timesteps);
    c = fresh();
    op_timestep_embedding(&c, &(struct timestep_embedding_args){ &in, false, 1, &y });
    COMPARE(&c, golden_timesteps_sin_first);
}

int main(void) {
    LINEAR(ACTIVATION_GELU, false, true, golden_linear_gelu_residual);
    LINEAR(ACTIVATION_SILU, false, false, golden_linear_silu);
    LINEAR(ACTIVATION_QUICK_GELU, false, false, golden_linear_quick_gelu);
    LINEAR(ACTIVATION_NONE, true, false, golden_linear_geglu);
    CONV(CONV_3X3, 5, 4, true, golden_conv_3x3_row_add);
    CONV(CONV_3X3_DOWN, 3, 2, false, golden_conv_down);
    CONV(CONV_3X3_DOWN_RIGHT, 2, 2, false, golden_conv_down_right);
    CONV(CONV_3X3_UP, 10, 8, false, golden_conv_up);
    CONV(CONV_3X3_UP, 9, 7, false, golden_conv_up_shorter);
    norms();
    blend();
    attention();
    timesteps();
    return check_done();
}
