/* linear and conv2d. */
#include "tests/kernels/kcheck/kcheck.h"

#include "kernels/cpu/level.h"

static const enum dtype weight_dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };

/* ---- linear ---- */

struct linear_case {
    int64_t rows, m, n, k; /* x [rows][m][k] */
    enum activation activation;
    bool geglu, bias, residual;
    enum when when;
    bool ungated;
};

static void run_linear(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    const struct linear_case *p = s->params;
    struct tensor x = subject_row(s, 0, row), residual = { 0 };
    if (p->residual)
        residual = subject_row(s, 1, row);
    op_linear(c, &(struct linear_args){
                     &x, s->weight, p->activation, p->residual ? &residual : NULL, y, p->ungated });
}

static void check_linear_case(struct kcheck *k, const struct linear_case *p, enum dtype weights) {
    static const char *const activations[] = { "", " silu", " quick_gelu", " gelu" };
    struct subject s;
    if (!subject_start(k, &s, "linear", "%lldx%lldx%lldx%lld%s%s%s%s %s", (long long)p->rows,
            (long long)p->m, (long long)p->n, (long long)p->k, activations[p->activation],
            p->ungated ? " ungated"
            : p->geglu ? " geglu"
                       : "",
            p->bias ? " bias" : "", p->residual ? " residual" : "", dtype_name(weights)))
        return;
    enum dtype dtype = k->table->activation_dtype(weights);
    int64_t n_out = p->geglu && !p->ungated ? p->n / 2 : p->n;
    subject_input(k, &s, tensor_3d(NULL, dtype, p->rows, p->m, p->k), 1, 0);
    s.y = tensor_3d(NULL, dtype, p->rows, p->m, n_out);
    if (p->residual) {
        subject_input(k, &s, s.y, 1, 0);
        s.in_place = s.input_count;
    }
    float scale = 1.0f / (float)(p->k < 16 ? 4 : p->k < 400 ? 12 : 30);
    struct tensor *w = subject_input(k, &s, tensor_2d(NULL, DTYPE_F32, p->n, p->k), scale, 0);
    struct tensor *bias = p->bias ? subject_input(k, &s, tensor_1d(NULL, DTYPE_F32, p->n), 1, 0)
                                  : NULL;
    subject_pack(k, &s, w, bias, false, CONV_1X1, p->geglu, weights);
    s.run = run_linear;
    s.params = p;
    s.tolerance = tolerance_for("linear", dtype, weights);
    if (p->geglu && !p->ungated && dtype == DTYPE_BF16 && k->table->device == DEVICE_CPU)
        s.tolerance = (struct tolerance){ 4e-3, "both halves rounded to bf16 (2^-9), then y" };
    s.flops = 2.0 * (double)(p->rows * p->m) * (double)(p->n * p->k);
    subject_check(k, &s);
}

