/* A gradient has the same bits on any number of threads. Each training operation that sums over
 * rows is called on 1, 2, 3 and 8 threads. */
#include "kernels/compute/compute.h"
#include "kernels/pack.h"
#include "tests/check.h"

#include <omp.h>
#include <stdlib.h>

static uint64_t seed = 1;

static struct tensor random_tensor(struct tensor t) {
    const int64_t count = tensor_elements(&t);
    t.data = malloc(tensor_bytes(&t));
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const float x = (float)(int64_t)(seed >> 33) / (float)(1u << 30) - 1.0f;
        convert_elements(
            (char *)t.data + (size_t)i * dtype_size(t.dtype), t.dtype, &x, DTYPE_F32, 1);
    }
    return t;
}

#define OUTPUTS 4

/* A call that adds to the contents of its outputs. */
struct call {
    const char *name;
    void (*run)(struct compute *c, struct tensor *outputs);
    struct tensor outputs[OUTPUTS]; /* filled with random numbers before each call */
    int count;
};

static enum dtype dtype;
static struct packed *filter, *matrix;
static struct tensor image, d_image, tokens, d_tokens, wide, q, y, dy, gammas, betas, up, down,
    start, d_up;

static void run_conv2d(struct compute *c, struct tensor *o) {
    op_conv2d_backward(c, &(struct conv2d_backward_args){
                              &d_image, filter, &image, &o[0], true, &o[1], &o[2], &o[3], true });
}

static void run_linear(struct compute *c, struct tensor *o) {
    op_linear_backward(
        c, &(struct linear_backward_args){ &d_tokens, matrix, &tokens, &o[0], true, &o[1], &o[2] });
}

static void run_group_norm(struct compute *c, struct tensor *o) {
    op_group_norm_backward(c, &(struct group_norm_backward_args){ &d_image, &image, &gammas, &betas,
                                  8, 1e-5f, true, &o[0], true, &o[1], &o[2] });
}

static void run_layer_norm(struct compute *c, struct tensor *o) {
    op_layer_norm_backward(c, &(struct layer_norm_backward_args){
                                  &tokens, &d_tokens, &gammas, 1e-5f, &o[0], true, &o[1], &o[2] });
}

static void run_attention(struct compute *c, struct tensor *o) {
    op_attention_backward(c, &(struct attention_backward_args){ .q = &q,
                                 .k = &wide,
                                 .v = &wide,
                                 .y = &y,
                                 .dy = &dy,
                                 .v_offset = 48,
                                 .heads = 2,
                                 .head_dim = 24,
                                 .scale = 0.2f,
                                 .dq = &o[0],
                                 .dk = &o[1],
                                 .dv = &o[2],
                                 .accumulate = true });
}

static void run_low_rank(struct compute *c, struct tensor *o) {
    const struct low_rank_term term = { down.data, up.data, 16, 0, 48, 0.5f };
    const struct low_rank_gradient gradient = { o[1].data, o[2].data };
    op_low_rank_backward(c, &(struct low_rank_backward_args){
                                &d_tokens, &tokens, CONV_1X1, &term, &gradient, 1, &o[0], true });
}

static void run_square_pieces(struct compute *c, struct tensor *o) {
    op_square_pieces(c, &(struct square_pieces_args){ &up, &o[0] });
}

static void run_prodigy_sums(struct compute *c, struct tensor *o) {
    op_prodigy_sums(c, &(struct prodigy_sums_args){ .parameter = &up,
                           .start = &start,
                           .gradient = &d_up,
                           .m = &o[1],
                           .v = &o[2],
                           .s = &o[3],
                           .sums = &o[0],
                           .d = 0.5,
                           .s_rate = 0.5,
                           .gradient_scale = 1 });
}

/* Outputs: the parameter, the row and the column states. */
static void run_adafactor(struct compute *c, struct tensor *o, struct factored_shape shape) {
    for (int state = 1; state < 3; state++)
        for (int64_t i = 0; i < o[state].shape[0]; i++)
            ((float *)o[state].data)[i] = fabsf(((float *)o[state].data)[i]);
    struct tensor gradient = d_up;
    gradient.shape[0] = factored_floats(&shape);
    op_adafactor(c, &(struct adafactor_args){ .parameter = &o[0],
                        .gradient = &gradient,
                        .shape = shape,
                        .rows = &o[1],
                        .cols = &o[2],
                        .lr = 0.01,
                        .beta2 = 0.5,
                        .clip_threshold = 1,
                        .weight_decay = 0.1,
                        .scale_parameter = true,
                        .gradient_scale = 1 });
}

static const struct factored_shape matrix_shape = { 800, 250, 1, 1, true };
static const struct factored_shape panel_shape = { 200, 900, 1, 16, true };
static const struct factored_shape kernel_shape = { 100, 210, 3, 1, false };

static void run_adafactor_matrix(struct compute *c, struct tensor *o) {
    run_adafactor(c, o, matrix_shape);
}

