/* linear_backward and conv2d_backward. */
#include "tests/kernels/kcheck/kcheck.h"

static const enum dtype weight_dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };

/* The gradients that a call computes: of the input, the weight, the bias and row_add. */
enum { X = 1, W = 2, B = 4, R = 8 };

/* Returns a text such as " dx dw", in the order of the flags. */
static const char *wanted_text(unsigned wanted) {
    static const char *const names[] = { "", " dx", " dw", " dx dw", " dbias", " dx dbias",
        " dw dbias", " dx dw dbias", " drow", " dx drow", " dw drow", " dx dw drow", " dbias drow",
        " dx dbias drow", " dw dbias drow", " everything" };
    return names[wanted];
}

static struct tensor *output_if(unsigned wanted, unsigned part, struct subject *s, int *next) {
    return wanted & part ? &s->inputs[(*next)++].t : NULL;
}

/* Adds the outputs dw and dbias, in the order of the flags. Both are sums over all rows. */
static void add_parameters(
    struct kcheck *k, struct subject *s, unsigned wanted, struct tensor weight) {
    const struct tolerance sums = { 4e-6, "f32 sums over the tokens of all rows" };
    if (wanted & W)
        subject_gradient(k, s, weight, sums);
    if (wanted & B)
        subject_gradient(k, s, tensor_1d(NULL, DTYPE_F32, weight.shape[0]), sums);
}

/* y is dx. If dx is not wanted (no X), y only becomes a copy of `before`. */
static void start_y(
    struct compute *c, const struct tensor *before, bool accumulate, struct tensor *y) {
    if (accumulate)
        op_convert(c, &(struct convert_args){ .x = before, .y = y });
}

/* ---- linear ---- */

struct linear_case {
    int64_t rows, m, n, k; /* x [rows][m][k] */
    bool geglu, accumulate;
    unsigned wanted;
    enum when when;
};

/* Inputs: dy, x, initial dx, the weight; then the outputs. */
static void run_linear(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    const struct linear_case *p = s->params;
    struct subject *own = (struct subject *)s;
    struct tensor dy = subject_row(s, 0, row), x = subject_row(s, 1, row);
    struct tensor before = subject_row(s, 2, row);
    int next = 4;
    start_y(c, &before, p->accumulate || !(p->wanted & X), y);
    op_linear_backward(c, &(struct linear_backward_args){ .dy = &dy,
                              .weight = s->weight,
                              .x = p->wanted & W ? &x : NULL,
                              .dx = p->wanted & X ? y : NULL,
                              .accumulate = p->accumulate,
                              .dw = output_if(p->wanted, W, own, &next),
                              .dbias = output_if(p->wanted, B, own, &next) });
}

static void check_linear_case(struct kcheck *k, const struct linear_case *p, enum dtype weights) {
    struct subject s;
    if (!subject_start(k, &s, "linear_backward", "%lldx%lldx%lldx%lld%s%s%s %s", (long long)p->rows,
            (long long)p->m, (long long)p->n, (long long)p->k, p->geglu ? " geglu" : "",
            wanted_text(p->wanted), p->accumulate ? " accumulate" : "", dtype_name(weights)))
        return;
    const enum dtype dtype = k->table->activation_dtype(weights);
    subject_input(k, &s, tensor_3d(NULL, dtype, p->rows, p->m, p->n), 1, 0);
    subject_input(k, &s, tensor_3d(NULL, dtype, p->rows, p->m, p->k), 1, 0);
    s.y = tensor_3d(NULL, dtype, p->rows, p->m, p->k);
    subject_input(k, &s, s.y, 1, 0);
    const float scale = 1.0f / (float)(p->n < 16 ? 4 : p->n < 400 ? 12 : 30);
    const struct tensor *w = subject_input(k, &s, tensor_2d(NULL, DTYPE_F32, p->n, p->k), scale, 0);
    subject_pack(k, &s, w, NULL, false, CONV_1X1, p->geglu, weights);
    add_parameters(k, &s, p->wanted, tensor_2d(NULL, DTYPE_F32, p->n, p->k));
    s.run = run_linear;
    s.params = p;
    s.tolerance = tolerance_for("linear_backward", dtype, weights);
    s.flops = 2.0 * (double)(p->rows * p->m) * (double)(p->n * p->k) *
              ((p->wanted & X ? 1 : 0) + (p->wanted & W ? 1 : 0));
    subject_check(k, &s);
}

