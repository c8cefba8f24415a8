/* Tests how the arguments of training's operations are checked before they run: each rule has its
 * own message. */
#include "kernels/pack.h"
#include "tests/kernels/refuses.h"

#include <stdlib.h>

static struct tensor f32_1d(int at, int64_t a) {
    return tensor_1d(memory + at, DTYPE_F32, a);
}

static struct packed *packed(bool conv, enum conv_kind kind) {
    struct error err = { 0 };
    struct packed *weight = NULL;
    const int64_t size = kind == CONV_1X1 ? 1 : 3;
    const struct tensor w = f32_4d(0, 6, 4, size, size);
    const bool ok =
        conv ? conv2d_pack(kernels_reference(), "w", &w, NULL, kind, DTYPE_F32, &weight, &err)
             : linear_pack(kernels_reference(), "w", &w, NULL, false, DTYPE_F32, &weight, &err);
    CHECK(ok, "%s", err.message);
    return weight;
}

static void linear_refuses(void) {
    struct packed *weight = packed(false, CONV_1X1), *conv = packed(true, CONV_1X1);
    struct tensor dy = f32_2d(0, 3, 6), x = f32_2d(64, 3, 4), dx = f32_2d(128, 3, 4);
    struct tensor dw = f32_2d(256, 6, 4), dbias = f32_1d(320, 6);
    struct tensor bf16 = tensor_2d(memory + 128, DTYPE_BF16, 3, 4), wide = f32_2d(64, 3, 5);
    struct tensor over = f32_2d(8, 3, 4), inside = f32_1d(258, 6), turned = f32_2d(256, 4, 6);
    const struct linear_backward_args good = { &dy, weight, &x, &dx, false, &dw, &dbias };
    ACCEPTS(linear_backward, good, (void)0);
    ACCEPTS(linear_backward, good, (a.dw = NULL, a.x = NULL));
    ACCEPTS(linear_backward, good, (a.dx = NULL, a.dbias = NULL));
    REFUSES(linear_backward, good, a.dy = NULL, "linear_backward: dy is missing");
    REFUSES(linear_backward, good, a.dy = &x, "dy is f32 [3][4], the weight [6][4] needs 6");
    REFUSES(linear_backward, good, a.weight = conv, "weight is packed for conv2d");
    REFUSES(linear_backward, good, a.x = NULL, "x is missing");
    REFUSES(linear_backward, good, a.x = &wide, "x is f32 [3][5], it must be f32 [3][4] for dy");
    REFUSES(linear_backward, good, a.dx = &bf16, "dx is bf16 [3][4], it must be f32 [3][4]");
    REFUSES(linear_backward, good, a.dx = &over, "dx (f32 [3][4]) overlaps dy (f32 [3][6])");
    REFUSES(linear_backward, good, a.dx = &x, "dx (f32 [3][4]) overlaps x");
    REFUSES(linear_backward, good, a.dw = &turned, "dw is f32 [4][6], it must be f32 [6][4]");
    REFUSES(linear_backward, good, a.dbias = &inside, "dw (f32 [6][4]) overlaps dbias (f32 [6])");
    packed_destroy(weight);
    packed_destroy(conv);
}

