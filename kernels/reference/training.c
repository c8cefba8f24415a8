/* The operations that training needs besides gradients: dropout, the loss, the norm of a gradient,
 * the optimizers. */
#include "kernels/random/philox.h"
#include "kernels/reference/reference.h"

#include <math.h>
#include <stdlib.h>

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

bool reference_square_pieces(const struct square_pieces_args *args, struct error *err) {
    const float *x = args->x->data;
    double(*pieces)[2] = args->pieces->data;
    (void)err;
    for (int64_t i = 0; i < tensor_elements(args->x); i++) {
        double *piece = pieces[i / SQUARE_PIECE];
        if (i % SQUARE_PIECE == 0)
            piece[0] = piece[1] = 0;
        piece[0] += (double)x[i] * (double)x[i];
        piece[1] += !isfinite(x[i]);
    }
    return true;
}

/* Returns the unscaled gradient, clamped if `limit` is not 0. */
static double scaled(float gradient, double scale, double limit) {
    const double g = (double)gradient * scale;
    return limit > 0 && g > limit ? limit : limit > 0 && g < -limit ? -limit : g; /* NaN stays */
}

bool reference_adamw(const struct adamw_args *args, struct error *err) {
    float *p = args->parameter->data, *m = args->m->data, *v = args->v->data;
    const float *gradient = args->gradient->data;
    const double step_size = args->lr / (1.0 - pow(args->beta1, (double)args->step));
    const double root = sqrt(1.0 - pow(args->beta2, (double)args->step));
    (void)err;
    for (int64_t i = 0; i < tensor_elements(args->parameter); i++) {
        const double g = scaled(gradient[i], args->gradient_scale, args->gradient_limit);
        m[i] = (float)((double)m[i] + (g - (double)m[i]) * (1.0 - args->beta1));
        v[i] = (float)((double)v[i] * args->beta2 + g * g * (1.0 - args->beta2));
        const double kept = (double)p[i] * (1.0 - args->lr * args->weight_decay);
        p[i] = (float)(kept - step_size * (double)m[i] / (sqrt((double)v[i]) / root + args->eps));
    }
    return true;
}

bool reference_lion(const struct lion_args *args, struct error *err) {
    float *p = args->parameter->data, *m = args->m->data;
    const float *gradient = args->gradient->data;
    (void)err;
    for (int64_t i = 0; i < tensor_elements(args->parameter); i++) {
        const double g = scaled(gradient[i], args->gradient_scale, args->gradient_limit);
        const double way = (double)m[i] * args->beta1 + g * (1.0 - args->beta1);
        const double kept = (double)p[i] * (1.0 - args->lr * args->weight_decay);
        p[i] = (float)(kept - args->lr * ((way > 0) - (way < 0)));
        m[i] = (float)((double)m[i] * args->beta2 + g * (1.0 - args->beta2));
    }
    return true;
}

bool reference_prodigy_sums(const struct prodigy_sums_args *args, struct error *err) {
    const float *p = args->parameter->data, *start = args->start->data;
    const float *gradient = args->gradient->data;
    float *m = args->m->data, *v = args->v->data, *s = args->s->data;
    const double to_m = args->d * (1.0 - args->beta1);
    const double to_v = args->d * args->d * (1.0 - args->beta2);
    double way = 0, size = 0;
    (void)err;
    for (int64_t i = 0; i < tensor_elements(args->parameter); i++) {
        const double g = scaled(gradient[i], args->gradient_scale, args->gradient_limit) +
                         args->decay * (double)p[i];
        way += g * ((double)start[i] - (double)p[i]);
        m[i] = (float)((double)m[i] * args->beta1 + g * to_m);
        v[i] = (float)((double)v[i] * args->beta2 + g * g * to_v);
        s[i] = (float)((double)s[i] * args->beta3 + g * args->s_rate);
        size += fabs((double)s[i]);
    }
    reference_store(args->sums, 0, way, true);
    reference_store(args->sums, 1, size, true);
    return true;
}

bool reference_prodigy(const struct prodigy_args *args, struct error *err) {
    float *p = args->parameter->data;
    const float *m = args->m->data, *v = args->v->data;
    (void)err;
    for (int64_t i = 0; i < tensor_elements(args->parameter); i++) {
        const double kept = (double)p[i] * (1.0 - args->rate * args->weight_decay);
        p[i] = (float)(kept - args->rate * (double)m[i] / (sqrt((double)v[i]) + args->eps));
    }
    return true;
}