void check_linear(struct kcheck *k) {
    static const struct linear_case cases[] = {
        { 3, 1, 1, 1, ACTIVATION_NONE, false, false, false, QUICK },
        { 3, 7, 17, 13, ACTIVATION_NONE, false, true, false, QUICK },
        { 3, 6, 16, 32, ACTIVATION_SILU, false, true, true, QUICK },
        { 3, 5, 31, 33, ACTIVATION_QUICK_GELU, false, true, false, QUICK },
        { 3, 13, 33, 47, ACTIVATION_GELU, false, true, true, QUICK },
        { 3, 7, 62, 31, ACTIVATION_NONE, true, true, false, QUICK },
        { 3, 25, 64, 64, ACTIVATION_NONE, true, true, true, QUICK },
        { 3, 49, 97, 101, ACTIVATION_NONE, false, true, true, QUICK },
        { 3, 6, 24, 40, ACTIVATION_SILU, false, true, true, QUICK },
        { 3, 9, 72, 72, ACTIVATION_NONE, false, false, true, QUICK },
        { 3, 5, 176, 136, ACTIVATION_NONE, true, true, true, QUICK },
        { 3, 1, 40, 56, ACTIVATION_SILU, false, true, false, QUICK },
        { 3, 1, 2, 1, ACTIVATION_NONE, true, false, false, QUICK, true },
        { 3, 7, 62, 31, ACTIVATION_NONE, true, true, false, QUICK, true },
        { 3, 25, 64, 64, ACTIVATION_NONE, true, true, false, QUICK, true },
        { 3, 5, 176, 136, ACTIVATION_NONE, true, true, false, QUICK, true },
        { 3, 1, 80, 56, ACTIVATION_NONE, true, true, false, QUICK, true },
        { 2, 13, 320, 320, ACTIVATION_NONE, false, true, true, CHANNELS },
        { 2, 7, 640, 320, ACTIVATION_NONE, true, true, false, CHANNELS },
        { 2, 7, 640, 320, ACTIVATION_NONE, true, true, false, CHANNELS, true },
        { 2, 5, 320, 1280, ACTIVATION_NONE, false, true, true, CHANNELS },
        { 2, 7, 1280, 1280, ACTIVATION_NONE, false, true, true, CHANNELS },
        { 2, 1, 1280, 320, ACTIVATION_SILU, false, true, false, CHANNELS },
        { 2, 7, 768, 768, ACTIVATION_QUICK_GELU, false, true, false, CHANNELS },
        { 2, 77, 768, 768, ACTIVATION_QUICK_GELU, false, true, false, SLOW },
        { 3, 1, 1280, 320, ACTIVATION_SILU, false, true, false, SLOW },
        { 3, 64, 320, 320, ACTIVATION_NONE, false, true, true, SLOW },
        { 3, 64, 2560, 320, ACTIVATION_NONE, true, true, false, SLOW },
        { 3, 48, 640, 2560, ACTIVATION_NONE, false, true, true, SLOW },
        { 3, 16, 1280, 5120, ACTIVATION_NONE, false, true, true, SLOW },
        { 2, 4096, 2560, 320, ACTIVATION_NONE, true, true, false, BENCH },
        { 2, 4096, 320, 1280, ACTIVATION_NONE, false, true, true, BENCH },
        { 2, 4096, 960, 320, ACTIVATION_NONE, false, false, false, BENCH },
        { 2, 1024, 5120, 640, ACTIVATION_NONE, true, true, false, BENCH },
        { 2, 1024, 640, 2560, ACTIVATION_NONE, false, true, true, BENCH },
        { 2, 256, 10240, 1280, ACTIVATION_NONE, true, true, false, BENCH },
        { 2, 256, 1280, 5120, ACTIVATION_NONE, false, true, true, BENCH },
        { 2, 64, 1280, 1280, ACTIVATION_NONE, false, true, true, BENCH },
        { 2, 77, 768, 768, ACTIVATION_NONE, false, true, true, BENCH },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (!is_time_for(k, cases[i].when))
            continue;
        for (size_t d = 0; d < sizeof(weight_dtypes) / sizeof(weight_dtypes[0]); d++)
            if (has_weights(k, weight_dtypes[d]))
                check_linear_case(k, &cases[i], weight_dtypes[d]);
    }
}

/* ---- conv2d ---- */

struct conv_case {
    enum conv_kind kind;
    int64_t rows, h, w, c_in, c_out;
    int64_t shorter; /* pixels missing from an upsampling's output, 0 or 1 */
    bool bias, row_add, residual;
    enum when when;
    bool wide; /* y is f32, if the table supports that */
};

/* row_add has its own tensor; with a residual it is part of a wider one. */
static int64_t row_add_offset(const struct conv_case *p) {
    return p->residual ? p->c_out : 0;
}

static void run_conv2d(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    const struct conv_case *p = s->params;
    struct tensor x = subject_row(s, 0, row), row_add = { 0 }, residual = { 0 };
    if (p->row_add)
        row_add = subject_row(s, 1, row);
    if (p->residual)
        residual = subject_row(s, p->row_add ? 2 : 1, row);
    op_conv2d(c, &(struct conv2d_args){ &x, s->weight, p->row_add ? &row_add : NULL,
                     p->residual ? &residual : NULL, y, row_add_offset(p) });
}

