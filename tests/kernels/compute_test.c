/* Tests how the arguments of operations are checked before they run: each rule has its own message.
 * Also tests the sticky error and the dry run. */
#include "kernels/pack.h"
#include "tests/kernels/refuses.h"

#include <stdlib.h>

static void linear_refuses(void) {
    struct error err = { 0 };
    struct tensor w = f32_2d(0, 6, 4), bias = tensor_1d(memory, DTYPE_F32, 6);
    struct packed *weight = NULL, *geglu = NULL, *conv = NULL, *foreign = NULL;
    struct tensor cw = f32_4d(0, 6, 4, 1, 1);
    CHECK(linear_pack(kernels_reference(), "fc", &w, &bias, false, DTYPE_F32, &weight, &err), "%s",
        err.message);
    CHECK(linear_pack(kernels_reference(), "fc", &w, &bias, true, DTYPE_F32, &geglu, &err), "%s",
        err.message);
    CHECK(linear_pack(kernels_cpu(), "fc", &w, &bias, false, DTYPE_F32, &foreign, &err), "%s",
        err.message);
    CHECK(conv2d_pack(kernels_reference(), "cv", &cw, NULL, CONV_1X1, DTYPE_F32, &conv, &err), "%s",
        err.message);
    struct tensor x = f32_2d(0, 3, 4), y = f32_2d(64, 3, 6), r = f32_2d(128, 3, 6);
    struct tensor other = f32_2d(128, 3, 5), half = f32_2d(64, 3, 3), empty = f32_2d(0, 0, 4);
    struct tensor ints = tensor_2d(memory, DTYPE_I32, 3, 4), absent = f32_2d(0, 3, 4);
    struct tensor bf16 = tensor_2d(memory + 64, DTYPE_BF16, 3, 6), over = f32_2d(8, 3, 6);
    struct tensor gpu = x, wide = f32_2d(0, 3, 5), shifted = f32_2d(65, 3, 6);
    gpu.device = DEVICE_CUDA;
    absent.data = NULL;
    struct linear_args good = { &x, weight, ACTIVATION_NONE, NULL, &y };
    ACCEPTS(linear, good, (void)0);
    ACCEPTS(linear, good, a.residual = &r);
    ACCEPTS(linear, good, a.residual = &y);
    ACCEPTS(linear, good, (a.weight = geglu, a.y = &half));
    REFUSES(linear, good, a.x = NULL, "linear: x is missing");
    REFUSES(linear, good, a.x = &absent, "x (f32 [3][4]) has no memory");
    REFUSES(linear, good, a.x = &gpu, "x (f32 [3][4]) is on another device");
    REFUSES(linear, good, a.x = &empty, "x is f32 [0][4], every size");
    REFUSES(linear, good, a.x = &ints, "x is i32 [3][4], it must be f32, f16 or bf16");
    REFUSES(linear, good, a.x = &bias, "x is f32 [6], its rank must be 2 to 4");
    REFUSES(linear, good, a.x = &wide, "x is f32 [3][5], the weight [6][4] needs 4 channels");
    REFUSES(linear, good, a.weight = NULL, "weight is missing");
    REFUSES(linear, good, a.weight = conv, "weight is packed for conv2d");
    REFUSES(linear, good, a.weight = foreign, "weight is packed for cpu, not for reference");
    REFUSES(linear, good, a.activation = (enum activation)9, "activation 9");
    REFUSES(linear, good, (a.weight = geglu, a.y = &half, a.activation = ACTIVATION_SILU),
        "no further activation");
    REFUSES(linear, good, a.y = &other,
        "linear: y is f32 [3][5], it must be f32 [3][6] for x f32 [3][4]");
    REFUSES(linear, good, a.y = &bf16, "y is bf16 [3][6], it must be f32 [3][6]");
    REFUSES(linear, good, a.y = &over, "y (f32 [3][6]) overlaps x (f32 [3][4])");
    REFUSES(
        linear, good, a.residual = &other, "residual is f32 [3][5], it must be like y, f32 [3][6]");
    REFUSES(linear, good, a.residual = &shifted, "overlaps residual");
    ACCEPTS(linear, good, (a.weight = geglu, a.ungated = true));
    REFUSES(linear, good, a.ungated = true, "only a geglu weight without a residual");
    REFUSES(linear, good, (a.weight = geglu, a.ungated = true, a.residual = &r),
        "only a geglu weight without a residual");
    REFUSES(linear, good, (a.weight = geglu, a.ungated = true, a.y = &half),
        "y is f32 [3][3], it must be f32 [3][6]");
    packed_destroy(weight);
    packed_destroy(geglu);
    packed_destroy(conv);
    packed_destroy(foreign);
    packed_destroy(NULL);
}

