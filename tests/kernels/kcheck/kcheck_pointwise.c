/* embedding, timestep_embedding, add, concat, combine, blend, convert, noise; and the table of
 * tolerances. */
#include "tests/kernels/kcheck/kcheck.h"

#include <string.h>
#include <time.h>

struct tolerance tolerance_for(const char *op, enum dtype activations, enum dtype weights) {
    static const struct tolerance bf16 = { 1e-3,
        "one rounding to bf16 (2^-9) where sums of f32 fall on another side of the middle" };
    static const struct tolerance f16 = { 1.3e-4,
        "one rounding to f16 (2^-12) where sums of f32 fall on another side of the middle" };
    static const struct {
        const char *op;
        struct tolerance f32, f32_bf16_weights;
    } table[] = {
        { "linear", { 2e-6, "f32 sums of up to 5120 products" },
            { 2e-6, "weights are rounded alike on both sides: f32 sums" } },
        { "conv2d", { 6e-6, "f32 sums of up to 11520 products, or Winograd F(2x2)" },
            { 6e-5, "Winograd F(4x4) in f32: its transforms grow errors about tenfold" } },
        { "group_norm", { 2e-6, "f32 normalisation; a mean of 1000 deviations costs digits" },
            { 0, "" } },
        { "layer_norm", { 2e-6, "f32 sums of one row" }, { 0, "" } },
        { "attention",
            { 1e-5, "f32 scores: an error of 2^-24 of a score of 100 is an error of its weight" },
            { 0, "" } },
        { "embedding", { 0, "one addition" }, { 0, "" } },
        { "add", { 3e-7, "one addition, activations good to 2 units in the last place" },
            { 0, "" } },
        { "concat", { 0, "a copy" }, { 0, "" } },
        { "combine", { 0, "every operation rounded alike" }, { 0, "" } },
        { "blend", { 3e-7, "two products that may cancel" }, { 0, "" } },
        { "convert", { 0, "rounding is exact" }, { 0, "" } },
        { "noise", { 2e-6, "another sine and logarithm than the host's" }, { 0, "" } },
        { "low_rank", { 2e-6, "f32 sums of up to 11520 products, a small part of y" }, { 0, "" } },
        { "geglu", { 3e-7, "gelu good to 2 units in the last place" }, { 0, "" } },
        { "linear_backward", { 3e-6, "f32 sums of up to 10240 products" }, { 0, "" } },
        { "conv2d_backward", { 6e-6, "f32 sums of up to 11520 products, or Winograd F(2x2)" },
            { 6e-5, "Winograd F(4x4) in f32: its transforms grow errors about tenfold" } },
        { "group_norm_backward", { 4e-6, "f32 sums; a mean of 100 deviations costs digits" },
            { 0, "" } },
        { "layer_norm_backward", { 4e-6, "f32 sums; a mean of 100 deviations costs digits" },
            { 0, "" } },
        { "attention_backward",
            { 2e-5, "f32 scores: an error of 2^-24 of a score of 100 is an error of its weight" },
            { 0, "" } },
        { "embedding_backward", { 1e-6, "f32 sums of the tokens that are one id" }, { 0, "" } },
        { "activation_backward", { 4e-7, "slopes good to a few units in the last place of 1" },
            { 0, "" } },
        { "geglu_backward", { 4e-7, "the same, times a value" }, { 0, "" } },
        { "concat_backward", { 0, "a copy, or one addition" }, { 0, "" } },
        { "low_rank_backward", { 4e-6, "f32 sums over the tokens of all rows" }, { 0, "" } },
        { "dropout", { 1e-7, "one product, and a sum" }, { 0, "" } },
        { "mse", { 1e-6, "f32 differences, sums in f64" }, { 0, "" } },
        { "square_pieces", { 1.5e-11, "f64 sums of 2^16 squares in two orders: 2^17 of 2^-53" },
            { 0, "" } },
        { "adamw", { 1e-6, "f32 arithmetic on m, v and the parameter" }, { 0, "" } },
        { "lion", { 1e-6, "f32 arithmetic on m and the parameter" }, { 0, "" } },
        { "prodigy_sums", { 1e-6, "f32 arithmetic on m, v and s, sums in f64" }, { 0, "" } },
        { "prodigy", { 1e-6, "f32 arithmetic on the parameter" }, { 0, "" } },
        { "adafactor", { 2e-6, "f32 updates, sums in f64" }, { 0, "" } },
        { "timestep_embedding", { 2e-7, "f32 as diffusers computes it" }, { 0, "" } },
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (strcmp(table[i].op, op) != 0)
            continue;
        if (activations == DTYPE_BF16 && table[i].f32.normalised > 0)
            return bf16;
        if (activations == DTYPE_F16 && table[i].f32.normalised > 0)
            return f16;
        return weights == DTYPE_BF16 && table[i].f32_bf16_weights.normalised > 0
                   ? table[i].f32_bf16_weights
                   : table[i].f32;
    }
    return (struct tolerance){ 0, "an operation without a tolerance must be exact" };
}

