/* The backward of low_rank. For each output pixel of each row, with u = down x and v = up^T dy:
 *   d_up += scale dy u^T;  d_down += scale v x^T;  dx += scale down^T v. */
#include "kernels/reference/reference.h"

#include <stdlib.h>

struct low_rank {
    const struct low_rank_backward_args *args;
    const float *dy, *x; /* x is NULL if no factor's gradient is wanted */
    struct reference_walk walk;
    int64_t k, channels, pixels_in, pixels_out, h, w, h_out, w_out; /* of one row */
    double *dx;                                                     /* all rows, or NULL */
};

/* Returns the input pixel that a tap of an output pixel reads, or -1. */
static int64_t source(const struct low_rank *l, int64_t pixel, int64_t tap) {
    if (l->walk.taps == 1)
        return pixel;
    const int64_t i = reference_source(&l->walk, pixel / l->w_out, tap / 3, l->h, l->h_out);
    const int64_t j = reference_source(&l->walk, pixel % l->w_out, tap % 3, l->w, l->w_out);
    return i < 0 || j < 0 ? -1 : i * l->w + j;
}

/* Adds what one rank of a term contributes at one output pixel to dx, d_down [rank][taps][k] and
 * d_up [n][rank]. */
static void run_rank(const struct low_rank *l, const struct low_rank_term *term, int64_t r,
    int64_t row, int64_t pixel, double *d_down, double *d_up) {
    const int64_t taps = l->walk.taps * l->walk.taps, k = l->k;
    const float *down = term->down + r / LOW_RANK_PANEL * taps * k * LOW_RANK_PANEL +
                        r % LOW_RANK_PANEL;
    const float *dy = l->dy + (row * l->pixels_out + pixel) * l->channels + term->first;
    double u = 0, v = 0;
    for (int64_t j = 0; j < term->n; j++)
        v += (double)dy[j] *
             (double)term
                 ->up[(j / LOW_RANK_PANEL * term->rank + r) * LOW_RANK_PANEL + j % LOW_RANK_PANEL];
    v *= (double)term->scale;
    for (int64_t tap = 0; tap < taps; tap++) {
        const int64_t from = source(l, pixel, tap);
        if (from < 0)
            continue;
        const int64_t at = (row * l->pixels_in + from) * k;
        for (int64_t c = 0; c < k; c++) {
            const double factor = (double)down[(tap * k + c) * LOW_RANK_PANEL];
            if (l->dx)
                l->dx[at + c] += v * factor;
            if (d_down)
                d_down[(r * taps + tap) * k + c] += v * (double)l->x[at + c];
            if (d_up)
                u += factor * (double)l->x[at + c];
        }
    }
    for (int64_t j = 0; d_up && j < term->n; j++)
        d_up[j * term->rank + r] += (double)term->scale * (double)dy[j] * u;
}

/* gradient += sums. sums is [n][inner]; gradient is in panels of n: [n / 16][inner][16]. */
static void add_panels(float *gradient, const double *sums, int64_t n, int64_t inner) {
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < inner; j++)
            reference_add_gradient(
                gradient + (i / LOW_RANK_PANEL * inner + j) * LOW_RANK_PANEL + i % LOW_RANK_PANEL,
                sums[i * inner + j]);
    }
}

static bool run_term(const struct low_rank *l, int index, struct error *err) {
    const struct low_rank_term *term = &l->args->terms[index];
    const struct low_rank_gradient gradient = l->args->gradients
                                                  ? l->args->gradients[index]
                                                  : (struct low_rank_gradient){ NULL, NULL };
    const int64_t inner = l->walk.taps * l->walk.taps * l->k, rows = l->args->dy->shape[0];
    double *d_down = gradient.down ? calloc((size_t)(term->rank * inner), sizeof(double)) : NULL;
    double *d_up = gradient.up ? calloc((size_t)(term->rank * term->n), sizeof(double)) : NULL;
    bool ok = (!gradient.down || d_down) && (!gradient.up || d_up);
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory for low-rank gradients");
    for (int64_t i = 0; ok && i < rows * l->pixels_out; i++)
        for (int64_t r = 0; r < term->rank; r++)
            run_rank(l, term, r, i / l->pixels_out, i % l->pixels_out, d_down, d_up);
    if (ok && d_down)
        add_panels(gradient.down, d_down, term->rank, inner);
    if (ok && d_up)
        add_panels(gradient.up, d_up, term->n, term->rank);
    free(d_down);
    free(d_up);
    return ok;
}

bool reference_low_rank_backward(const struct low_rank_backward_args *args, struct error *err) {
    const struct tensor *in = args->dx ? args->dx : args->x, *out = args->dy;
    if (!in)
        return true; /* no gradient is wanted */
    struct low_rank l = { .args = args,
        .walk = reference_walk(args->kind),
        .k = in->shape[in->rank - 1],
        .channels = out->shape[out->rank - 1] };
    const int64_t rows = out->shape[0], elements = tensor_elements(in);
    l.pixels_in = elements / rows / l.k;
    l.pixels_out = tensor_elements(out) / rows / l.channels;
    if (args->kind != CONV_1X1) {
        l.h = in->shape[1];
        l.w = in->shape[2];
        l.h_out = out->shape[1];
        l.w_out = out->shape[2];
    }
    struct floats dy = { 0 }, x = { 0 };
    bool ok = floats_init(&dy, args->dy, err) &&
              floats_init(&x, args->gradients ? args->x : NULL, err);
    l.dy = dy.data;
    l.x = x.data;
    if (ok && args->dx) {
        l.dx = calloc((size_t)elements, sizeof(*l.dx));
        ok = l.dx || error_set(err, ERROR_NO_MEMORY, "no memory for low-rank gradients");
    }
    for (int i = 0; ok && i < args->count; i++)
        ok = run_term(&l, i, err);
    for (int64_t i = 0; ok && l.dx && i < elements; i++)
        reference_store(args->dx, i, l.dx[i], args->accumulate);
    free(l.dx);
    floats_finish(&dy);
    floats_finish(&x);
    return ok;
}