static void geglu_refuses(void) {
    struct tensor h = f32_2d(0, 3, 8), y = f32_2d(64, 3, 4), r = f32_2d(128, 3, 4);
    struct tensor over = f32_2d(8, 3, 4), shifted = f32_2d(65, 3, 4);
    struct geglu_args good = { &h, NULL, &y };
    ACCEPTS(geglu, good, (void)0);
    ACCEPTS(geglu, good, a.residual = &r);
    ACCEPTS(geglu, good, a.residual = &y);
    REFUSES(geglu, good, a.h = NULL, "geglu: h is missing");
    REFUSES(geglu, good, a.h = &r, "h is f32 [3][4], it must be f32 [3][8] for y f32 [3][4]");
    REFUSES(geglu, good, a.y = &over, "y (f32 [3][4]) overlaps h");
    REFUSES(geglu, good, a.residual = &h, "residual is f32 [3][8], it must be like y");
    REFUSES(geglu, good, a.residual = &shifted, "overlaps residual");
}

static void low_rank_refuses(void) {
    struct tensor x = f32_2d(0, 2, 4), y = f32_2d(64, 2, 6), over = f32_2d(4, 2, 6);
    struct tensor image = f32_4d(0, 2, 3, 3, 4), out = f32_4d(128, 2, 3, 3, 6);
    const float *down = memory + 1024, *up = memory + 2048;
    const struct low_rank_term term = { down, up, 2, 1, 5, 1 };
    const struct low_rank_term bad[] = { { NULL, up, 2, 1, 5, 1 }, { down, up, 0, 1, 5, 1 },
        { down, up, 2, 2, 5, 1 }, { down, up, 2, -1, 5, 1 } };
    const struct low_rank_row rows[] = { { NULL, 0 }, { &term, 1 } };
    struct low_rank_row wrong[] = { { NULL, 0 }, { NULL, 1 } };
    struct low_rank_args good = { .x = &x, .rows = rows, .y = &y };
    ACCEPTS(low_rank, good, (void)0);
    ACCEPTS(low_rank, good, (a.kind = CONV_3X3, a.x = &image, a.y = &out));
    REFUSES(low_rank, good, a.x = NULL, "low_rank: x is missing");
    REFUSES(low_rank, good, a.kind = (enum conv_kind)7, "convolution kind 7 is unknown");
    REFUSES(low_rank, good, a.kind = CONV_3X3, "x is f32 [2][4], its rank must be 4 to 4");
    REFUSES(low_rank, good, (a.kind = CONV_3X3_DOWN, a.x = &image, a.y = &out),
        "y is f32 [2][3][3][6], it must be f32 [2][2][2][6]");
    REFUSES(low_rank, good, a.rows = NULL, "rows are missing");
    REFUSES(low_rank, good, a.y = &over, "y (f32 [2][6]) overlaps x");
    REFUSES(low_rank, good, a.x = &image, "y is f32 [2][6], it must be f32 [2][3][3][6]");
    REFUSES(low_rank, good, (wrong[1].terms = &bad[0], a.rows = wrong), "factors are missing");
    REFUSES(low_rank, good, (wrong[1].terms = &bad[1], a.rows = wrong), "a term of rank 0");
    REFUSES(low_rank, good, (wrong[1].terms = &bad[2], a.rows = wrong),
        "to 5 outputs from 2 on does not fit 6");
    REFUSES(low_rank, good, (wrong[1].terms = &bad[3], a.rows = wrong), "from -1 on");
}