static void conv2d_refuses(void) {
    struct packed *weight = packed(true, CONV_3X3_DOWN), *linear = packed(false, CONV_1X1);
    struct tensor dy = f32_4d(0, 2, 3, 2, 6), x = f32_4d(128, 2, 5, 4, 4);
    struct tensor dx = f32_4d(512, 2, 5, 4, 4), dw = f32_4d(1024, 6, 3, 3, 4);
    struct tensor dbias = f32_1d(2048, 6), row = f32_2d(3000, 2, 6), short_row = f32_2d(3000, 2, 5);
    struct tensor file = f32_4d(1024, 6, 4, 3, 3), small = f32_4d(128, 2, 3, 2, 4);
    struct tensor bf16_row = tensor_2d(memory + 3000, DTYPE_BF16, 2, 6);
    const struct conv2d_backward_args good = { &dy, weight, &x, &dx, false, &dw, &dbias, &row,
        false };
    ACCEPTS(conv2d_backward, good, (void)0);
    ACCEPTS(conv2d_backward, good, (a.dx = NULL, a.dw = NULL, a.x = NULL));
    REFUSES(conv2d_backward, good, a.weight = linear, "weight is packed for linear");
    REFUSES(conv2d_backward, good, a.x = NULL, "conv2d_backward: x is missing");
    REFUSES(conv2d_backward, good, a.x = &small, "y is f32 [2][3][2][6], it must be f32 [2][2][1]");
    REFUSES(conv2d_backward, good, a.dy = &dx, "dy is f32 [2][5][4][4], the weight [6][4] needs 6");
    REFUSES(
        conv2d_backward, good, a.dw = &file, "dw is f32 [6][4][3][3], it must be f32 [6][3][3][4]");
    REFUSES(conv2d_backward, good, a.d_row_add = &short_row, "d_row_add is f32 [2][5]");
    REFUSES(conv2d_backward, good, a.row_add_offset = 1, "6 channels from 1 on");
    REFUSES(conv2d_backward, good, a.d_row_add = &bf16_row, "d_row_add is bf16 [2][6]");
    packed_destroy(weight);
    packed_destroy(linear);
}

static void norms_refuse(void) {
    struct tensor dy = f32_4d(0, 2, 1, 2, 6), x = f32_4d(64, 2, 1, 2, 6);
    struct tensor dx = f32_4d(128, 2, 1, 2, 6), gamma = f32_1d(192, 6), beta = f32_1d(200, 6);
    struct tensor dgamma = f32_1d(208, 6), dbeta = f32_1d(216, 6), five = f32_1d(216, 5);
    struct tensor shifted = f32_4d(1, 2, 1, 2, 6);
    const struct group_norm_backward_args group = { &dy, &x, &gamma, &beta, 3, 1e-5f, true, &dx,
        false, &dgamma, &dbeta };
    ACCEPTS(group_norm_backward, group, a.dx = &dy);
    ACCEPTS(group_norm_backward, group, (a.dx = NULL, a.dgamma = NULL));
    REFUSES(group_norm_backward, group, a.groups = 4, "6 channels are not 4 groups");
    REFUSES(group_norm_backward, group, a.eps = -1, "eps -1 is negative");
    REFUSES(group_norm_backward, group, a.beta = NULL, "beta is missing");
    REFUSES(group_norm_backward, group, a.gamma = &five, "gamma is f32 [5], it must be f32 [6]");
    REFUSES(group_norm_backward, group, a.dx = &x, "dx (f32 [2][1][2][6]) overlaps x");
    REFUSES(group_norm_backward, group, a.dx = &shifted, "overlaps dy");
    REFUSES(group_norm_backward, group, a.dbeta = &dgamma, "dgamma (f32 [6]) overlaps dbeta");
    REFUSES(group_norm_backward, group, a.dgamma = &gamma, "dgamma (f32 [6]) overlaps gamma");
    const struct layer_norm_backward_args layer = { &dy, &x, &gamma, 1e-5f, &dx, false, &dgamma,
        &dbeta };
    ACCEPTS(layer_norm_backward, layer, a.dx = &dy);
    REFUSES(layer_norm_backward, layer, a.dy = &gamma, "dy is f32 [6], it must be like x");
    REFUSES(layer_norm_backward, layer, a.dbeta = &five, "dbeta is f32 [5]");
    REFUSES(layer_norm_backward, layer, a.eps = NAN, "is negative");
}