void check_linear_backward(struct kcheck *k) {
    static const struct linear_case cases[] = {
        { 3, 1, 1, 1, false, false, X | W | B, QUICK },
        { 3, 7, 17, 13, false, false, X, QUICK },
        { 3, 7, 17, 13, false, true, X | W | B, QUICK },
        { 3, 6, 16, 32, false, false, X | W, QUICK },
        { 3, 13, 33, 47, false, false, W | B, QUICK },
        { 3, 7, 62, 31, true, true, X | W | B, QUICK },
        { 3, 25, 64, 64, true, false, X, QUICK },
        { 3, 49, 97, 101, false, false, X | W | B, QUICK },
        { 3, 6, 24, 40, false, true, X, QUICK },
        { 3, 9, 72, 72, false, false, X | B, QUICK },
        { 3, 1, 40, 56, false, false, X | W | B, QUICK },
        { 3, 130, 64, 96, false, false, X | W | B, QUICK },
        { 2, 13, 320, 320, false, false, X | W | B, CHANNELS },
        { 2, 7, 640, 320, true, true, X | W, CHANNELS },
        { 2, 5, 320, 1280, false, false, X, CHANNELS },
        { 2, 77, 320, 768, false, true, X | W | B, CHANNELS },
        { 2, 256, 320, 320, false, false, X | W | B, SLOW },
        { 2, 64, 2560, 320, true, true, X | W | B, SLOW },
        { 1, 64, 1280, 5120, false, false, X | W, SLOW },
        { 1, 4096, 320, 320, false, false, X, BENCH },
        { 1, 4096, 320, 320, false, false, W, BENCH },
        { 1, 4096, 960, 320, false, false, X, BENCH },
        { 1, 4096, 2560, 320, true, false, X, BENCH },
        { 1, 4096, 320, 1280, false, false, X, BENCH },
        { 1, 4096, 320, 1280, false, false, W, BENCH },
        { 1, 1024, 640, 640, false, false, X, BENCH },
        { 1, 1024, 5120, 640, true, false, X, BENCH },
        { 1, 1024, 640, 2560, false, false, X, BENCH },
        { 1, 256, 1280, 1280, false, false, X, BENCH },
        { 1, 256, 10240, 1280, true, false, X, BENCH },
        { 1, 256, 1280, 5120, false, false, X, BENCH },
        { 1, 256, 1280, 5120, false, false, W, BENCH },
        { 1, 77, 320, 768, false, false, X, BENCH },
        { 1, 77, 768, 768, false, false, X, BENCH },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t d = 0; d < sizeof(weight_dtypes) / sizeof(weight_dtypes[0]); d++)
            if (is_time_for(k, cases[i].when) && has_weights(k, weight_dtypes[d]))
                check_linear_case(k, &cases[i], weight_dtypes[d]);
}

/* ---- conv2d ---- */

struct conv_case {
    enum conv_kind kind;
    int64_t rows, h, w, c_in, c_out;
    int64_t shorter; /* pixels missing from an upsampling's output, 0 or 1 */
    bool accumulate;
    unsigned wanted;
    enum when when;
};

/* d_row_add has its own tensor; with `accumulate` it is part of a wider one. */
static int64_t row_add_offset(const struct conv_case *p) {
    return p->accumulate ? p->c_out : 0;
}

/* Inputs as in run_linear; d_row_add is the last output. */
static void run_conv2d(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    const struct conv_case *p = s->params;
    struct subject *own = (struct subject *)s;
    struct tensor dy = subject_row(s, 0, row), x = subject_row(s, 1, row);
    struct tensor before = subject_row(s, 2, row), d_row_add = { 0 };
    int next = 4;
    start_y(c, &before, p->accumulate || !(p->wanted & X), y);
    struct conv2d_backward_args args = { .dy = &dy,
        .weight = s->weight,
        .x = p->wanted & W ? &x : NULL,
        .dx = p->wanted & X ? y : NULL,
        .accumulate = p->accumulate,
        .dw = output_if(p->wanted, W, own, &next),
        .dbias = output_if(p->wanted, B, own, &next) };
    if (p->wanted & R) {
        d_row_add = subject_row(s, next, row);
        args.d_row_add = &d_row_add;
        args.accumulate_row_add = p->accumulate;
        args.row_add_offset = row_add_offset(p);
    }
    op_conv2d_backward(c, &args);
}

