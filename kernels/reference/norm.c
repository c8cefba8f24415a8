#include "kernels/reference/reference.h"

#include <math.h>

struct reference_moments reference_moments(
    const float *x, int64_t count, int64_t step, int64_t width, float eps) {
    double n = (double)(count * width), sum = 0, squares = 0;
    /* The variance is computed in a second pass, so that a large mean does not cost it
     * precision. */
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < width; j++)
            sum += (double)x[i * step + j];
    double mean = sum / n;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < width; j++) {
            double d = (double)x[i * step + j] - mean;
            squares += d * d;
        }
    }
    return (struct reference_moments){ mean, 1.0 / sqrt(squares / n + (double)eps) };
}

bool reference_group_norm(const struct group_norm_args *args, struct error *err) {
    const int64_t *s = args->x->shape;
    int64_t pixels = s[1] * s[2], channels = s[3], width = channels / args->groups;
    const float *gamma = args->gamma->data, *beta = args->beta->data;
    enum activation activation = args->silu ? ACTIVATION_SILU : ACTIVATION_NONE;
    struct floats x = { 0 };
    struct float_output y = { 0 };
    bool ok = floats_init(&x, args->x, err) && float_output_init(&y, args->y, err);
    if (ok) {
#pragma omp parallel for
        for (int64_t item = 0; item < s[0] * args->groups; item++) {
            int64_t row = item / args->groups, first = item % args->groups * width;
            int64_t start = row * pixels * channels + first;
            struct reference_moments m = reference_moments(
                x.data + start, pixels, channels, width, args->eps);
            for (int64_t i = 0; i < pixels; i++) {
                for (int64_t j = 0; j < width; j++) {
                    int64_t at = start + i * channels + j;
                    double normal = ((double)x.data[at] - m.mean) * m.scale;
                    double value = normal * (double)gamma[first + j] + (double)beta[first + j];
                    y.data[at] = (float)reference_activation(activation, value);
                }
            }
        }
        ok = float_output_store(&y);
    }
    floats_finish(&x);
    float_output_finish(&y);
    return ok;
}

bool reference_layer_norm(const struct layer_norm_args *args, struct error *err) {
    int64_t c = args->x->shape[args->x->rank - 1], m = tensor_elements(args->x) / c;
    const float *gamma = args->gamma->data, *beta = args->beta->data;
    struct floats x = { 0 };
    struct float_output y = { 0 };
    bool ok = floats_init(&x, args->x, err) && float_output_init(&y, args->y, err);
    if (ok) {
#pragma omp parallel for
        for (int64_t i = 0; i < m; i++) {
            struct reference_moments mo = reference_moments(x.data + i * c, 1, c, c, args->eps);
            for (int64_t j = 0; j < c; j++) {
                double normal = ((double)x.data[i * c + j] - mo.mean) * mo.scale;
                y.data[i * c + j] = (float)(normal * (double)gamma[j] + (double)beta[j]);
            }
        }
        ok = float_output_store(&y);
    }
    floats_finish(&x);
    float_output_finish(&y);
    return ok;
}