static void run_adafactor_panels(struct compute *c, struct tensor *o) {
    run_adafactor(c, o, panel_shape);
}

static void run_adafactor_kernels(struct compute *c, struct tensor *o) {
    run_adafactor(c, o, kernel_shape);
}

static struct tensor f32_1d(int64_t a) {
    return tensor_1d(NULL, DTYPE_F32, a);
}

static void check_call(const struct call *call) {
    static const int threads[] = { 1, 2, 3, 8 };
    struct tensor first[OUTPUTS] = { 0 };
    for (int t = 0; t < 4; t++) {
        struct compute c = { .kernels = kernels_cpu() };
        struct tensor now[OUTPUTS] = { 0 };
        seed = 2;
        for (int i = 0; i < call->count; i++)
            now[i] = random_tensor(call->outputs[i]);
        omp_set_num_threads(threads[t]);
        call->run(&c, now);
        CHECK(compute_ok(&c), "%s", c.error.message);
        for (int i = 0; i < call->count; i++) {
            CHECK(!t || memcmp(now[i].data, first[i].data, tensor_bytes(&now[i])) == 0,
                "%s in %s: output %d has other bits on %d threads than on one", call->name,
                dtype_name(dtype), i, threads[t]);
            if (!t)
                first[i] = now[i];
            else
                free(now[i].data);
        }
    }
    for (int i = 0; i < call->count; i++)
        free(first[i].data);
}

static void check_dtype(enum dtype weights) {
    struct error err = { 0 };
    const struct kernels *k = kernels_cpu();
    dtype = k->activation_dtype(weights);
    const struct tensor w4 = random_tensor(tensor_4d(NULL, DTYPE_F32, 48, 48, 3, 3));
    const struct tensor w2 = random_tensor(tensor_2d(NULL, DTYPE_F32, 48, 48));
    CHECK(conv2d_pack(k, "filter", &w4, NULL, CONV_3X3, weights, &filter, &err) &&
              linear_pack(k, "matrix", &w2, NULL, false, weights, &matrix, &err),
        "%s", err.message);
    image = random_tensor(tensor_4d(NULL, dtype, 2, 21, 37, 48));
    d_image = random_tensor(image);
    tokens = random_tensor(tensor_3d(NULL, dtype, 2, 777, 48));
    d_tokens = random_tensor(tokens);
    q = random_tensor(tensor_3d(NULL, dtype, 2, 800, 48));
    y = random_tensor(q);
    dy = random_tensor(q);
    wide = random_tensor(tensor_3d(NULL, dtype, 2, 300, 96));
    gammas = random_tensor(f32_1d(48));
    betas = random_tensor(f32_1d(48));
    up = random_tensor(f32_1d(200000));
    start = random_tensor(up);
    d_up = random_tensor(up);
    down = random_tensor(f32_1d(48 * 16));
    const struct tensor parameter = f32_1d(48);
    const struct call calls[] = {
        { "conv2d_backward", run_conv2d,
            { image, tensor_4d(NULL, DTYPE_F32, 48, 3, 3, 48), parameter,
                tensor_2d(NULL, dtype, 2, 48) },
            4 },
        { "linear_backward", run_linear, { tokens, tensor_2d(NULL, DTYPE_F32, 48, 48), parameter },
            3 },
        { "group_norm_backward", run_group_norm, { image, parameter, parameter }, 3 },
        { "layer_norm_backward", run_layer_norm, { tokens, parameter, parameter }, 3 },
        { "attention_backward", run_attention, { q, wide, wide }, 3 },
        { "low_rank_backward", run_low_rank, { tokens, f32_1d(48 * 16), f32_1d(48 * 16) }, 3 },
        { "square_pieces", run_square_pieces,
            { tensor_2d(NULL, DTYPE_F64, square_pieces_count(200000), 2) }, 1 },
        { "prodigy_sums", run_prodigy_sums, { f32_1d(2), up, up, up }, 4 },
        { "adafactor of a matrix", run_adafactor_matrix,
            { f32_1d(factored_floats(&matrix_shape)), f32_1d(800), f32_1d(250) }, 3 },
        { "adafactor of panels", run_adafactor_panels,
            { f32_1d(factored_floats(&panel_shape)), f32_1d(200), f32_1d(900) }, 3 },
        { "adafactor of kernels", run_adafactor_kernels,
            { f32_1d(factored_floats(&kernel_shape)), f32_1d(63000), f32_1d(63000) }, 3 },
    };
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        check_call(&calls[i]);
    const struct tensor made[] = { w4, w2, image, d_image, tokens, d_tokens, q, y, dy, wide, gammas,
        betas, up, down, start, d_up };
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++)
        free(made[i].data);
    packed_destroy(filter);
    packed_destroy(matrix);
}

int main(void) {
    check_dtype(DTYPE_F32);
    check_dtype(DTYPE_BF16);
    return check_done();
}