static void check_conv_case(struct kcheck *k, const struct conv_case *p, enum dtype weights) {
    static const char *const kinds[] = { "1x1", "3x3", "3x3 down", "3x3 down right", "3x3 up" };
    struct subject s;
    if (!subject_start(k, &s, "conv2d_backward", "%s %lldx%lldx%lldx%lld to %lld%s%s%s %s",
            kinds[p->kind], (long long)p->rows, (long long)p->h, (long long)p->w,
            (long long)p->c_in, (long long)p->c_out, p->shorter ? " shorter" : "",
            wanted_text(p->wanted), p->accumulate ? " accumulate" : "", dtype_name(weights)))
        return;
    const enum dtype dtype = k->table->activation_dtype(weights);
    const int64_t h = conv_out_size(p->kind, p->h) - p->shorter;
    const int64_t w = conv_out_size(p->kind, p->w) - p->shorter;
    const int64_t size = p->kind == CONV_1X1 ? 1 : 3;
    subject_input(k, &s, tensor_4d(NULL, dtype, p->rows, h, w, p->c_out), 1, 0);
    s.y = tensor_4d(NULL, dtype, p->rows, p->h, p->w, p->c_in);
    subject_input(k, &s, s.y, 1, 0);
    subject_input(k, &s, s.y, 1, 0);
    const float scale = 1.0f / (float)(p->c_out < 16 ? 6 : p->c_out < 400 ? 30 : 80);
    const struct tensor *weight = subject_input(
        k, &s, tensor_4d(NULL, DTYPE_F32, p->c_out, p->c_in, size, size), scale, 0);
    subject_pack(k, &s, weight, NULL, true, p->kind, false, weights);
    add_parameters(k, &s, p->wanted, tensor_4d(NULL, DTYPE_F32, p->c_out, size, size, p->c_in));
    s.tolerance = tolerance_for("conv2d_backward", dtype, weights);
    if (p->wanted & R) /* in f32 with accumulate, otherwise in dy's dtype */
        subject_output(k, &s,
            tensor_2d(
                NULL, p->accumulate ? DTYPE_F32 : dtype, p->rows, p->c_out + 2 * row_add_offset(p)),
            true, p->accumulate,
            tolerance_for("conv2d_backward", p->accumulate ? DTYPE_F32 : dtype, weights));
    s.run = run_conv2d;
    s.params = p;
    s.classes = CLASSES_SPREAD;
    s.flops = 2.0 * (double)(p->rows * h * w) * (double)(p->c_out * p->c_in * size * size) *
              ((p->wanted & X ? 1 : 0) + (p->wanted & W ? 1 : 0));
    subject_check(k, &s);
}

