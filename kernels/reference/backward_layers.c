/* The backward of linear and conv2d. A linear layer is a 1x1 convolution of one line of pixels. */
#include "kernels/reference/reference.h"

#include <stdlib.h>

/* A layer y [out] = convolution of x [in], both [rows][h][w][channels], and the gradients that are
 * wanted. */
struct layer {
    const struct reference_packed *weight;
    struct reference_walk walk;
    int64_t in[4], out[4];
    const float *dy, *x;
    struct tensor *dx, *dw, *dbias;
    bool accumulate;
};

/* Returns the weight transposed, as [tap][c_in][c_out] from [c_out][tap][c_in]. The caller frees
 * it. */
static float *turn_weight(const struct layer *l, struct error *err) {
    const int64_t n = l->out[3], inner = l->walk.taps * l->walk.taps * l->in[3];
    float *turned = calloc((size_t)(n * inner), sizeof(*turned));
    if (!turned) {
        error_set(err, ERROR_NO_MEMORY, "no memory for a transposed weight");
        return NULL;
    }
    for (int64_t o = 0; o < n; o++)
        for (int64_t i = 0; i < inner; i++)
            turned[i * n + o] = l->weight->weight[o * inner + i];
    return turned;
}

/* sums = dx[pixel], summed over the output pixels and taps that read this pixel. */
static void input_pixel(const struct layer *l, const float *turned, int64_t pixel, double *sums) {
    const struct reference_walk *w = &l->walk;
    const int64_t *in = l->in, *out = l->out;
    const int64_t row = pixel / (in[1] * in[2]), i = pixel / in[2] % in[1], j = pixel % in[2];
    for (int64_t c = 0; c < in[3]; c++)
        sums[c] = 0;
    for (int64_t ty = 0; ty < w->taps; ty++) {
        for (int64_t oi = 0; oi < out[1]; oi++) {
            if (reference_source(w, oi, ty, in[1], out[1]) != i)
                continue;
            for (int64_t tx = 0; tx < w->taps; tx++) {
                const float *tap = turned + (ty * w->taps + tx) * in[3] * out[3];
                for (int64_t oj = 0; oj < out[2]; oj++) {
                    if (reference_source(w, oj, tx, in[2], out[2]) != j)
                        continue;
                    const float *dy = l->dy + ((row * out[1] + oi) * out[2] + oj) * out[3];
                    for (int64_t c = 0; c < in[3]; c++)
                        sums[c] += reference_dot(dy, tap + c * out[3], out[3]);
                }
            }
        }
    }
}

static bool input_gradient(const struct layer *l, struct error *err) {
    const int64_t pixels = l->in[0] * l->in[1] * l->in[2], c_in = l->in[3];
    float *turned = turn_weight(l, err);
    bool out_of_memory = false;
    if (!turned)
        return false;
#pragma omp parallel reduction(|| : out_of_memory)
    {
        double *sums = calloc((size_t)c_in, sizeof(*sums));
        out_of_memory = !sums;
#pragma omp for
        for (int64_t pixel = 0; pixel < pixels; pixel++) {
            if (!sums)
                continue;
            /* In a plain product, pixels are tokens, and only the output token with the same index
             * reads one. */
            if (l->walk.taps == 1)
                for (int64_t c = 0; c < c_in; c++)
                    sums[c] = reference_dot(
                        l->dy + pixel * l->out[3], turned + c * l->out[3], l->out[3]);
            else
                input_pixel(l, turned, pixel, sums);
            for (int64_t c = 0; c < c_in; c++)
                reference_store(l->dx, pixel * c_in + c, sums[c], l->accumulate);
        }
        free(sums);
    }
    free(turned);
    return !out_of_memory || error_set(err, ERROR_NO_MEMORY, "no memory for sums");
}