static void check_conv_case(struct kcheck *k, const struct conv_case *p, enum dtype weights) {
    static const char *const kinds[] = { "1x1", "3x3", "3x3 down", "3x3 down right", "3x3 up" };
    struct subject s;
    if (!subject_start(k, &s, "conv2d", "%s %lldx%lldx%lldx%lld to %lld%s%s%s%s%s %s",
            kinds[p->kind], (long long)p->rows, (long long)p->h, (long long)p->w,
            (long long)p->c_in, (long long)p->c_out, p->shorter ? " shorter" : "",
            p->bias ? " bias" : "", p->row_add ? " row_add" : "", p->residual ? " residual" : "",
            p->wide ? " wide" : "", dtype_name(weights)))
        return;
    enum dtype dtype = k->table->activation_dtype(weights);
    const enum dtype y_dtype = p->wide && k->table->widens ? DTYPE_F32 : dtype;
    int64_t h = conv_out_size(p->kind, p->h) - p->shorter;
    int64_t w = conv_out_size(p->kind, p->w) - p->shorter, taps = p->kind == CONV_1X1 ? 1 : 3;
    subject_input(k, &s, tensor_4d(NULL, dtype, p->rows, p->h, p->w, p->c_in), 1, 0);
    s.y = tensor_4d(NULL, y_dtype, p->rows, h, w, p->c_out);
    if (p->row_add)
        subject_input(
            k, &s, tensor_2d(NULL, DTYPE_F32, p->rows, p->c_out + 2 * row_add_offset(p)), 1, 0);
    if (p->residual) {
        subject_input(k, &s, s.y, 1, 0);
        s.in_place = s.input_count;
    }
    float scale = 1.0f / (float)(p->c_in < 16 ? 6 : p->c_in < 400 ? 30 : 80);
    struct tensor *weight = subject_input(
        k, &s, tensor_4d(NULL, DTYPE_F32, p->c_out, p->c_in, taps, taps), scale, 0);
    struct tensor *bias = p->bias ? subject_input(k, &s, tensor_1d(NULL, DTYPE_F32, p->c_out), 1, 0)
                                  : NULL;
    subject_pack(k, &s, weight, bias, true, p->kind, false, weights);
    s.run = run_conv2d;
    s.params = p;
    s.tolerance = tolerance_for("conv2d", y_dtype, weights);
    if (p->kind == CONV_3X3_UP && dtype == weights && dtype != DTYPE_F32 &&
        (k->table->device != DEVICE_CPU || cpu_level()->conv3x3_up == LAYER_PHASES))
        s.tolerance = (struct tolerance){ dtype == DTYPE_F16 ? 4e-4 : 3e-3,
            "sums of up to four weights, rounded once and not each" };
    s.classes = CLASSES_SPREAD;
    s.flops = 2.0 * (double)(p->rows * h * w) * (double)(p->c_out * p->c_in * taps * taps);
    subject_check(k, &s);
}