static void conv2d_refuses(void) {
    struct error err = { 0 };
    struct packed *same = NULL, *up = NULL, *right = NULL;
    struct tensor w = f32_4d(0, 2, 3, 3, 3);
    const struct kernels *k = kernels_reference();
    CHECK(conv2d_pack(k, "c", &w, NULL, CONV_3X3, DTYPE_F32, &same, &err), "%s", err.message);
    CHECK(conv2d_pack(k, "c", &w, NULL, CONV_3X3_UP, DTYPE_F32, &up, &err), "%s", err.message);
    CHECK(conv2d_pack(k, "c", &w, NULL, CONV_3X3_DOWN_RIGHT, DTYPE_F32, &right, &err), "%s",
        err.message);
    struct tensor x = f32_4d(0, 2, 4, 5, 3), y = f32_4d(1000, 2, 4, 5, 2), flat = f32_2d(0, 8, 3);
    struct tensor odd = f32_4d(1000, 2, 7, 10, 2), double_size = f32_4d(1000, 2, 8, 10, 2);
    struct tensor six = f32_4d(1000, 2, 6, 10, 2), narrow = f32_4d(0, 2, 4, 5, 4);
    struct tensor dot = f32_4d(0, 2, 1, 5, 3), row = f32_2d(2000, 2, 2), wrong = f32_2d(2000, 2, 1);
    struct tensor wide = f32_2d(2000, 2, 5);
    struct tensor row16 = tensor_2d(memory + 2000, DTYPE_BF16, 2, 2);
    struct conv2d_args good = { .x = &x, .weight = same, .y = &y };
    ACCEPTS(conv2d, good, a.row_add = &row);
    ACCEPTS(conv2d, good, (a.row_add = &wide, a.row_add_offset = 3));
    ACCEPTS(conv2d, good, a.residual = &y);
    ACCEPTS(conv2d, good, (a.weight = up, a.y = &odd));
    ACCEPTS(conv2d, good, (a.weight = up, a.y = &double_size));
    REFUSES(conv2d, good, a.x = &flat, "x is f32 [8][3], its rank");
    REFUSES(
        conv2d, good, a.x = &narrow, "x is f32 [2][4][5][4], the weight [2][3] needs 3 channels");
    REFUSES(conv2d, good, (a.weight = right, a.x = &dot), "too small");
    REFUSES(conv2d, good, (a.weight = up, a.y = &six),
        "y is f32 [2][6][10][2], it must be f32 [2][8][10][2] for x f32 [2][4][5][3]");
    REFUSES(conv2d, good, a.row_add = &wrong,
        "row_add is f32 [2][1], it must have a row with 2 channels from 0 on for y f32 "
        "[2][4][5][2]");
    REFUSES(conv2d, good, (a.row_add = &wide, a.row_add_offset = 4), "2 channels from 4 on");
    REFUSES(conv2d, good, (a.row_add = &wide, a.row_add_offset = -1), "2 channels from -1 on");
    REFUSES(conv2d, good, a.row_add = &row16, "row_add is bf16 [2][2], it must be f32 like x");
    REFUSES(conv2d, good, a.residual = &x, "residual is f32 [2][4][5][3]");
    packed_destroy(same);
    packed_destroy(up);
    packed_destroy(right);
}

/* An f32 y for a 16-bit x is accepted by tables that support it, but not with a residual or a
 * tape. */
static void wider_outputs_refuse(void) {
    struct error err = { 0 };
    struct packed *weight = NULL, *cpus = NULL;
    struct tensor w = f32_4d(0, 2, 3, 3, 3), y = f32_4d(1000, 2, 4, 5, 2);
    struct tensor x = tensor_4d(memory, DTYPE_BF16, 2, 4, 5, 3);
    struct tensor half = tensor_4d(memory + 1000, DTYPE_F16, 2, 4, 5, 2);
    CHECK(conv2d_pack(kernels_reference(), "c", &w, NULL, CONV_3X3, DTYPE_BF16, &weight, &err) &&
              conv2d_pack(kernels_cpu(), "c", &w, NULL, CONV_3X3, DTYPE_BF16, &cpus, &err),
        "%s", err.message);
    struct conv2d_args good = { .x = &x, .weight = weight, .y = &y };
    ACCEPTS(conv2d, good, (void)0);
    REFUSES(conv2d, good, a.y = &half, "y is f16 [2][4][5][2], it must be bf16 [2][4][5][2]");
    REFUSES(conv2d, good, a.residual = &y,
        "a residual takes no y that is wider than x, bf16 [2][4][5][3]");
    REFUSES(conv2d, good, (c_.tape = (struct tape *)memory), "a tape takes no y that is wider");
    REFUSES(conv2d, good, (c_.kernels = kernels_cpu(), a.weight = cpus),
        "y is f32 [2][4][5][2], it must be bf16 [2][4][5][2] for x bf16 [2][4][5][3]");
    packed_destroy(weight);
    packed_destroy(cpus);
}

