#include "kernels/reference/reference.h"

#include <math.h>
#include <stdlib.h>

/* Computes one query of one head: y[d] = sum over j < keys of softmax(scale q . k[j])[j] v[j][d].
 * `step_k`, `step_v`: elements from one token to the next; `weights` and `sums`: scratch. */
static void attend(const float *q, const float *k, int64_t step_k, const float *v, int64_t step_v,
    int64_t keys, int64_t d, double scale, double *weights, double *sums, float *y) {
    double largest = -INFINITY, total = 0;
    for (int64_t j = 0; j < keys; j++) {
        weights[j] = scale * reference_dot(q, k + j * step_k, d);
        /* Written so that a NaN is kept. */
        largest = weights[j] <= largest ? largest : weights[j];
    }
    for (int64_t i = 0; i < d; i++)
        sums[i] = 0;
    for (int64_t j = 0; j < keys; j++) {
        double weight = exp(weights[j] - largest);
        total += weight;
        for (int64_t i = 0; i < d; i++)
            sums[i] += weight * (double)v[j * step_v + i];
    }
    for (int64_t i = 0; i < d; i++)
        y[i] = (float)(sums[i] / total);
}

bool reference_attention(const struct attention_args *args, struct error *err) {
    int64_t rows = args->y->shape[0], tq = args->y->shape[1], tk = args->k->shape[1];
    int64_t d = args->head_dim, heads = args->heads;
    int64_t step_q = args->q->shape[2], step_k = args->k->shape[2], step_v = args->v->shape[2];
    struct floats q = { 0 }, k = { 0 }, v = { 0 };
    struct float_output y = { 0 };
    bool ok = floats_init(&q, args->q, err) && floats_init(&k, args->k, err) &&
              floats_init(&v, args->v, err) && float_output_init(&y, args->y, err);
    bool out_of_memory = false;
    if (ok) {
#pragma omp parallel reduction(|| : out_of_memory)
        {
            double *scratch = calloc((size_t)(tk + d), sizeof(double));
            out_of_memory = !scratch;
#pragma omp for
            for (int64_t item = 0; item < rows * heads * tq; item++) {
                int64_t row = item / (heads * tq), h = item / tq % heads, i = item % tq;
                int64_t keys = attention_keys(args, row);
                if (!scratch)
                    continue;
                attend(q.data + (row * tq + i) * step_q + args->q_offset + h * d,
                    k.data + row * tk * step_k + args->k_offset + h * d, step_k,
                    v.data + row * tk * step_v + args->v_offset + h * d, step_v,
                    args->causal && i + 1 < keys ? i + 1 : keys, d, (double)args->scale, scratch,
                    scratch + tk, y.data + (row * tq + i) * heads * d + h * d);
            }
            free(scratch);
        }
        ok = out_of_memory ? error_set(err, ERROR_NO_MEMORY, "no memory for attention weights")
                           : float_output_store(&y);
    }
    floats_finish(&q);
    floats_finish(&k);
    floats_finish(&v);
    float_output_finish(&y);
    return ok;
}
