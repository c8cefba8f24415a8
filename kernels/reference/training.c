/* The operations that training needs besides gradients: dropout, the loss, the norm of a gradient,
 * AdamW. */
#include "kernels/random/philox.h"
#include "kernels/reference/reference.h"

#include <math.h>

bool reference_dropout(const struct dropout_args *args, struct error *err) {
    const int64_t n = tensor_elements(args->x);
    const uint64_t seed = *args->seed, step = *args->step;
    struct floats x = { 0 };
    if (!floats_init(&x, args->x, err))
        return false;
    for (int64_t i = 0; i < n; i += 4) {
        const uint32_t counter[4] = { (uint32_t)(i / 4), (uint32_t)step, (uint32_t)(step >> 32),
            args->layer };
        uint32_t words[4];
        philox_4x32_10(counter, seed, words);
        for (int64_t j = i; j < i + 4 && j < n; j++) {
            const bool kept = (double)words[j - i] * 0x1p-32 >= (double)args->p;
            reference_store(args->y, j, kept ? (double)x.data[j] / (1.0 - (double)args->p) : 0.0,
                args->accumulate);
        }
    }
    floats_finish(&x);
    return true;
}

bool reference_mse(const struct mse_args *args, struct error *err) {
    const float *prediction = args->prediction->data, *target = args->target->data;
    const int64_t rows = args->prediction->shape[0];
    const int64_t n = tensor_elements(args->prediction) / rows;
    (void)err;
    for (int64_t row = 0; row < rows; row++) {
        const double factor = (double)args->weights[row] * 2.0 / (double)n;
        double sum = 0;
        for (int64_t i = row * n; i < (row + 1) * n; i++) {
            const double off = (double)prediction[i] - (double)target[i];
            sum += off * off;
            if (args->d_prediction)
                reference_store(args->d_prediction, i, factor * off, false);
        }
        reference_store(args->loss, row, sum / (double)n, false);
    }
    return true;
}

bool reference_sum_squares(const struct sum_squares_args *args, struct error *err) {
    const float *x = args->x->data;
    double sum = 0;
    int64_t odd = 0;
    (void)err;
    for (int64_t i = 0; i < tensor_elements(args->x); i++) {
        sum += (double)x[i] * (double)x[i];
        odd += !isfinite(x[i]);
    }
    reference_store(args->sums, 0, sum, false);
    reference_store(args->sums, 1, (double)odd, false);
    return true;
}

bool reference_adamw(const struct adamw_args *args, struct error *err) {
    float *p = args->parameter->data, *m = args->m->data, *v = args->v->data;
    const float *gradient = args->gradient->data;
    const double step_size = args->lr / (1.0 - pow(args->beta1, (double)args->step));
    const double root = sqrt(1.0 - pow(args->beta2, (double)args->step));
    const double limit = args->gradient_limit > 0 ? args->gradient_limit : INFINITY;
    (void)err;
    for (int64_t i = 0; i < tensor_elements(args->parameter); i++) {
        const double whole = (double)gradient[i] * args->gradient_scale;
        const double g = whole > limit ? limit : whole < -limit ? -limit : whole; /* NaN stays */
        m[i] = (float)((double)m[i] + (g - (double)m[i]) * (1.0 - args->beta1));
        v[i] = (float)((double)v[i] * args->beta2 + g * g * (1.0 - args->beta2));
        const double kept = (double)p[i] * (1.0 - args->lr * args->weight_decay);
        p[i] = (float)(kept - step_size * (double)m[i] / (sqrt((double)v[i]) / root + args->eps));
    }
    return true;
}