/* Elements of a row. --bench uses only the last one; --quick omits it. */
static const int64_t lengths[] = { 1, 17, 8191, 8200, 1310720 };
static size_t first_length(const struct kcheck *k) {
    return k->bench ? 4 : 0;
}
static size_t end_of_lengths(const struct kcheck *k) {
    return k->quick ? 4 : 5;
}

static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double seconds_busy(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void run_embedding(
    struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    struct tensor ids = subject_row(s, 0, row);
    op_embedding(c, &(struct embedding_args){
                        &ids, &s->inputs[1].t, s->input_count > 2 ? &s->inputs[2].t : NULL, y });
}

static void check_embedding_case(struct kcheck *k, int64_t t, int64_t width, bool positions,
    enum dtype table, enum dtype dtype) {
    struct subject s;
    if (!subject_start(k, &s, "embedding", "3x%lldx%lld %s to %s%s", (long long)t, (long long)width,
            dtype_name(table), dtype_name(dtype), positions ? "" : " without positions"))
        return;
    const int64_t vocabulary = 97;
    struct tensor *ids = subject_input(k, &s, tensor_2d(NULL, DTYPE_F32, 3, t), 1, 0);
    ids->dtype = DTYPE_I32;
    for (int64_t i = 0; i < 3 * t; i++)
        ((int32_t *)ids->data)[i] = (int32_t)random_below(k, vocabulary);
    subject_input(k, &s, tensor_2d(NULL, table, vocabulary, width), 1, 0);
    if (positions)
        subject_input(k, &s, tensor_2d(NULL, table, t + 2, width), 1, 0);
    s.y = tensor_3d(NULL, dtype, 3, t, width);
    s.run = run_embedding;
    s.special = -1;
    s.tolerance = tolerance_for("embedding", dtype, table);
    s.bytes = 3.0 * (double)tensor_bytes(&s.y);
    subject_check(k, &s);
}

void check_embedding(struct kcheck *k) {
    check_embedding_case(k, 1, 1, true, DTYPE_F32, DTYPE_F32);
    check_embedding_case(k, 7, 19, true, DTYPE_F32, DTYPE_BF16);
    check_embedding_case(k, 77, 768, true, DTYPE_BF16, DTYPE_F32);
    check_embedding_case(k, 77, 768, true, DTYPE_BF16, DTYPE_BF16);
    check_embedding_case(k, 7, 19, false, DTYPE_F32, DTYPE_BF16);
    check_embedding_case(k, 63, 320, false, DTYPE_F32, DTYPE_F32);
    check_embedding_case(k, 63, 320, false, DTYPE_BF16, DTYPE_BF16);
}

static void run_timesteps(
    struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    struct tensor t = subject_row(s, 0, row);
    op_timestep_embedding(c, &(struct timestep_embedding_args){ &t, true, 0, y });
}

void check_timestep_embedding(struct kcheck *k) {
    struct subject s;
    if (!subject_start(k, &s, "timestep_embedding", "3x320"))
        return;
    subject_input(k, &s, tensor_1d(NULL, DTYPE_F32, 3), 500, 500);
    s.y = tensor_2d(NULL, DTYPE_F32, 3, 320);
    s.run = run_timesteps;
    s.special = -1;
    s.tolerance = tolerance_for("timestep_embedding", DTYPE_F32, DTYPE_F32);
    s.bytes = (double)tensor_bytes(&s.y);
    subject_check(k, &s);
}

static void run_add(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    struct tensor a = subject_row(s, 0, row), b = { 0 };
    if (s->input_count > 1)
        b = subject_row(s, 1, row);
    op_add(c, &(struct add_args){
                  &a, s->input_count > 1 ? &b : NULL, *(const enum activation *)s->params, y });
}

static void check_add_case(
    struct kcheck *k, int64_t n, const enum activation *activation, bool both, enum dtype dtype) {
    struct subject s;
    if (!subject_start(k, &s, "add", "3x%lld activation %d%s %s", (long long)n, (int)*activation,
            both ? "" : " alone", dtype_name(dtype)))
        return;
    s.y = tensor_2d(NULL, dtype, 3, n);
    subject_input(k, &s, s.y, 8, 0);
    if (both)
        subject_input(k, &s, s.y, 8, 0);
    s.in_place = 1;
    s.floor = 1; /* the activations' far tails have an absolute error of 1e-7 */
    s.run = run_add;
    s.params = activation;
    s.tolerance = tolerance_for("add", dtype, dtype);
    s.bytes = (double)tensor_bytes(&s.y) * (both ? 3 : 2);
    subject_check(k, &s);
}

void check_add(struct kcheck *k) {
    static const enum activation activations[] = { ACTIVATION_NONE, ACTIVATION_SILU,
        ACTIVATION_QUICK_GELU, ACTIVATION_GELU };
    for (size_t n = first_length(k); n < end_of_lengths(k); n++) {
        for (int a = 0; a < 4; a++) {
            for (int d = 0; d < 2; d++) {
                check_add_case(k, lengths[n], &activations[a], true, dtypes[d]);
                check_add_case(k, lengths[n], &activations[a], false, dtypes[d]);
            }
        }
    }
}

static void run_concat(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    struct tensor a = subject_row(s, 0, row), b = subject_row(s, 1, row);
    op_concat(c, &(struct concat_args){ &a, &b, y });
}

static void check_concat_case(
    struct kcheck *k, int64_t tokens, int64_t a, int64_t b, enum dtype dtype) {
    struct subject s;
    if (!subject_start(k, &s, "concat", "3x%lldx(%lld+%lld) %s", (long long)tokens, (long long)a,
            (long long)b, dtype_name(dtype)))
        return;
    subject_input(k, &s, tensor_3d(NULL, dtype, 3, tokens, a), 1, 0);
    subject_input(k, &s, tensor_3d(NULL, dtype, 3, tokens, b), 1, 0);
    s.y = tensor_3d(NULL, dtype, 3, tokens, a + b);
    s.run = run_concat;
    s.tolerance = tolerance_for("concat", DTYPE_F32, DTYPE_F32);
    s.bytes = 2.0 * (double)tensor_bytes(&s.y);
    subject_check(k, &s);
}

void check_concat(struct kcheck *k) {
    for (int d = 0; d < 2; d++) {
        check_concat_case(k, 1, 1, 1, dtypes[d]);
        check_concat_case(k, 13, 7, 17, dtypes[d]);
        check_concat_case(k, 1024, 640, 320, dtypes[d]);
    }
}

static void run_combine(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    int count = s->input_count - 2;
    struct tensor terms[COMBINE_MAX_TERMS], coefficients = subject_row(s, count, row);
    struct tensor divisors = subject_row(s, count + 1, row);
    struct combine_args args = { .count = count,
        .coefficients = coefficients.data,
        .divisors = count > 1 ? divisors.data : NULL,
        .y = y };
    for (int i = 0; i < count; i++) {
        terms[i] = subject_row(s, i, row);
        args.terms[i] = &terms[i];
    }
    op_combine(c, &args);
}

static void check_combine_case(struct kcheck *k, int count, int64_t n) {
    struct subject s;
    if (!subject_start(k, &s, "combine", "%d terms of 3x%lld", count, (long long)n))
        return;
    s.y = tensor_2d(NULL, DTYPE_F32, 3, n);
    for (int i = 0; i < count; i++)
        subject_input(k, &s, s.y, 1, 0);
    subject_input(k, &s, tensor_2d(NULL, DTYPE_F32, 3, count), 2, 0);
    subject_input(k, &s, tensor_2d(NULL, DTYPE_F32, 3, 1), 1, 3);
    s.inputs[count].on_host = s.inputs[count + 1].on_host = true;
    s.in_place = count;
    s.run = run_combine;
    s.tolerance = tolerance_for("combine", DTYPE_F32, DTYPE_F32);
    s.bytes = (double)tensor_bytes(&s.y) * (count + 1);
    subject_check(k, &s);
}

void check_combine(struct kcheck *k) {
    for (size_t n = first_length(k); n < end_of_lengths(k); n++)
        for (int count = 1; count <= COMBINE_MAX_TERMS; count += count == 1 ? 1 : 3)
            check_combine_case(k, count, lengths[n]);
}

static void run_blend(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    struct tensor a = subject_row(s, 0, row), b = subject_row(s, 1, row);
    struct tensor mask = subject_row(s, 2, row);
    op_blend(c, &(struct blend_args){ &a, &b, &mask, y });
}

static void check_blend_case(struct kcheck *k, int64_t pixels, int64_t channels) {
    struct subject s;
    if (!subject_start(k, &s, "blend", "3x%lldx%lld", (long long)pixels, (long long)channels))
        return;
    s.y = tensor_3d(NULL, DTYPE_F32, 3, pixels, channels);
    subject_input(k, &s, s.y, 1, 0);
    subject_input(k, &s, s.y, 1, 0);
    subject_input(k, &s, tensor_3d(NULL, DTYPE_F32, 3, pixels, 1), 1, 0);
    s.in_place = 2;
    s.run = run_blend;
    s.tolerance = tolerance_for("blend", DTYPE_F32, DTYPE_F32);
    s.bytes = 3.0 * (double)tensor_bytes(&s.y);
    subject_check(k, &s);
}

void check_blend(struct kcheck *k) {
    check_blend_case(k, 1, 1);
    check_blend_case(k, 13, 3);
    check_blend_case(k, 4096, 4);
}

static void run_convert(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    struct tensor x = subject_row(s, 0, row);
    op_convert(c, &(struct convert_args){ &x, *(const enum layout_change *)s->params, y });
}

static void check_convert_case(struct kcheck *k, const enum layout_change *layout, enum dtype from,
    enum dtype to, int64_t a, int64_t b, int64_t d) {
    struct subject s;
    if (!subject_start(k, &s, "convert", "3x%lldx%lldx%lld layout %d %s to %s", (long long)a,
            (long long)b, (long long)d, (int)*layout, dtype_name(from), dtype_name(to)))
        return;
    subject_input(k, &s, tensor_4d(NULL, from, 3, a, b, d), 4, 0);
    s.y = *layout == LAYOUT_SAME           ? tensor_4d(NULL, to, 3, a, b, d)
          : *layout == LAYOUT_NCHW_TO_NHWC ? tensor_4d(NULL, to, 3, b, d, a)
                                           : tensor_4d(NULL, to, 3, d, a, b);
    s.run = run_convert;
    s.params = layout;
    s.tolerance = tolerance_for("convert", DTYPE_F32, DTYPE_F32);
    s.bytes = 3.0 * (double)(a * b * d) * (double)(dtype_size(from) + dtype_size(to));
    subject_check(k, &s);
}

void check_convert(struct kcheck *k) {
    static const enum layout_change layouts[] = { LAYOUT_SAME, LAYOUT_NCHW_TO_NHWC,
        LAYOUT_NHWC_TO_NCHW };
    for (int l = 0; l < 3; l++) {
        for (int from = 0; from < 3; from++) {
            for (int to = 0; to < 3; to++) {
                check_convert_case(k, &layouts[l], dtypes[from], dtypes[to], 3, 5, 7);
                check_convert_case(k, &layouts[l], dtypes[from], dtypes[to], 3, 67, 131);
            }
        }
    }
}

static void run_noise(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    static const uint64_t seeds[3] = { 0, 42, UINT64_C(0x123456789abcdef0) };
    static const uint64_t offsets[3] = { 0, 7, UINT64_C(0xffffffff) };
    int64_t first = row < 0 ? 0 : row;
    (void)s;
    op_noise(c, &(struct noise_args){ seeds + first, offsets + first, y });
}

static void check_noise_case(struct kcheck *k, int64_t n) {
    struct subject s;
    if (!subject_start(k, &s, "noise", "3x%lld", (long long)n))
        return;
    s.y = tensor_2d(NULL, DTYPE_F32, 3, n);
    s.run = run_noise;
    s.special = -1;
    s.tolerance = tolerance_for("noise", DTYPE_F32, DTYPE_F32);
    s.bytes = (double)tensor_bytes(&s.y);
    subject_check(k, &s);
}

void check_noise(struct kcheck *k) {
    for (size_t n = first_length(k); n < end_of_lengths(k); n++)
        check_noise_case(k, lengths[n]);
}
