#include "kernels/reference/reference.h"

#include <stdlib.h>

/* Returns one element of down * x: for rank `lane` of `panel`, the sum over the taps and channels
 * of the row x, [h][w][k], that output pixel `pixel` reads. */
static double inner_sum(const struct low_rank_args *args, const struct reference_walk *walk,
    const float *x, int64_t pixel, const float *panel, int64_t lane) {
    const int rank = args->x->rank;
    const int64_t k = args->x->shape[rank - 1], taps = walk->taps * walk->taps;
    double sum = 0;
    for (int64_t tap = 0; tap < taps; tap++) {
        int64_t at = pixel;
        if (taps > 1) {
            const int64_t *in = args->x->shape, *out = args->y->shape;
            int64_t i = reference_source(walk, pixel / out[2], tap / 3, in[1], out[1]);
            int64_t j = reference_source(walk, pixel % out[2], tap % 3, in[2], out[2]);
            if (i < 0 || j < 0)
                continue;
            at = i * in[2] + j;
        }
        for (int64_t c = 0; c < k; c++)
            sum += (double)x[at * k + c] * (double)panel[(tap * k + c) * LOW_RANK_PANEL + lane];
    }
    return sum;
}

/* sums[channel] += what one term adds to one output pixel */
static void add_term(const struct low_rank_args *args, const struct reference_walk *walk,
    const struct low_rank_term *term, const float *x, int64_t pixel, double *sums) {
    const int64_t k = args->x->shape[args->x->rank - 1];
    const int64_t inner = walk->taps * walk->taps * k;
    for (int64_t r = 0; r < term->rank; r++) {
        const float *panel = term->down + r / LOW_RANK_PANEL * inner * LOW_RANK_PANEL;
        double t = (double)term->scale * inner_sum(args, walk, x, pixel, panel, r % LOW_RANK_PANEL);
        for (int64_t j = 0; j < term->n; j++) {
            const float *up = term->up + j / LOW_RANK_PANEL * term->rank * LOW_RANK_PANEL;
            sums[term->first + j] += t * (double)up[r * LOW_RANK_PANEL + j % LOW_RANK_PANEL];
        }
    }
}

bool reference_low_rank(const struct low_rank_args *args, struct error *err) {
    const int64_t rows = args->x->shape[0], channels = args->y->shape[args->y->rank - 1];
    const int64_t row_x = tensor_elements(args->x) / rows, row_y = tensor_elements(args->y) / rows;
    const struct reference_walk walk = reference_walk(args->kind);
    const size_t element = dtype_size(args->y->dtype);
    struct floats x = { 0 };
    double *sums = calloc((size_t)channels, sizeof(double));
    bool ok = sums ? floats_init(&x, args->x, err)
                   : error_set(err, ERROR_NO_MEMORY, "no memory for low-rank sums");
    for (int64_t i = 0; ok && i < rows * row_y / channels; i++) {
        const int64_t row = i * channels / row_y, pixel = i % (row_y / channels);
        char *y = (char *)args->y->data + (size_t)(i * channels) * element;
        if (!args->rows[row].count)
            continue;
        for (int64_t j = 0; j < channels; j++)
            sums[j] = 0;
        for (int t = 0; t < args->rows[row].count; t++)
            add_term(args, &walk, &args->rows[row].terms[t], x.data + row * row_x, pixel, sums);
        for (int64_t j = 0; j < channels; j++) {
            float before, after;
            convert_elements(&before, DTYPE_F32, y + (size_t)j * element, args->y->dtype, 1);
            after = (float)((double)before + sums[j]);
            convert_elements(y + (size_t)j * element, args->y->dtype, &after, DTYPE_F32, 1);
        }
    }
    free(sums);
    floats_finish(&x);
    return ok;
}
