#include "kernels/reference/reference.h"

struct reference_walk reference_walk(enum conv_kind kind) {
    switch (kind) {
    case CONV_1X1:
        return (struct reference_walk){ 1, 1, 0, 1 };
    case CONV_3X3:
        return (struct reference_walk){ 3, 1, 1, 1 };
    case CONV_3X3_DOWN:
        return (struct reference_walk){ 3, 2, 1, 1 };
    case CONV_3X3_DOWN_RIGHT:
        return (struct reference_walk){ 3, 2, 0, 1 };
    case CONV_3X3_UP:
        return (struct reference_walk){ 3, 1, 1, 2 };
    }
    return (struct reference_walk){ 0 };
}

int64_t reference_source(
    const struct reference_walk *w, int64_t out, int64_t tap, int64_t size, int64_t out_size) {
    int64_t at = out * w->stride + tap - w->before;
    int64_t limit = w->scale == 2 ? out_size : size;
    return at < 0 || at >= limit ? -1 : at / w->scale;
}

bool reference_conv2d(const struct conv2d_args *args, struct error *err) {
    const struct reference_packed *p = (const struct reference_packed *)args->weight;
    const int64_t *in = args->x->shape, *out = args->y->shape;
    int64_t c_in = in[3], c_out = out[3], row_step = args->row_add ? args->row_add->shape[1] : 0;
    struct reference_walk w = reference_walk(p->base.kind);
    struct floats x = { 0 }, residual = { 0 }, row_add = { 0 };
    struct float_output y = { 0 };
    bool ok = floats_init(&x, args->x, err) && floats_init(&residual, args->residual, err) &&
              floats_init(&row_add, args->row_add, err) && float_output_init(&y, args->y, err);
    if (ok) {
#pragma omp parallel for
        for (int64_t pixel = 0; pixel < out[0] * out[1] * out[2]; pixel++) {
            int64_t row = pixel / (out[1] * out[2]);
            int64_t i = pixel / out[2] % out[1], j = pixel % out[2];
            for (int64_t c = 0; c < c_out; c++) {
                double sum = p->bias ? (double)p->bias[c] : 0.0;
                for (int64_t tap = 0; tap < w.taps * w.taps; tap++) {
                    int64_t si = reference_source(&w, i, tap / w.taps, in[1], out[1]);
                    int64_t sj = reference_source(&w, j, tap % w.taps, in[2], out[2]);
                    if (si >= 0 && sj >= 0)
                        sum += reference_dot(x.data + ((row * in[1] + si) * in[2] + sj) * c_in,
                            p->weight + (c * w.taps * w.taps + tap) * c_in, c_in);
                }
                if (row_add.data)
                    sum += (double)row_add.data[row * row_step + args->row_add_offset + c];
                if (residual.data)
                    sum += (double)residual.data[pixel * c_out + c];
                y.data[pixel * c_out + c] = (float)sum;
            }
        }
        ok = float_output_store(&y);
    }
    floats_finish(&x);
    floats_finish(&residual);
    floats_finish(&row_add);
    float_output_finish(&y);
    return ok;
}