static void attention_refuses(void) {
    struct tensor qkv = tensor_3d(memory, DTYPE_F32, 2, 3, 24);
    struct tensor y = tensor_3d(memory + 256, DTYPE_F32, 2, 3, 8);
    struct tensor dy = tensor_3d(memory + 512, DTYPE_F32, 2, 3, 8);
    struct tensor d = tensor_3d(memory + 768, DTYPE_F32, 2, 3, 24);
    struct tensor half = tensor_3d(memory + 768, DTYPE_F32, 2, 3, 8);
    struct tensor shifted = tensor_3d(memory + 769, DTYPE_F32, 2, 3, 24);
    int32_t keys[2] = { 3, 4 };
    const struct tensor lengths = tensor_1d(keys, DTYPE_I32, 2);
    const struct attention_backward_args good = { &qkv, &qkv, &qkv, &y, &dy, 0, 8, 16, 2, 4, 1,
        false, NULL, &d, &d, &d, false };
    ACCEPTS(attention_backward, good, (void)0);
    ACCEPTS(attention_backward, good, (a.dk = NULL, a.dv = NULL));
    REFUSES(attention_backward, good, a.dy = &qkv, "dy is f32 [2][3][24], it must be like y");
    REFUSES(attention_backward, good, a.heads = 3, "y is f32 [2][3][8], it must be f32 [2][3][12]");
    REFUSES(attention_backward, good, a.k_offset = 17, "too few channels for 2 heads of 4 from 17");
    REFUSES(attention_backward, good, a.lengths = &lengths, "lengths[1] is 4");
    REFUSES(attention_backward, good, a.dq = NULL, "dq is missing");
    REFUSES(attention_backward, good, a.dv = NULL, "dv is missing where dk is wanted");
    REFUSES(attention_backward, good, a.dq = &half, "dq is f32 [2][3][8], it must be like q");
    REFUSES(attention_backward, good, a.dk = &shifted, "dq (f32 [2][3][24]) overlaps dk");
    REFUSES(attention_backward, good, a.dq = &qkv, "dq (f32 [2][3][24]) overlaps q");
    REFUSES(attention_backward, good, a.v_offset = 10,
        "dk, from channel 8 on, overlaps dv, from 10 on, with 8 each");
}

static void pointwise_refuses(void) {
    int32_t values[4] = { 0, 1, 2, 3 };
    const struct tensor ids = tensor_2d(values, DTYPE_I32, 2, 2);
    struct tensor dy = tensor_3d(memory, DTYPE_F32, 2, 2, 5), table = f32_2d(64, 9, 5);
    struct tensor positions = f32_2d(128, 2, 5), one = f32_2d(128, 1, 5);
    const struct embedding_backward_args embedding = { &ids, &dy, &table, &positions };
    ACCEPTS(embedding_backward, embedding, (void)0);
    ACCEPTS(embedding_backward, embedding, a.dtable = NULL);
    REFUSES(embedding_backward, embedding, a.ids = &positions, "ids is f32 [2][5], it must be i32");
    REFUSES(embedding_backward, embedding, a.dpositions = &one,
        "dpositions is f32 [1][5], it must be as wide as dy f32 [2][2][5] and reach its tokens");
    REFUSES(embedding_backward, embedding, a.dpositions = &table, "dtable (f32 [9][5]) overlaps");

    struct tensor g = f32_2d(0, 3, 4), x = f32_2d(64, 3, 4), dx = f32_2d(128, 3, 4);
    struct tensor other = f32_2d(128, 3, 5), eight = f32_2d(192, 3, 8), out = f32_2d(256, 3, 8);
    const struct activation_backward_args activation = { &g, &x, ACTIVATION_SILU, &dx, false };
    ACCEPTS(activation_backward, activation, a.dx = &g);
    ACCEPTS(activation_backward, activation, (a.activation = ACTIVATION_NONE, a.x = NULL));
    REFUSES(activation_backward, activation, a.x = NULL, "activation_backward: x is missing");
    REFUSES(activation_backward, activation, a.activation = (enum activation)9, "activation 9");
    REFUSES(activation_backward, activation, a.dx = &other, "dx is f32 [3][5], it must be like dy");
    REFUSES(activation_backward, activation, a.dx = &x, "dx (f32 [3][4]) overlaps x");

    const struct geglu_backward_args geglu = { &g, &eight, &out, false };
    ACCEPTS(geglu_backward, geglu, (void)0);
    REFUSES(geglu_backward, geglu, a.h = &x, "h is f32 [3][4], it must be f32 [3][8] for dy");
    REFUSES(geglu_backward, geglu, a.dh = &x, "dh is f32 [3][4], it must be like h");
    REFUSES(geglu_backward, geglu, a.dh = &eight, "dh (f32 [3][8]) overlaps h");

    struct tensor da = f32_2d(64, 3, 3), db = f32_2d(128, 3, 5), wide = f32_2d(128, 3, 8);
    struct tensor ints = ids;
    const struct concat_backward_args concat = { &eight, &da, &db, false, false };
    ACCEPTS(concat_backward, concat, (void)0);
    ACCEPTS(concat_backward, concat, a.da = NULL);
    REFUSES(concat_backward, concat, a.db = &da, "da f32 [3][3] and the other part");
    REFUSES(concat_backward, concat, (a.da = NULL, a.db = &wide), "db f32 [3][8] and the other");
    REFUSES(concat_backward, concat, a.da = &ints, "da is i32 [2][2]");
}