/* Finds the states of element i of the array. Returns false if it is padding. */
static bool find_states(const struct factored_shape *s, int64_t i, int64_t *row, int64_t *col) {
    const int64_t panel = s->k * s->side * s->side * s->panel;
    const int64_t o = i / panel * s->panel + i % s->panel, inner = i % panel / s->panel;
    const int64_t tap = inner / s->k, c = inner % s->k, matrix = (o * s->k + c) * s->side;
    *row = s->is_matrix ? o : matrix + tap / s->side;
    *col = s->is_matrix ? c : matrix + tap % s->side;
    return o < s->n;
}

static void decay_states(double beta2, struct tensor *states, const double *sums, int64_t each) {
    float *out = states->data;
    for (int64_t i = 0; i < states->shape[0]; i++)
        out[i] = (float)((double)out[i] * beta2 + (1.0 - beta2) * sums[i] / (double)each);
}

/* Updates the row and column states. */
static bool factor_squares(const struct adafactor_args *a, struct error *err) {
    const struct factored_shape *s = &a->shape;
    const int64_t rows = factored_rows(s), cols = factored_cols(s);
    const float *gradient = a->gradient->data;
    double *sums = calloc((size_t)(rows + cols), sizeof(*sums));
    int64_t row, col;
    if (!sums)
        return error_set(err, ERROR_NO_MEMORY, "no memory for sums of squares");
    for (int64_t i = 0; i < factored_floats(s); i++)
        if (find_states(s, i, &row, &col)) {
            const double g = scaled(gradient[i], a->gradient_scale, a->gradient_limit);
            sums[row] += g * g + ADAFACTOR_EPS;
            sums[rows + col] += g * g + ADAFACTOR_EPS;
        }
    decay_states(a->beta2, a->rows, sums, s->is_matrix ? s->k : s->side);
    decay_states(a->beta2, a->cols, sums + rows, s->is_matrix ? s->n : s->side);
    free(sums);
    return true;
}

/* Returns the mean of the row states of the matrix to which row state `row` belongs. */
static double rows_mean(const struct adafactor_args *a, int64_t row) {
    const float *rows = a->rows->data;
    const int64_t count = a->shape.is_matrix ? a->shape.n : a->shape.side;
    const int64_t first = row / count * count;
    double sum = 0;
    for (int64_t i = first; i < first + count; i++)
        sum += (double)rows[i];
    return sum / (double)count;
}

bool reference_adafactor(const struct adafactor_args *a, struct error *err) {
    const struct factored_shape *s = &a->shape;
    float *p = a->parameter->data;
    const float *gradient = a->gradient->data, *rows = a->rows->data, *cols = a->cols->data;
    const int64_t floats = factored_floats(s), count = s->n * s->k * s->side * s->side;
    int64_t row, col;
    double squares = 0, own = 0;
    double *updates = malloc((size_t)floats * sizeof(*updates));
    if (!updates || !factor_squares(a, err)) {
        free(updates);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a step of %lld", (long long)floats);
    }
    const double whole_mean = s->is_matrix ? rows_mean(a, 0) : 0;
    for (int64_t i = 0; i < floats; i++)
        if (find_states(s, i, &row, &col)) {
            const double mean = s->is_matrix ? whole_mean : rows_mean(a, row);
            updates[i] = scaled(gradient[i], a->gradient_scale, a->gradient_limit) /
                         sqrt((double)rows[row] / mean * (double)cols[col]);
            squares += updates[i] * updates[i];
            own += (double)p[i] * (double)p[i];
        }
    const double rms = sqrt(squares / (double)count), own_rms = sqrt(own / (double)count);
    const double rate = a->lr * (a->scale_parameter ? fmax(ADAFACTOR_LEAST_SCALE, own_rms) : 1);
    const double size = rate / fmax(1, rms / a->clip_threshold);
    for (int64_t i = 0; i < floats; i++)
        if (find_states(s, i, &row, &col))
            p[i] = (float)((double)p[i] * (1.0 - rate * a->weight_decay) - size * updates[i]);
    free(updates);
    return true;
}