/* Computes dw[o] and dbias[o], summed over all pixels of all rows, in order. */
static void output_channel(const struct layer *l, int64_t o, double *sums) {
    const struct reference_walk *w = &l->walk;
    const int64_t *in = l->in, *out = l->out, taps = w->taps * w->taps, c_in = in[3];
    double bias = 0;
    for (int64_t i = 0; l->dw && i < taps * c_in; i++)
        sums[i] = 0;
    for (int64_t pixel = 0; pixel < out[0] * out[1] * out[2]; pixel++) {
        const int64_t row = pixel / (out[1] * out[2]), i = pixel / out[2] % out[1];
        const double dy = (double)l->dy[pixel * out[3] + o];
        bias += dy;
        for (int64_t tap = 0; l->dw && tap < taps; tap++) {
            const int64_t si = reference_source(w, i, tap / w->taps, in[1], out[1]);
            const int64_t sj = reference_source(w, pixel % out[2], tap % w->taps, in[2], out[2]);
            if (si < 0 || sj < 0)
                continue;
            const float *x = l->x + ((row * in[1] + si) * in[2] + sj) * c_in;
            for (int64_t c = 0; c < c_in; c++)
                sums[tap * c_in + c] += dy * (double)x[c];
        }
    }
    for (int64_t i = 0; l->dw && i < taps * c_in; i++)
        reference_add_gradient((float *)l->dw->data + o * taps * c_in + i, sums[i]);
    if (l->dbias)
        reference_add_gradient((float *)l->dbias->data + o, bias);
}

static bool parameter_gradients(const struct layer *l, struct error *err) {
    const int64_t inner = l->walk.taps * l->walk.taps * l->in[3];
    bool out_of_memory = false;
#pragma omp parallel reduction(|| : out_of_memory)
    {
        double *sums = calloc((size_t)inner, sizeof(*sums));
        out_of_memory = !sums;
#pragma omp for
        for (int64_t o = 0; o < l->out[3]; o++)
            if (sums)
                output_channel(l, o, sums);
        free(sums);
    }
    return !out_of_memory || error_set(err, ERROR_NO_MEMORY, "no memory for sums");
}

static bool run(struct layer *l, const struct tensor *dy, const struct tensor *x,
    struct floats *dys, struct floats *xs, struct error *err) {
    if (!floats_init(dys, dy, err) || !floats_init(xs, x, err))
        return false;
    l->dy = dys->data;
    l->x = xs->data;
    return (!l->dx || input_gradient(l, err)) &&
           ((!l->dw && !l->dbias) || parameter_gradients(l, err));
}

bool reference_linear_backward(const struct linear_backward_args *args, struct error *err) {
    const struct packed *p = args->weight;
    const int64_t m = tensor_elements(args->dy) / p->n;
    struct layer l = { .weight = (const struct reference_packed *)p,
        .walk = reference_walk(CONV_1X1),
        .in = { 1, 1, m, p->k },
        .out = { 1, 1, m, p->n },
        .dx = args->dx,
        .dw = args->dw,
        .dbias = args->dbias,
        .accumulate = args->accumulate };
    struct floats dy = { 0 }, x = { 0 };
    const bool ok = run(&l, args->dy, args->dw ? args->x : NULL, &dy, &x, err);
    floats_finish(&dy);
    floats_finish(&x);
    return ok;
}

/* d_row_add[row][row_add_offset + c] (+)= sum over pixels of dy. */
static void row_gradient(const struct conv2d_backward_args *args, const float *dy) {
    const int64_t *out = args->dy->shape, pixels = out[1] * out[2];
    for (int64_t row = 0; row < out[0]; row++) {
        for (int64_t c = 0; c < out[3]; c++) {
            double sum = 0;
            for (int64_t i = 0; i < pixels; i++)
                sum += (double)dy[(row * pixels + i) * out[3] + c];
            reference_store(args->d_row_add,
                row * args->d_row_add->shape[1] + args->row_add_offset + c, sum,
                args->accumulate_row_add);
        }
    }
}

bool reference_conv2d_backward(const struct conv2d_backward_args *args, struct error *err) {
    const struct tensor *like = args->dx ? args->dx : args->x;
    struct layer l = { .weight = (const struct reference_packed *)args->weight,
        .walk = reference_walk(args->weight->kind),
        .dx = args->dx,
        .dw = args->dw,
        .dbias = args->dbias,
        .accumulate = args->accumulate };
    for (int i = 0; i < 4; i++) {
        l.in[i] = like ? like->shape[i] : args->weight->k; /* not read without dx and dw */
        l.out[i] = args->dy->shape[i];
    }
    struct floats dy = { 0 }, x = { 0 };
    const bool ok = run(&l, args->dy, args->dw ? args->x : NULL, &dy, &x, err);
    if (ok && args->d_row_add)
        row_gradient(args, dy.data);
    floats_finish(&dy);
    floats_finish(&x);
    return ok;
}