static void norms_refuse(void) {
    struct tensor x = f32_4d(0, 2, 3, 3, 8), y = f32_4d(1000, 2, 3, 3, 8), g, b, g9, g16;
    g = tensor_1d(memory + 2000, DTYPE_F32, 8);
    b = tensor_1d(memory + 2100, DTYPE_F32, 8);
    g9 = tensor_1d(memory + 2000, DTYPE_F32, 9);
    g16 = tensor_1d(memory + 2000, DTYPE_BF16, 8);
    struct tensor flat = tensor_view_2d(&x, 18, 8), partly = f32_4d(8, 2, 3, 3, 8);
    struct group_norm_args gn = { &x, &g, &b, 4, 1e-5f, true, &y };
    ACCEPTS(group_norm, gn, a.y = &x);
    REFUSES(group_norm, gn, a.groups = 3, "group_norm: 8 channels are not 3");
    REFUSES(group_norm, gn, a.groups = 0, "8 channels are not 0 groups");
    REFUSES(group_norm, gn, a.eps = NAN, "eps nan is negative");
    REFUSES(group_norm, gn, a.gamma = NULL, "gamma is missing");
    REFUSES(group_norm, gn, a.gamma = &g9,
        "gamma is f32 [9], it must be f32 [8] for x f32 [2][3][3][8]");
    REFUSES(group_norm, gn, a.beta = &g16, "beta is bf16 [8]");
    REFUSES(group_norm, gn, a.x = &flat, "x is f32 [18][8], its rank");
    REFUSES(group_norm, gn, a.y = &flat, "y is f32 [18][8], it must be like x");
    REFUSES(group_norm, gn, a.y = &partly, "overlaps x");
    struct layer_norm_args ln = { &x, &g, &b, 1e-5f, &y };
    ACCEPTS(layer_norm, ln, (a.x = &flat, a.y = &flat));
    REFUSES(layer_norm, ln, a.eps = -1, "layer_norm: eps -1 is negative");
    REFUSES(layer_norm, ln, a.y = &flat, "y is f32 [18][8]");
}

/* A group norm for a table that claims to join two tensors. It does nothing. */
static bool does_nothing(const struct group_norm_args *args, struct error *err) {
    (void)args;
    (void)err;
    return true;
}