void check_conv2d(struct kcheck *k) {
    static const struct conv_case cases[] = {
        { CONV_1X1, 3, 1, 1, 1, 1, 0, false, false, false, QUICK },
        { CONV_1X1, 3, 5, 7, 17, 19, 0, true, false, true, QUICK },
        { CONV_3X3, 3, 1, 1, 1, 1, 0, true, false, false, QUICK },
        { CONV_3X3, 3, 5, 7, 4, 33, 0, true, true, false, QUICK },
        { CONV_3X3, 3, 4, 4, 16, 16, 0, true, true, true, QUICK },
        { CONV_3X3, 3, 7, 3, 32, 31, 0, true, false, true, QUICK },
        { CONV_3X3, 3, 9, 11, 48, 3, 0, false, false, false, QUICK },
        { CONV_3X3_DOWN, 3, 7, 8, 16, 17, 0, true, false, false, QUICK },
        { CONV_3X3_DOWN, 3, 1, 5, 3, 16, 0, true, false, false, QUICK },
        { CONV_3X3_DOWN_RIGHT, 3, 8, 6, 16, 15, 0, true, false, false, QUICK },
        { CONV_3X3_DOWN_RIGHT, 3, 7, 9, 5, 16, 0, true, false, false, QUICK },
        { CONV_3X3_UP, 3, 3, 5, 16, 16, 0, true, false, false, QUICK },
        { CONV_3X3_UP, 3, 4, 4, 17, 33, 1, true, false, false, QUICK },
        { CONV_3X3_UP, 3, 1, 2, 32, 16, 1, true, false, false, QUICK },
        { CONV_1X1, 3, 5, 3, 24, 40, 0, true, true, true, QUICK },
        { CONV_3X3, 3, 5, 7, 24, 40, 0, true, true, true, QUICK },
        { CONV_3X3, 3, 5, 7, 40, 4, 0, true, false, false, QUICK },
        { CONV_3X3, 3, 5, 7, 40, 4, 0, true, true, false, QUICK, true },
        { CONV_1X1, 3, 5, 3, 24, 40, 0, true, false, false, QUICK, true },
        { CONV_3X3, 3, 3, 5, 5, 3, 0, false, false, false, QUICK, true },
        { CONV_3X3_DOWN, 3, 7, 8, 40, 24, 0, true, true, false, QUICK },
        { CONV_3X3_DOWN_RIGHT, 3, 7, 6, 24, 24, 0, true, false, false, QUICK },
        { CONV_3X3_UP, 3, 3, 5, 40, 24, 0, true, true, false, QUICK },
        { CONV_3X3_UP, 3, 4, 3, 24, 40, 1, true, false, true, QUICK },
        { CONV_3X3, 2, 4, 5, 320, 320, 0, true, true, true, CHANNELS },
        { CONV_3X3, 2, 2, 3, 640, 640, 0, true, true, false, CHANNELS },
        { CONV_3X3, 2, 5, 4, 4, 320, 0, true, false, false, CHANNELS },
        { CONV_3X3, 2, 5, 4, 320, 4, 0, true, false, false, CHANNELS },
        { CONV_3X3, 2, 5, 4, 320, 4, 0, true, false, false, CHANNELS, true },
        { CONV_3X3_DOWN, 2, 6, 6, 320, 320, 0, true, false, false, CHANNELS },
        { CONV_3X3_UP, 2, 3, 2, 320, 320, 0, true, false, false, CHANNELS },
        { CONV_1X1, 2, 4, 3, 960, 320, 0, true, false, false, CHANNELS },
        { CONV_3X3, 2, 16, 16, 320, 320, 0, true, true, true, SLOW },
        { CONV_3X3, 2, 8, 8, 1280, 1280, 0, true, true, false, SLOW },
        { CONV_3X3, 2, 10, 6, 960, 320, 0, true, true, false, SLOW },
        { CONV_3X3, 2, 16, 24, 4, 320, 0, true, false, false, SLOW },
        { CONV_3X3, 2, 24, 16, 320, 4, 0, true, false, false, SLOW },
        { CONV_3X3, 1, 32, 32, 128, 3, 0, true, false, false, SLOW },
        { CONV_3X3_DOWN, 2, 16, 16, 320, 320, 0, true, false, false, SLOW },
        { CONV_3X3_DOWN_RIGHT, 1, 32, 32, 128, 128, 0, true, false, false, SLOW },
        { CONV_3X3_UP, 2, 8, 8, 640, 640, 0, true, false, false, SLOW },
        { CONV_1X1, 2, 16, 16, 960, 640, 0, true, false, false, SLOW },
        { CONV_3X3, 2, 64, 64, 320, 320, 0, true, true, true, BENCH },
        { CONV_3X3, 2, 64, 64, 640, 320, 0, true, true, false, BENCH },
        { CONV_3X3, 2, 64, 64, 960, 320, 0, true, true, false, BENCH },
        { CONV_3X3, 2, 32, 32, 320, 640, 0, true, true, false, BENCH },
        { CONV_3X3, 2, 32, 32, 640, 640, 0, true, true, true, BENCH },
        { CONV_3X3, 2, 32, 32, 960, 640, 0, true, true, false, BENCH },
        { CONV_3X3, 2, 32, 32, 1280, 640, 0, true, true, false, BENCH },
        { CONV_3X3, 2, 32, 32, 1920, 640, 0, true, true, false, BENCH },
        { CONV_3X3, 2, 16, 16, 640, 1280, 0, true, true, false, BENCH },
        { CONV_3X3, 2, 16, 16, 1280, 1280, 0, true, true, true, BENCH },
        { CONV_3X3, 2, 16, 16, 1920, 1280, 0, true, true, false, BENCH },
        { CONV_3X3, 2, 16, 16, 2560, 1280, 0, true, true, false, BENCH },
        { CONV_3X3, 2, 8, 8, 1280, 1280, 0, true, true, true, BENCH },
        { CONV_3X3, 2, 8, 8, 2560, 1280, 0, true, true, false, BENCH },
        { CONV_3X3_DOWN, 2, 64, 64, 320, 320, 0, true, false, false, BENCH },
        { CONV_3X3_DOWN, 2, 32, 32, 640, 640, 0, true, false, false, BENCH },
        { CONV_3X3_DOWN, 2, 16, 16, 1280, 1280, 0, true, false, false, BENCH },
        { CONV_3X3_UP, 2, 32, 32, 640, 640, 0, true, false, false, BENCH },
        { CONV_3X3_UP, 2, 16, 16, 1280, 1280, 0, true, false, false, BENCH },
        { CONV_3X3_UP, 2, 8, 8, 1280, 1280, 0, true, false, false, BENCH },
        { CONV_3X3, 1, 512, 512, 128, 128, 0, true, false, true, BENCH },
        { CONV_1X1, 2, 64, 64, 960, 320, 0, true, false, false, BENCH },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (!is_time_for(k, cases[i].when))
            continue;
        for (size_t d = 0; d < sizeof(weight_dtypes) / sizeof(weight_dtypes[0]); d++)
            if (has_weights(k, weight_dtypes[d]))
                check_conv_case(k, &cases[i], weight_dtypes[d]);
    }
}
