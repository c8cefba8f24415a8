/* The backward of group_norm and layer_norm. With n = (x - mean) scale, h = gamma n + beta and dh
 * the gradient of h (dy, or dy silu'(h)), over the elements that share a mean:
 *   dx = scale (g - mean(g) - n mean(g n)),  g = dh gamma;
 *   dgamma += sum of dh n;  dbeta += sum of dh.
 */
#include "kernels/reference/reference.h"

#include <stdlib.h>

/* The elements that share a mean: one group of a row, or one token. They are `count` runs of
 * `width` adjacent elements; the runs are `step` apart, the first is at `start`. */
struct share {
    const float *x, *dy, *gamma, *beta; /* gamma and beta: at the first channel */
    int64_t start, count, step, width;
    struct reference_moments moments;
    bool silu;
};

/* Returns dh of the element at x[at], the j-th of its run. *normal: its n. */
static double before_activation(const struct share *s, int64_t at, int64_t j, double *normal) {
    const double dy = (double)s->dy[at];
    *normal = ((double)s->x[at] - s->moments.mean) * s->moments.scale;
    if (!s->silu)
        return dy;
    return dy * reference_derivative(
                    ACTIVATION_SILU, *normal * (double)s->gamma[j] + (double)s->beta[j]);
}

static void input_gradient(const struct share *s, struct tensor *dx, bool accumulate) {
    const double n = (double)(s->count * s->width);
    double sum = 0, product = 0, normal;
    for (int64_t i = 0; i < s->count; i++) {
        for (int64_t j = 0; j < s->width; j++) {
            const double dh = before_activation(s, s->start + i * s->step + j, j, &normal);
            sum += dh * (double)s->gamma[j];
            product += dh * (double)s->gamma[j] * normal;
        }
    }
    for (int64_t i = 0; i < s->count; i++) {
        for (int64_t j = 0; j < s->width; j++) {
            const int64_t at = s->start + i * s->step + j;
            const double g = before_activation(s, at, j, &normal) * (double)s->gamma[j];
            reference_store(
                dx, at, s->moments.scale * (g - sum / n - normal * (product / n)), accumulate);
        }
    }
}

/* Adds what the share contributes to dgamma and dbeta, per channel. */
static void add_parameters(const struct share *s, double *gammas, double *betas) {
    for (int64_t i = 0; i < s->count; i++) {
        for (int64_t j = 0; j < s->width; j++) {
            double normal;
            const double dh = before_activation(s, s->start + i * s->step + j, j, &normal);
            gammas[j] += dh * normal;
            betas[j] += dh;
        }
    }
}

/* x is [rows][count][groups][width], with one mean for each row and group. */
struct norm {
    const struct tensor *dy, *x, *gamma, *beta; /* beta may be NULL without silu */
    int64_t rows, count, groups;
    float eps;
    bool silu;
    struct tensor *dx, *dgamma, *dbeta;
    bool accumulate;
};

/* Computes one group of every row, one row after the other, so that sums over rows have a fixed
 * order. In each row dx is last, because dx may be dy. */
static void run_group(const struct norm *n, const float *x, const float *dy, int64_t group,
    double *gammas, double *betas) {
    const float *gamma = n->gamma->data, *beta = n->beta ? n->beta->data : gamma;
    const int64_t channels = n->gamma->shape[0], width = channels / n->groups;
    const int64_t first = group * width;
    for (int64_t row = 0; row < n->rows; row++) {
        struct share s = { x, dy, gamma + first, beta + first,
            .start = row * n->count * channels + first, .count = n->count, .step = channels,
            .width = width, .silu = n->silu };
        s.moments = reference_moments(x + s.start, n->count, channels, width, n->eps);
        if (n->dgamma || n->dbeta)
            add_parameters(&s, gammas + first, betas + first);
        if (n->dx)
            input_gradient(&s, n->dx, n->accumulate);
    }
}

static bool run(const struct norm *n, struct error *err) {
    const int64_t channels = n->gamma->shape[0];
    struct floats x = { 0 }, dy = { 0 };
    double *sums = calloc((size_t)channels, 2 * sizeof(*sums));
    bool ok = sums || error_set(err, ERROR_NO_MEMORY, "no memory for sums");
    ok = ok && floats_init(&x, n->x, err) && floats_init(&dy, n->dy, err);
    if (ok) {
#pragma omp parallel for
        for (int64_t group = 0; group < n->groups; group++)
            run_group(n, x.data, dy.data, group, sums, sums + channels);
    }
    for (int64_t c = 0; ok && c < channels; c++) {
        if (n->dgamma)
            reference_add_gradient((float *)n->dgamma->data + c, sums[c]);
        if (n->dbeta)
            reference_add_gradient((float *)n->dbeta->data + c, sums[channels + c]);
    }
    free(sums);
    floats_finish(&x);
    floats_finish(&dy);
    return ok;
}

bool reference_group_norm_backward(const struct group_norm_backward_args *args, struct error *err) {
    const int64_t *s = args->x->shape;
    return run(
        &(struct norm){ args->dy, args->x, args->gamma, args->beta, s[0], s[1] * s[2], args->groups,
            args->eps, args->silu, args->dx, args->dgamma, args->dbeta, args->accumulate },
        err);
}

bool reference_layer_norm_backward(const struct layer_norm_backward_args *args, struct error *err) {
    const int64_t c = args->gamma->shape[0];
    return run(&(struct norm){ args->dy, args->x, args->gamma, NULL, tensor_elements(args->x) / c,
                   1, 1, args->eps, false, args->dx, args->dgamma, args->dbeta, args->accumulate },
        err);
}
