#include "kernels/reference/reference.h"

/* h[m][j] = x[m] . W[j] + bias[j] */
static double output_before_activation(
    const struct reference_packed *p, const float *x, int64_t j) {
    double h = reference_dot(x, p->weight + j * p->base.k, p->base.k);
    return p->bias ? h + (double)p->bias[j] : h;
}

bool reference_linear(const struct linear_args *args, struct error *err) {
    const struct reference_packed *p = (const struct reference_packed *)args->weight;
    int64_t k = p->base.k, m = tensor_elements(args->x) / k;
    int64_t n = args->y->shape[args->y->rank - 1];
    struct floats x = { 0 }, residual = { 0 };
    struct float_output y = { 0 };
    bool ok = floats_init(&x, args->x, err) && floats_init(&residual, args->residual, err) &&
              float_output_init(&y, args->y, err);
    if (ok) {
#pragma omp parallel for
        for (int64_t i = 0; i < m; i++) {
            for (int64_t j = 0; j < n; j++) {
                double h = output_before_activation(p, x.data + i * k, j);
                if (p->base.geglu && !args->ungated) {
                    double gate = output_before_activation(p, x.data + i * k, n + j);
                    h *= reference_activation(ACTIVATION_GELU, gate);
                } else {
                    h = reference_activation(args->activation, h);
                }
                if (residual.data)
                    h += (double)residual.data[i * n + j];
                y.data[i * n + j] = (float)h;
            }
        }
        ok = float_output_store(&y);
    }
    floats_finish(&x);
    floats_finish(&residual);
    float_output_finish(&y);
    return ok;
}

bool reference_geglu(const struct geglu_args *args, struct error *err) {
    const int64_t half = args->y->shape[args->y->rank - 1];
    const int64_t m = tensor_elements(args->y) / half;
    struct floats h = { 0 }, residual = { 0 };
    struct float_output y = { 0 };
    bool ok = floats_init(&h, args->h, err) && floats_init(&residual, args->residual, err) &&
              float_output_init(&y, args->y, err);
    for (int64_t i = 0; ok && i < m * half; i++) {
        const float *row = h.data + i / half * 2 * half, *gate = row + half;
        double value = (double)row[i % half] *
                       reference_activation(ACTIVATION_GELU, (double)gate[i % half]);
        y.data[i] = (float)(value + (residual.data ? (double)residual.data[i] : 0.0));
    }
    ok = ok && float_output_store(&y);
    floats_finish(&h);
    floats_finish(&residual);
    float_output_finish(&y);
    return ok;
}