static void low_rank_refuses(void) {
    struct tensor dy = f32_2d(0, 2, 6), x = f32_2d(64, 2, 4), dx = f32_2d(128, 2, 4);
    const struct low_rank_term terms[2] = { { memory + 1024, memory + 2048, 2, 1, 5, 1 },
        { memory + 1024, memory + 2048, 2, 2, 5, 1 } };
    const struct low_rank_gradient gradient = { memory + 3000, memory + 4000 };
    const struct low_rank_backward_args good = { &dy, &x, CONV_1X1, terms, &gradient, 1, &dx,
        false };
    ACCEPTS(low_rank_backward, good, (void)0);
    ACCEPTS(low_rank_backward, good, (a.gradients = NULL, a.x = NULL));
    ACCEPTS(low_rank_backward, good, a.dx = NULL);
    REFUSES(low_rank_backward, good, a.x = NULL, "low_rank_backward: x is missing");
    REFUSES(low_rank_backward, good, a.count = 0, "terms are missing");
    REFUSES(low_rank_backward, good, a.count = 2, "to 5 outputs from 2 on does not fit 6");
    REFUSES(low_rank_backward, good, a.kind = (enum conv_kind)7, "convolution kind 7");
    REFUSES(low_rank_backward, good, a.dx = &x, "dx (f32 [2][4]) overlaps x");
    REFUSES(low_rank_backward, good, a.kind = CONV_3X3, "dy is f32 [2][6], its rank must be 4");
}

static void optimizer_refuses(void) {
    static const uint64_t seed, step;
    struct tensor x = f32_2d(0, 2, 4), y = f32_2d(64, 2, 4), over = f32_2d(1, 2, 4);
    const struct dropout_args dropout = { &x, 0.5f, &seed, &step, 0, &y, false };
    ACCEPTS(dropout, dropout, a.y = &x);
    REFUSES(dropout, dropout, a.p = 1, "p is 1, it must be 0 to less than 1");
    REFUSES(dropout, dropout, a.p = NAN, "it must be 0 to less than 1");
    REFUSES(dropout, dropout, a.seed = NULL, "seed or step is missing");
    REFUSES(dropout, dropout, a.y = &over, "overlaps x");

    static const float weights[2];
    struct tensor loss = f32_1d(128, 2), d = f32_2d(192, 2, 4), three = f32_1d(128, 3);
    const struct mse_args mse = { &x, &y, weights, &loss, &d };
    ACCEPTS(mse, mse, a.d_prediction = NULL);
    REFUSES(mse, mse, a.weights = NULL, "weights are missing");
    REFUSES(mse, mse, a.loss = &three, "loss is f32 [3], it must be f32 [2] for prediction");
    REFUSES(mse, mse, a.d_prediction = &y, "d_prediction (f32 [2][4]) overlaps target");

    struct tensor flat = f32_1d(0, 8), pieces = tensor_2d(memory + 64, DTYPE_F64, 1, 2);
    struct tensor inside = tensor_2d(memory + 4, DTYPE_F64, 1, 2), floats = f32_2d(64, 1, 2);
    struct tensor sums = f32_1d(64, 2);
    const struct square_pieces_args squares = { &flat, &pieces };
    ACCEPTS(square_pieces, squares, (void)0);
    REFUSES(square_pieces, squares, a.pieces = &inside, "pieces (f64 [1][2]) overlaps x (f32 [8])");
    REFUSES(square_pieces, squares, a.pieces = &floats,
        "pieces is f32 [1][2], it must be f64 [1][2] for x");

    struct tensor gradient = f32_1d(64, 8), m = f32_1d(128, 8), v = f32_1d(192, 8);
    const struct adamw_args adamw = { &flat, &gradient, &m, &v, 1e-3, 0.9, 0.999, 1e-8, 0.01, 1, 1,
        0 };
    ACCEPTS(adamw, adamw, (void)0);
    REFUSES(adamw, adamw, a.step = 0, "step is 0, the first is 1");
    REFUSES(adamw, adamw, a.beta2 = 1, "betas are 0.9 and 1, they must be 0 to less than 1");
    REFUSES(adamw, adamw, a.gradient_limit = -1, "gradient_limit is -1, it must be 0 or more");
    REFUSES(adamw, adamw, a.m = &v, "m (f32 [8]) overlaps v");
    REFUSES(adamw, adamw, a.v = &sums, "v is f32 [2], it must be like parameter");
}

