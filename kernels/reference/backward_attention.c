/* The backward of attention. With the weights p = softmax(scale q k^T + mask), for each head:
 *   dv[j] = sum over i of p[i][j] dy[i];
 *   ds[i][j] = scale p[i][j] (dy[i] . v[j] - sum over l of p[i][l] (dy[i] . v[l]));
 *   dq[i] = sum over j of ds[i][j] k[j];  dk[j] = sum over i of ds[i][j] q[i].
 */
#include "kernels/reference/reference.h"

#include <math.h>
#include <stdlib.h>

/* One head of one row: its tokens, `step` elements apart, and its sums. */
struct head {
    const float *q, *k, *v, *dy;
    int64_t step_q, step_k, step_v, step_dy;
    int64_t d, keys;
    double scale;
    double *weights, *slopes; /* [keys] */
    double *dq, *dk, *dv;     /* [d], [keys][d], [keys][d] */
};

/* Computes dq of query i, which sees `keys` keys, and adds what the query contributes to dk and
 * dv. */
static void run_query(const struct head *h, int64_t i, int64_t keys) {
    const float *q = h->q + i * h->step_q, *dy = h->dy + i * h->step_dy;
    double largest = -INFINITY, total = 0, mean = 0;
    for (int64_t j = 0; j < keys; j++) {
        h->weights[j] = h->scale * reference_dot(q, h->k + j * h->step_k, h->d);
        h->slopes[j] = reference_dot(dy, h->v + j * h->step_v, h->d);
        /* Written so that a NaN is kept. */
        largest = h->weights[j] <= largest ? largest : h->weights[j];
    }
    for (int64_t j = 0; j < keys; j++) {
        h->weights[j] = exp(h->weights[j] - largest);
        total += h->weights[j];
    }
    for (int64_t j = 0; j < keys; j++) {
        h->weights[j] /= total;
        mean += h->weights[j] * h->slopes[j];
    }
    for (int64_t c = 0; c < h->d; c++)
        h->dq[c] = 0;
    for (int64_t j = 0; j < keys; j++) {
        const double ds = h->scale * h->weights[j] * (h->slopes[j] - mean);
        for (int64_t c = 0; c < h->d; c++) {
            h->dq[c] += ds * (double)h->k[j * h->step_k + c];
            h->dk[j * h->d + c] += ds * (double)q[c];
            h->dv[j * h->d + c] += h->weights[j] * (double)dy[c];
        }
    }
}

/* The inputs as floats. */
struct inputs {
    struct floats q, k, v, dy;
};

static void run_head(const struct attention_backward_args *args, const struct inputs *in,
    int64_t row, int64_t head, double *scratch) {
    const int64_t tq = args->q->shape[1], tk = args->k->shape[1], d = args->head_dim;
    const int64_t step_q = args->q->shape[2], step_k = args->k->shape[2];
    const int64_t step_v = args->v->shape[2], step_dy = args->dy->shape[2];
    const int64_t at_q = args->q_offset + head * d, at_k = args->k_offset + head * d;
    const int64_t at_v = args->v_offset + head * d;
    const int64_t keys = args->lengths ? ((const int32_t *)args->lengths->data)[row] : tk;
    const struct head h = { in->q.data + row * tq * step_q + at_q,
        in->k.data + row * tk * step_k + at_k, in->v.data + row * tk * step_v + at_v,
        in->dy.data + row * tq * step_dy + head * d, step_q, step_k, step_v, step_dy, d, keys,
        (double)args->scale, scratch, scratch + tk, scratch + 2 * tk, scratch + 2 * tk + d,
        scratch + 2 * tk + d + tk * d };
    for (int64_t i = 0; i < 2 * tk * d; i++)
        h.dk[i] = 0;
    for (int64_t i = 0; i < tq; i++) {
        run_query(&h, i, args->causal && i + 1 < keys ? i + 1 : keys);
        for (int64_t c = 0; c < d; c++)
            reference_store(
                args->dq, (row * tq + i) * step_q + at_q + c, h.dq[c], args->accumulate);
    }
    const int64_t reached = args->accumulate ? keys : tk; /* zeros behind a row's length */
    for (int64_t i = 0; args->dk && i < reached * d; i++) {
        const int64_t token = row * tk + i / d;
        reference_store(args->dk, token * step_k + at_k + i % d, h.dk[i], args->accumulate);
        reference_store(args->dv, token * step_v + at_v + i % d, h.dv[i], args->accumulate);
    }
}

bool reference_attention_backward(const struct attention_backward_args *args, struct error *err) {
    const int64_t rows = args->dy->shape[0], tk = args->k->shape[1], d = args->head_dim;
    struct inputs in = { 0 };
    bool ok = floats_init(&in.q, args->q, err) && floats_init(&in.k, args->k, err) &&
              floats_init(&in.v, args->v, err) && floats_init(&in.dy, args->dy, err);
    bool out_of_memory = false;
    if (ok) {
#pragma omp parallel reduction(|| : out_of_memory)
        {
            double *scratch = calloc((size_t)(2 * tk + d + 2 * tk * d), sizeof(*scratch));
            out_of_memory = !scratch;
#pragma omp for
            for (int64_t item = 0; item < rows * args->heads; item++)
                if (scratch)
                    run_head(args, &in, item / args->heads, item % args->heads, scratch);
            free(scratch);
        }
        ok = !out_of_memory ||
             error_set(err, ERROR_NO_MEMORY, "no memory for attention's gradients");
    }
    floats_finish(&in.q);
    floats_finish(&in.k);
    floats_finish(&in.v);
    floats_finish(&in.dy);
    return ok;
}
