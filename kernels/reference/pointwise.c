/* Elementwise operations: add, concat, combine, blend, convert, noise. */
#include "kernels/reference/reference.h"

#include "kernels/random/philox.h"

#include <string.h>

bool reference_add(const struct add_args *args, struct error *err) {
    int64_t n = tensor_elements(args->a);
    struct floats a = { 0 }, b = { 0 };
    struct float_output y = { 0 };
    bool ok = floats_init(&a, args->a, err) && floats_init(&b, args->b, err) &&
              float_output_init(&y, args->y, err);
    if (ok) {
        for (int64_t i = 0; i < n; i++) {
            double sum = (double)a.data[i] + (b.data ? (double)b.data[i] : 0.0);
            y.data[i] = (float)reference_activation(args->activation, sum);
        }
        ok = float_output_store(&y);
    }
    floats_finish(&a);
    floats_finish(&b);
    float_output_finish(&y);
    return ok;
}

bool reference_concat(const struct concat_args *args, struct error *err) {
    (void)err;
    int last = args->a->rank - 1;
    size_t size = dtype_size(args->y->dtype);
    size_t a_bytes = (size_t)args->a->shape[last] * size;
    size_t b_bytes = (size_t)args->b->shape[last] * size;
    int64_t count = tensor_elements(args->a) / args->a->shape[last];
    const char *a = args->a->data, *b = args->b->data;
    char *y = args->y->data;
    /* Uses threads, because the CPU's table has this entry too: a copy rounds nothing, so the CPU
     * needs no entry of its own. */
#pragma omp parallel for if (count * (int64_t)(a_bytes + b_bytes) >= 65536)
    for (int64_t i = 0; i < count; i++) {
        char *to = y + (size_t)i * (a_bytes + b_bytes);
        memcpy(to, a + (size_t)i * a_bytes, a_bytes);
        memcpy(to + a_bytes, b + (size_t)i * b_bytes, b_bytes);
    }
    return true;
}

#define COMBINE_PIECE 2048 /* floats of a row at a time, from all terms */

/* Computes elements from..to of y, which belong to one row. `coefficients`: the row's. */
static void combine_piece(const struct combine_args *args, const float *coefficients, float divisor,
    int64_t from, int64_t to) {
    float sums[COMBINE_PIECE], *y = (float *)args->y->data + from;
    for (int term = 0; term < args->count; term++) {
        const float *x = (const float *)args->terms[term]->data + from, w = coefficients[term];
        for (int64_t i = 0; i < to - from; i++)
            sums[i] = term ? sums[i] + w * x[i] : w * x[i];
    }
    for (int64_t i = 0; i < to - from; i++)
        y[i] = sums[i] / divisor;
}

bool reference_combine(const struct combine_args *args, struct error *err) {
    (void)err;
    const int64_t rows = args->y->shape[0], width = tensor_elements(args->y) / rows;
    const int64_t pieces = (width + COMBINE_PIECE - 1) / COMBINE_PIECE;
    /* Uses threads, because the CPU's table has this entry too: its bits are the same everywhere,
     * so the CPU needs no entry of its own. */
#pragma omp parallel for if (rows * width >= 65536)
    for (int64_t item = 0; item < rows * pieces; item++) {
        const int64_t row = item / pieces, start = item % pieces * COMBINE_PIECE;
        const int64_t end = start + COMBINE_PIECE < width ? start + COMBINE_PIECE : width;
        combine_piece(args, args->coefficients + row * args->count,
            args->divisors ? args->divisors[row] : 1, row * width + start, row * width + end);
    }
    return true;
}

bool reference_blend(const struct blend_args *args, struct error *err) {
    (void)err;
    const int64_t channels = args->y->shape[args->y->rank - 1];
    const int64_t elements = tensor_elements(args->y);
    const float *a = args->a->data, *b = args->b->data, *mask = args->mask->data;
    float *y = args->y->data;
    for (int64_t i = 0; i < elements; i++) {
        const float m = mask[i / channels];
        y[i] = (1 - m) * a[i] + m * b[i];
    }
    return true;
}

bool reference_convert(const struct convert_args *args, struct error *err) {
    if (args->layout == LAYOUT_SAME) {
        convert_elements(
            args->y->data, args->y->dtype, args->x->data, args->x->dtype, tensor_elements(args->x));
        return true;
    }
    const int64_t *s = args->x->shape;
    bool to_nhwc = args->layout == LAYOUT_NCHW_TO_NHWC;
    int64_t channels = to_nhwc ? s[1] : s[3], pixels = to_nhwc ? s[2] * s[3] : s[1] * s[2];
    struct floats x = { 0 };
    struct float_output y = { 0 };
    bool ok = floats_init(&x, args->x, err) && float_output_init(&y, args->y, err);
    if (ok) {
        for (int64_t row = 0; row < s[0]; row++) {
            for (int64_t i = 0; i < pixels; i++) {
                for (int64_t c = 0; c < channels; c++) {
                    int64_t nhwc = (row * pixels + i) * channels + c;
                    int64_t nchw = (row * channels + c) * pixels + i;
                    if (to_nhwc)
                        y.data[nhwc] = x.data[nchw];
                    else
                        y.data[nchw] = x.data[nhwc];
                }
            }
        }
        ok = float_output_store(&y);
    }
    floats_finish(&x);
    float_output_finish(&y);
    return ok;
}

bool reference_noise(const struct noise_args *args, struct error *err) {
    (void)err;
    int64_t rows = args->y->shape[0], width = tensor_elements(args->y) / rows;
    float *y = args->y->data;
    for (int64_t row = 0; row < rows; row++)
        philox_randn(args->seeds[row], args->offsets[row], y + row * width, width);
    return true;
}