static void other_optimizers_refuse(void) {
    struct tensor flat = f32_1d(0, 8), gradient = f32_1d(64, 8), m = f32_1d(128, 8);
    struct tensor v = f32_1d(192, 8), s = f32_1d(256, 8), start = f32_1d(320, 8);
    struct tensor sums = f32_1d(384, 2);
    const struct lion_args lion = { &flat, &gradient, &m, 1e-3, 0.9, 0.99, 0, 1, 0 };
    ACCEPTS(lion, lion, (void)0);
    REFUSES(lion, lion, a.beta1 = 1, "betas are 1 and 0.99, they must be 0 to less than 1");
    REFUSES(lion, lion, a.m = &sums, "m is f32 [2], it must be like parameter");
    REFUSES(lion, lion, a.m = &flat, "overlaps");

    const struct prodigy_sums_args looks = { &flat, &start, &gradient, &m, &v, &s, &sums, 1, 1, 0.9,
        0.99, 0.99, 0, 1, 0 };
    ACCEPTS(prodigy_sums, looks, (void)0);
    REFUSES(prodigy_sums, looks, a.gradient_limit = -1, "gradient_limit is -1");
    REFUSES(prodigy_sums, looks, a.sums = &m, "sums is f32 [8], it must be f32 [2]");
    REFUSES(prodigy_sums, looks, a.s = &start, "s (f32 [8]) overlaps start");

    const struct prodigy_args steps = { &flat, &m, &v, 1, 1e-8, 0 };
    ACCEPTS(prodigy, steps, (void)0);
    REFUSES(prodigy, steps, a.v = &sums, "v is f32 [2], it must be like parameter");
    REFUSES(prodigy, steps, a.m = &flat, "overlaps m");

    struct tensor rows = f32_1d(128, 4);
    const struct adafactor_args adafactor = { &flat, &gradient, { 4, 2, 1, 1, true }, &rows, &sums,
        1, 0.9, 1, 0, false, 1, 0 };
    ACCEPTS(adafactor, adafactor, (void)0);
    REFUSES(adafactor, adafactor, a.shape.n = 5, "parameter is f32 [8], it must be f32 [10]");
    REFUSES(adafactor, adafactor, a.shape.side = 3, "side 3");
    REFUSES(adafactor, adafactor, a.rows = &sums, "rows is f32 [2], it must be f32 [4]");
    ACCEPTS(adafactor, adafactor, a.beta2 = 1);
    REFUSES(adafactor, adafactor, a.beta2 = 1.5, "betas are 0 and 1.5");
}

int main(void) {
    linear_refuses();
    conv2d_refuses();
    norms_refuse();
    attention_refuses();
    pointwise_refuses();
    low_rank_refuses();
    optimizer_refuses();
    other_optimizers_refuse();
    return check_done();
}