static void joined_norms_refuse(void) {
    struct tensor x = f32_4d(0, 2, 3, 3, 5), more = f32_4d(500, 2, 3, 3, 3);
    struct tensor joined = f32_4d(1000, 2, 3, 3, 8), y = f32_4d(2000, 2, 3, 3, 8);
    struct tensor g = tensor_1d(memory + 3000, DTYPE_F32, 8), tall = f32_4d(500, 2, 4, 3, 3);
    struct tensor narrow = f32_4d(1000, 2, 3, 3, 7), small = f32_4d(2000, 2, 3, 3, 5);
    struct tensor over_x = f32_4d(50, 2, 3, 3, 8), over_more = f32_4d(510, 2, 3, 3, 8);
    struct kernels table = *kernels_reference();
    table.joins = true;
    table.group_norm = does_nothing;
    const struct group_norm_args good = { &x, &g, &g, 4, 1e-5f, true, &y, &more, &joined };
    const struct {
        struct group_norm_args args;
        const char *says; /* NULL: fine */
    } cases[] = {
        { good, NULL },
        { { &x, &g, &g, 4, 1e-5f, true, &y, &more, NULL }, "joined is missing" },
        { { &x, &g, &g, 4, 1e-5f, true, &y, NULL, &joined }, "more is missing" },
        { { &x, &g, &g, 4, 1e-5f, true, &y, &tall, &joined }, "more is f32 [2][4][3][3]" },
        { { &x, &g, &g, 4, 1e-5f, true, &y, &more, &narrow }, "joined is f32 [2][3][3][7]" },
        { { &x, &g, &g, 4, 1e-5f, true, &small, &more, &joined }, "y is f32 [2][3][3][5]" },
        { { &x, &g, &g, 3, 1e-5f, true, &y, &more, &joined }, "8 channels are not 3 groups" },
        { { &x, &g, &g, 4, 1e-5f, true, &y, &more, &over_x }, "overlaps x" },
        { { &x, &g, &g, 4, 1e-5f, true, &y, &more, &over_more }, "overlaps more" },
        { { &x, &g, &g, 4, 1e-5f, true, &over_x, &more, &joined }, "overlaps x" },
        { { &x, &g, &g, 4, 1e-5f, true, &over_more, &more, &joined }, "overlaps more" },
        { { &x, &g, &g, 4, 1e-5f, true, &joined, &more, &joined }, "overlaps joined" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct compute c = { .kernels = &table };
        op_group_norm(&c, &cases[i].args);
        CHECK(compute_ok(&c) == !cases[i].says, "%zu: %s", i, c.error.message);
        if (cases[i].says)
            CHECK_CONTAINS(c.error.message, cases[i].says);
    }
    REFUSES(group_norm, good, (void)0, "reference reads one tensor, not two");
}

static bool convolves_nothing(const struct conv2d_args *args, struct error *err) {
    (void)args;
    (void)err;
    return true;
}

static void shortcuts_refuse(void) {
    struct kernels table = *kernels_reference();
    table.adds_shortcuts = true;
    table.conv2d = convolves_nothing;
    struct tensor w = f32_4d(0, 2, 3, 3, 3), w1 = f32_4d(0, 2, 4, 1, 1), w3 = f32_4d(0, 3, 4, 1, 1);
    struct packed *conv = NULL, *down = NULL, *one = NULL, *three = NULL;
    struct error err = { 0 };
    CHECK(conv2d_pack(&table, "c", &w, NULL, CONV_3X3, DTYPE_F32, &conv, &err) &&
              conv2d_pack(&table, "c", &w, NULL, CONV_3X3_DOWN, DTYPE_F32, &down, &err) &&
              conv2d_pack(&table, "c", &w1, NULL, CONV_1X1, DTYPE_F32, &one, &err) &&
              conv2d_pack(&table, "c", &w3, NULL, CONV_1X1, DTYPE_F32, &three, &err),
        "%s", err.message);
    conv->owner = down->owner = one->owner = three->owner = &table;
    struct tensor x = f32_4d(0, 2, 4, 4, 3), y = f32_4d(500, 2, 4, 4, 2);
    struct tensor around = f32_4d(1000, 2, 4, 4, 4), narrow = f32_4d(1000, 2, 4, 4, 3);
    struct tensor flat = f32_4d(1000, 2, 2, 4, 4), over_y = f32_4d(510, 2, 4, 4, 4);
    struct tensor half = f32_4d(500, 2, 2, 2, 2), row = tensor_2d(memory + 2000, DTYPE_F32, 2, 2);
    const struct conv2d_args good = {
        .x = &x, .weight = conv, .y = &y, .shortcut = &around, .shortcut_weight = one
    };
    const struct {
        const struct tensor *row_add, *residual, *shortcut;
        const struct packed *weight, *shortcut_weight;
        const char *says; /* NULL: fine */
    } cases[] = {
        { NULL, NULL, &around, conv, one, NULL },
        { NULL, NULL, NULL, conv, one, "shortcut is missing" },
        { NULL, NULL, &around, conv, NULL, "weight is missing" },
        { NULL, NULL, &around, conv, three, "must be 1x1 and [2][4], not [3][4]" },
        { NULL, NULL, &around, conv, conv, "must be 1x1 and [2][4], not [2][3]" },
        { NULL, NULL, &narrow, conv, one, "must be 1x1 and [2][3], not [2][4]" },
        { NULL, NULL, &flat, conv, one, "it must be f32 [2][4][4][4] for y" },
        { NULL, NULL, &over_y, conv, one, "y (f32 [2][4][4][2]) overlaps shortcut" },
        { &row, NULL, &around, conv, one, "without row_add and residual" },
        { NULL, &y, &around, conv, one, "without row_add and residual" },
        { NULL, NULL, &around, down, one, "takes a 3x3 convolution" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct compute c = { .kernels = &table };
        struct conv2d_args args = good;
        args.row_add = cases[i].row_add;
        args.residual = cases[i].residual;
        args.shortcut = cases[i].shortcut;
        args.weight = cases[i].weight;
        args.shortcut_weight = cases[i].shortcut_weight;
        args.y = cases[i].weight == down ? &half : &y;
        op_conv2d(&c, &args);
        CHECK(compute_ok(&c) == !cases[i].says, "%zu: %s", i, c.error.message);
        if (cases[i].says)
            CHECK_CONTAINS(c.error.message, cases[i].says);
    }
    struct compute c = { .kernels = &table, .tape = (struct tape *)memory };
    op_conv2d(&c, &good);
    CHECK_CONTAINS(c.error.message, "a tape takes down one convolution, not two");
    conv->owner = kernels_reference();
    REFUSES(conv2d, good, (void)0, "reference adds no shortcut");
    conv->owner = &table;
    packed_destroy(conv);
    packed_destroy(down);
    packed_destroy(one);
    packed_destroy(three);
}

static void attention_refuses(void) {
    struct tensor q = tensor_3d(memory, DTYPE_F32, 2, 5, 24);
    struct tensor k = tensor_3d(memory + 1000, DTYPE_F32, 2, 7, 8);
    struct tensor v = tensor_3d(memory + 2000, DTYPE_F32, 2, 7, 8);
    struct tensor y = tensor_3d(memory + 3000, DTYPE_F32, 2, 5, 8);
    struct tensor v6 = tensor_3d(memory + 2000, DTYPE_F32, 2, 6, 8);
    struct tensor q3 = tensor_3d(memory, DTYPE_F32, 3, 5, 24);
    struct tensor k16 = tensor_3d(memory + 1000, DTYPE_BF16, 2, 7, 8);
    struct tensor wide = tensor_3d(memory + 3000, DTYPE_F32, 2, 5, 9);
    struct attention_args good = { &q, &k, &v, 0, 0, 0, 2, 4, 0.5f, false, &y };
    ACCEPTS(attention, good, a.q_offset = 16);
    ACCEPTS(attention, good, (a.k = a.v = &q, a.q_offset = 0, a.k_offset = 8, a.v_offset = 16));
    int32_t counts[2] = { 7, 1 };
    struct tensor lengths = tensor_1d(counts, DTYPE_I32, 2);
    struct tensor three = tensor_1d(memory, DTYPE_I32, 3), floats = tensor_1d(memory, DTYPE_F32, 2);
    ACCEPTS(attention, good, a.lengths = &lengths);
    REFUSES(attention, good, a.lengths = &three,
        "lengths is i32 [3], it must be i32 [2] for y f32 [2][5][8]");
    REFUSES(attention, good, a.lengths = &floats, "lengths is f32 [2], it must be i32 [2]");
    REFUSES(attention, good, (counts[1] = 8, a.lengths = &lengths),
        "attention: lengths[1] is 8, it must be 1 to the keys of k f32 [2][7][8]");
    REFUSES(attention, good, (counts[1] = 0, a.lengths = &lengths), "lengths[1] is 0");
    REFUSES(attention, good, a.q_offset = 17,
        "attention: q is f32 [2][5][24], too few channels for 2 heads of 4 from 17 on");
    REFUSES(attention, good, a.q_offset = -1, "from -1 on");
    REFUSES(attention, good, a.heads = 0, "0 heads of 4");
    REFUSES(attention, good, a.q = &q3, "q is f32 [3][5][24]");
    REFUSES(attention, good, a.k = &k16, "k is bf16 [2][7][8], it must be f32");
    REFUSES(attention, good, a.y = &wide, "y is f32 [2][5][9], it must be f32 [2][5][8]");
    REFUSES(attention, good, a.y = &v6, "y");
    REFUSES(attention, good, a.v = &v6,
        "v is f32 [2][6][8], it must be [2][7][...] for y f32 [2][5][8]");
}

static void embeddings_refuse(void) {
    struct tensor ids = tensor_2d(memory, DTYPE_I32, 2, 5), table = f32_2d(100, 9, 4);
    struct tensor positions = f32_2d(200, 5, 4), y = tensor_3d(memory + 300, DTYPE_F32, 2, 5, 4);
    struct tensor few = f32_2d(200, 4, 4), floats = f32_2d(0, 2, 5);
    struct tensor y3 = tensor_3d(memory + 300, DTYPE_F32, 2, 5, 3);
    struct embedding_args good = { &ids, &table, &positions, &y };
    ACCEPTS(embedding, good, (void)0);
    ACCEPTS(embedding, good, a.positions = NULL);
    REFUSES(embedding, good, a.ids = &floats, "ids is f32 [2][5], it must be i32");
    REFUSES(embedding, good, a.positions = &few,
        "embedding: positions are f32 [4][4], they must reach ids i32 [2][5]");
    REFUSES(embedding, good, a.y = &y3,
        "y is f32 [2][5][3], it must be f32 [2][5][4] for ids i32 [2][5]");
    struct tensor t = tensor_1d(memory, DTYPE_F32, 2), e = f32_2d(10, 2, 6), e5 = f32_2d(10, 2, 5);
    struct tensor t16 = tensor_1d(memory, DTYPE_BF16, 2), e3 = f32_2d(10, 3, 6);
    struct timestep_embedding_args ts = { &t, true, 0, &e };
    ACCEPTS(timestep_embedding, ts, a.freq_shift = 1);
    REFUSES(timestep_embedding, ts, a.timesteps = &t16, "timesteps is bf16 [2], it must be f32");
    REFUSES(timestep_embedding, ts, a.y = &e5, "width must be even");
    REFUSES(timestep_embedding, ts, a.freq_shift = 3, "freq_shift 3");
    REFUSES(timestep_embedding, ts, a.y = &e3,
        "y is f32 [3][6], it must be f32 [2][6] for timesteps f32 [2]");
}

static void pointwise_refuses(void) {
    struct tensor x = f32_2d(0, 3, 4), b = f32_2d(100, 3, 4), y = f32_2d(200, 3, 4);
    struct tensor y9 = f32_2d(200, 3, 9), b5 = f32_2d(100, 3, 5), b2 = f32_2d(100, 2, 4);
    struct add_args add = { &x, &b, ACTIVATION_NONE, &y };
    ACCEPTS(add, add, (a.y = &x, a.b = NULL));
    REFUSES(add, add, a.b = &b5, "add: b is f32 [3][5], it must be like a, f32 [3][4]");
    REFUSES(add, add, a.y = &b, "y (f32 [3][4]) overlaps b (f32 [3][4])");
    struct concat_args cat = { &x, &b5, &y9 };
    ACCEPTS(concat, cat, (void)0);
    REFUSES(
        concat, cat, a.b = &b2, "concat: b is f32 [2][4], it must be f32 [3][4] for a f32 [3][4]");
    REFUSES(concat, cat, a.y = &y, "y is f32 [3][4], it must be f32 [3][9]");
    const float coefficients[6] = { 1, 2, 3, 4, 5, 6 };
    struct combine_args sum = { { &x, &b }, 2, coefficients, NULL, &y };
    ACCEPTS(combine, sum, a.y = &b);
    REFUSES(combine, sum, a.count = 9, "combine: 9 terms are not 1 to 8");
    REFUSES(combine, sum, a.coefficients = NULL, "coefficients are missing");
    REFUSES(combine, sum, a.terms[1] = &b5, "terms[1] is f32 [3][5]");
    REFUSES(combine, sum, a.count = 3, "terms[2] is missing");
    struct tensor mask = f32_2d(300, 3, 1);
    struct blend_args blend = { &x, &b, &mask, &y };
    ACCEPTS(blend, blend, a.y = &b);
    REFUSES(blend, blend, a.b = &b5, "blend: b is f32 [3][5], it must be like y, f32 [3][4]");
    REFUSES(blend, blend, a.mask = &b2, "mask is f32 [2][4], it must be f32 [3][1]");
    struct tensor nchw = f32_4d(0, 2, 3, 4, 5), nhwc = f32_4d(200, 2, 4, 5, 3);
    struct tensor ints = tensor_4d(memory + 200, DTYPE_I32, 2, 4, 5, 3);
    struct convert_args convert = { &nchw, LAYOUT_NCHW_TO_NHWC, &nhwc };
    ACCEPTS(convert, convert, (void)0);
    ACCEPTS(convert, convert, (a.x = &nhwc, a.y = &nchw, a.layout = LAYOUT_NHWC_TO_NCHW));
    REFUSES(convert, convert, a.layout = LAYOUT_SAME,
        "convert: y is f32 [2][4][5][3], it must be f32 [2][3][4][5]");
    REFUSES(convert, convert, a.layout = (enum layout_change)7, "layout change 7");
    REFUSES(convert, convert, a.y = &ints, "y is i32 [2][4][5][3]");
    REFUSES(convert, convert, a.y = &nchw, "y");
}

static void packing_refuses_by_name(void) {
    struct error err = { 0 };
    struct packed *p = (struct packed *)memory;
    const struct kernels *k = kernels_reference();
    struct tensor w = f32_2d(0, 5, 4), b = tensor_1d(memory, DTYPE_F32, 4), w3 = w, wi = w;
    CHECK(!linear_pack(k, "ff.weight", &w, &b, false, DTYPE_F32, &p, &err) && !p, "bias");
    CHECK_STRING(
        err.message, "ff.weight: f32 [4] is not allowed; its bias is f32, f16 or bf16 [5]");
    CHECK(!linear_pack(k, "ff.weight", &w, NULL, true, DTYPE_F32, &p, &err), "odd geglu");
    CHECK_CONTAINS(err.message, "ff.weight: f32 [5][4]");
    CHECK(!linear_pack(k, "ff.weight", &w, NULL, false, DTYPE_I32, &p, &err), "i32");
    CHECK_CONTAINS(err.message, "packs weights as f32, bf16 or f16");
    w3.rank = 3;
    CHECK(!linear_pack(k, "w", &w3, NULL, false, DTYPE_F32, &p, &err), "rank 3");
    CHECK_CONTAINS(err.message, "[n][k] or [n][k][1][1]");
    wi.dtype = DTYPE_I64;
    CHECK(!linear_pack(k, "w", &wi, NULL, false, DTYPE_F32, &p, &err), "i64");
    CHECK_CONTAINS(err.message, "i64 [5][4]");
    struct tensor cw = f32_4d(0, 5, 4, 3, 1);
    CHECK(!conv2d_pack(k, "conv", &cw, NULL, CONV_3X3, DTYPE_F32, &p, &err), "3x1");
    CHECK_CONTAINS(err.message, "conv: f32 [5][4][3][1] is not allowed");
    cw.shape[3] = 0;
    CHECK(!conv2d_pack(k, "conv", &cw, NULL, CONV_1X1, DTYPE_F32, &p, &err), "3x0");
}

static void first_error_sticks(void) {
    struct compute c = fresh();
    struct tensor x = f32_2d(0, 2, 2), y = f32_2d(10, 2, 3), z = f32_2d(20, 2, 2);
    memory[20] = 42;
    op_add(&c, &(struct add_args){ .a = &x, .y = &y });
    CHECK_CONTAINS(c.error.message, "y is f32 [2][3]");
    op_add(&c, &(struct add_args){ .a = NULL });
    op_add(&c, &(struct add_args){ .a = &x, .y = &z });
    CHECK_CONTAINS(c.error.message, "y is f32 [2][3]");
    CHECK(memory[20] == 42, "nothing is computed after an error");
}

static void two_temporaries(struct compute *c, void *user) {
    int64_t n = *(int64_t *)user;
    size_t mark = arena_mark(c->arena);
    struct tensor a = compute_tensor_4d(c, DTYPE_F32, 1, n, n, 16);
    struct tensor b = compute_tensor_4d(c, DTYPE_F32, 1, n, n, 16);
    op_add(c, &(struct add_args){ .a = &a, .b = NULL, .y = &b });
    arena_release(c->arena, mark);
    struct tensor d = compute_tensor_3d(c, DTYPE_BF16, 1, n, n);
    (void)d;
}

static void a_dry_run_plans_the_arena(void) {
    struct error err = { 0 };
    struct compute c = fresh();
    CHECK(arena_create(c.kernels->memory, &c.arena, &err), "%s", err.message);
    int64_t n = 300;
    CHECK(compute_plan(&c, two_temporaries, &n, &err), "%s", err.message);
    size_t reserved = arena_reserved_bytes(c.arena);
    CHECK(reserved >= 2u * 300 * 300 * 16 * 4 && reserved < 13u << 20, "%zu bytes", reserved);
    two_temporaries(&c, &n);
    CHECK(compute_ok(&c), "the planned run fits: %s", c.error.message);
    arena_release(c.arena, 0);
    n = 400;
    two_temporaries(&c, &n);
    CHECK(c.error.code == ERROR_NO_MEMORY, "an unplanned run does not");
    CHECK_CONTAINS(c.error.message, "f32 [1][400][400][16] does not fit");
    n = INT64_MAX / 2;
    CHECK(!compute_plan(&c, two_temporaries, &n, &err), "an overflow is found");
    CHECK_CONTAINS(err.message, "no tensor can be");
    n = 1 << 20;
    CHECK(!compute_plan(&c, two_temporaries, &n, &err) && err.code == ERROR_NO_MEMORY,
        "what the system refuses is an error: %s", err.message);
    arena_destroy(c.arena);
}

static int noted;
static void note(enum operation operation, const void *args) {
    if (operation == OPERATION_group_norm)
        noted += (int)((const struct group_norm_args *)args)->x->shape[0];
}

/* Calls are noted only in a dry run with `note` set, and only if their arguments are valid. */
static void a_dry_run_notes_calls(void) {
    static const struct tuner tuner = { .note = note };
    float one[4] = { 0 };
    struct compute c = fresh();
    struct kernels table = *c.kernels;
    table.tuner = &tuner;
    c.kernels = &table;
    struct tensor x = tensor_4d(one, DTYPE_F32, 2, 1, 1, 2),
                  y = tensor_4d(NULL, DTYPE_F32, 2, 1, 1, 2);
    struct tensor gamma = tensor_1d(one, DTYPE_F32, 2), beta = gamma;
    float result[4] = { 7, 7, 7, 7 };
    y.data = result;
    struct group_norm_args args = {
        .x = &x, .gamma = &gamma, .beta = &beta, .groups = 1, .eps = 1e-5f, .y = &y
    };
    for (int i = 0; i < 4; i++) {
        c.dry_run = i & 1;
        c.note = i & 2;
        result[0] = 7;
        op_group_norm(&c, &args);
        CHECK(compute_ok(&c), "%s", c.error.message);
        CHECK(noted == (i == 3 ? 2 : 0), "%d: %d rows noted", i, noted);
        CHECK((result[0] == 7) == c.dry_run, "%d: %g", i, (double)result[0]);
    }
    args.groups = 3;
    op_group_norm(&c, &args);
    CHECK(!compute_ok(&c) && noted == 2, "a wrong call is not noted");
}

static void output_sizes(void) {
    CHECK(conv_out_size(CONV_3X3, 7) == 7 && conv_out_size(CONV_1X1, 7) == 7, "same");
    CHECK(conv_out_size(CONV_3X3_DOWN, 7) == 4 && conv_out_size(CONV_3X3_DOWN, 8) == 4, "down");
    CHECK(conv_out_size(CONV_3X3_DOWN_RIGHT, 8) == 4, "right");
    CHECK(conv_out_size(CONV_3X3_DOWN_RIGHT, 7) == 3, "right, odd");
    CHECK(conv_out_size(CONV_3X3_UP, 7) == 14, "up");
}

int main(void) {
    linear_refuses();
    geglu_refuses();
    low_rank_refuses();
    conv2d_refuses();
    wider_outputs_refuse();
    norms_refuse();
    joined_norms_refuse();
    shortcuts_refuse();
    attention_refuses();
    embeddings_refuse();
    pointwise_refuses();
    packing_refuses_by_name();
    first_error_sticks();
    a_dry_run_plans_the_arena();
    a_dry_run_notes_calls();
    output_sizes();
    return check_done();
}
