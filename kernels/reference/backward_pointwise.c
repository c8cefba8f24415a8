/* The backward of embedding, activations, geglu and concat. */
#include "kernels/reference/reference.h"

#include <stdlib.h>

/* t[row] += the sum of dy over the tokens that use this row, by their ids or by their positions. */
static bool gather(const struct embedding_backward_args *args, const float *dy, bool by_position,
    struct tensor *t, struct error *err) {
    const int32_t *ids = args->ids->data;
    const int64_t c = t->shape[1], width = args->ids->shape[1];
    double *sums = calloc((size_t)c, sizeof(*sums));
    if (!sums)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an embedding's gradient");
    for (int64_t row = 0; row < t->shape[0]; row++) {
        bool is_used = false;
        for (int64_t j = 0; j < c; j++)
            sums[j] = 0;
        for (int64_t i = 0; i < tensor_elements(args->ids); i++) {
            if ((by_position ? i % width : ids[i]) != row)
                continue;
            is_used = true;
            for (int64_t j = 0; j < c; j++)
                sums[j] += (double)dy[i * c + j];
        }
        for (int64_t j = 0; is_used && j < c; j++)
            reference_add_gradient((float *)t->data + row * c + j, sums[j]);
    }
    free(sums);
    return true;
}

bool reference_embedding_backward(const struct embedding_backward_args *args, struct error *err) {
    struct floats dy = { 0 };
    bool ok = floats_init(&dy, args->dy, err);
    ok = ok && (!args->dtable || gather(args, dy.data, false, args->dtable, err));
    ok = ok && (!args->dpositions || gather(args, dy.data, true, args->dpositions, err));
    floats_finish(&dy);
    return ok;
}

bool reference_activation_backward(const struct activation_backward_args *args, struct error *err) {
    struct floats dy = { 0 }, x = { 0 };
    const bool ok = floats_init(&dy, args->dy, err) && floats_init(&x, args->x, err);
    for (int64_t i = 0; ok && i < tensor_elements(args->dy); i++) {
        const double slope = args->activation == ACTIVATION_NONE
                                 ? 1.0
                                 : reference_derivative(args->activation, (double)x.data[i]);
        reference_store(args->dx, i, (double)dy.data[i] * slope, args->accumulate);
    }
    floats_finish(&dy);
    floats_finish(&x);
    return ok;
}

bool reference_geglu_backward(const struct geglu_backward_args *args, struct error *err) {
    const int64_t half = args->dy->shape[args->dy->rank - 1];
    struct floats dy = { 0 }, h = { 0 };
    const bool ok = floats_init(&dy, args->dy, err) && floats_init(&h, args->h, err);
    for (int64_t i = 0; ok && i < tensor_elements(args->dy); i++) {
        const int64_t at = i / half * 2 * half + i % half;
        const double value = (double)h.data[at], gate = (double)h.data[at + half];
        const double slope = (double)dy.data[i];
        reference_store(
            args->dh, at, slope * reference_activation(ACTIVATION_GELU, gate), args->accumulate);
        reference_store(args->dh, at + half,
            slope * value * reference_derivative(ACTIVATION_GELU, gate), args->accumulate);
    }
    floats_finish(&dy);
    floats_finish(&h);
    return ok;
}

/* dx (+)= dy[..][first ..] */
static void take_channels(
    const float *dy, int64_t channels, int64_t first, struct tensor *dx, bool accumulate) {
    const int64_t c = dx->shape[dx->rank - 1];
    for (int64_t i = 0; i < tensor_elements(dx); i++)
        reference_store(dx, i, (double)dy[i / c * channels + first + i % c], accumulate);
}

bool reference_concat_backward(const struct concat_backward_args *args, struct error *err) {
    const int64_t channels = args->dy->shape[args->dy->rank - 1];
    const int64_t b = args->db ? args->db->shape[args->db->rank - 1] : 0;
    struct floats dy = { 0 };
    const bool ok = floats_init(&dy, args->dy, err);
    if (ok && args->da)
        take_channels(dy.data, channels, 0, args->da, args->accumulate_a);
    if (ok && args->db)
        take_channels(dy.data, channels, channels - b, args->db, args->accumulate_b);
    floats_finish(&dy);
    return ok;
}