void check_conv2d_backward(struct kcheck *k) {
    static const struct conv_case cases[] = {
        { CONV_1X1, 3, 1, 1, 1, 1, 0, false, X | W | B | R, QUICK },
        { CONV_1X1, 3, 5, 7, 17, 19, 0, true, X | W | B | R, QUICK },
        { CONV_1X1, 3, 5, 3, 24, 40, 0, false, X, QUICK },
        { CONV_3X3, 3, 1, 1, 1, 1, 0, false, X | W | B, QUICK },
        { CONV_3X3, 3, 5, 7, 4, 33, 0, false, X | W | B | R, QUICK },
        { CONV_3X3, 3, 4, 4, 16, 16, 0, true, X, QUICK },
        { CONV_3X3, 3, 7, 3, 32, 31, 0, false, X | R, QUICK },
        { CONV_3X3, 3, 9, 11, 48, 3, 0, false, W | B, QUICK },
        { CONV_3X3, 3, 5, 7, 24, 40, 0, true, X | W | B | R, QUICK },
        { CONV_3X3, 3, 5, 7, 40, 4, 0, false, X | W, QUICK },
        { CONV_3X3_DOWN, 3, 7, 8, 16, 17, 0, false, X | W | B, QUICK },
        { CONV_3X3_DOWN, 3, 1, 5, 3, 16, 0, true, X | W | B, QUICK },
        { CONV_3X3_DOWN, 3, 7, 8, 40, 24, 0, false, X, QUICK },
        { CONV_3X3_DOWN_RIGHT, 3, 8, 6, 16, 15, 0, false, X | W | B, QUICK },
        { CONV_3X3_DOWN_RIGHT, 3, 7, 9, 5, 16, 0, true, X | W, QUICK },
        { CONV_3X3_UP, 3, 3, 5, 16, 16, 0, false, X | W | B, QUICK },
        { CONV_3X3_UP, 3, 4, 4, 17, 33, 1, false, X | W | B, QUICK },
        { CONV_3X3_UP, 3, 1, 2, 32, 16, 1, true, X, QUICK },
        { CONV_3X3_UP, 3, 3, 5, 40, 24, 0, true, X | W, QUICK },
        { CONV_3X3, 2, 4, 5, 320, 320, 0, false, X | W | B | R, CHANNELS },
        { CONV_3X3, 2, 5, 4, 4, 320, 0, false, X | W, CHANNELS },
        { CONV_3X3, 2, 5, 4, 320, 4, 0, true, X | W, CHANNELS },
        { CONV_3X3_DOWN, 2, 6, 6, 320, 320, 0, false, X | W, CHANNELS },
        { CONV_3X3_UP, 2, 3, 2, 320, 320, 0, false, X | W, CHANNELS },
        { CONV_1X1, 2, 4, 3, 960, 320, 0, false, X | W, CHANNELS },
        { CONV_3X3, 2, 16, 16, 320, 320, 0, false, X | W, SLOW },
        { CONV_3X3, 2, 8, 8, 1280, 1280, 0, true, X, SLOW },
        { CONV_3X3, 2, 10, 6, 960, 320, 0, false, X | R, SLOW },
        { CONV_3X3_DOWN, 2, 16, 16, 320, 320, 0, false, X, SLOW },
        { CONV_3X3_UP, 2, 8, 8, 640, 640, 0, false, X, SLOW },
        { CONV_3X3, 1, 64, 64, 320, 320, 0, false, X, BENCH },
        { CONV_3X3, 1, 64, 64, 320, 320, 0, false, W, BENCH },
        { CONV_3X3, 1, 64, 64, 960, 320, 0, false, X, BENCH },
        { CONV_3X3, 1, 32, 32, 640, 640, 0, false, X, BENCH },
        { CONV_3X3, 1, 32, 32, 640, 640, 0, false, W, BENCH },
        { CONV_3X3, 1, 32, 32, 1920, 640, 0, false, X, BENCH },
        { CONV_3X3, 1, 16, 16, 1280, 1280, 0, false, X, BENCH },
        { CONV_3X3, 1, 16, 16, 1280, 1280, 0, false, W, BENCH },
        { CONV_3X3, 1, 16, 16, 2560, 1280, 0, false, X, BENCH },
        { CONV_3X3, 1, 8, 8, 1280, 1280, 0, false, X, BENCH },
        { CONV_3X3_DOWN, 1, 64, 64, 320, 320, 0, false, X, BENCH },
        { CONV_3X3_DOWN, 1, 32, 32, 640, 640, 0, false, X, BENCH },
        { CONV_3X3_UP, 1, 32, 32, 640, 640, 0, false, X, BENCH },
        { CONV_3X3_UP, 1, 16, 16, 1280, 1280, 0, false, X, BENCH },
        { CONV_1X1, 1, 64, 64, 960, 320, 0, false, X, BENCH },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t d = 0; d < sizeof(weight_dtypes) / sizeof(weight_dtypes[0]); d++)
            if (is_time_for(k, cases[i].when) && has_weights(k, weight_dtypes[d]))
                check_conv_case(k, &cases[i], weight_dtypes[d]);
}
