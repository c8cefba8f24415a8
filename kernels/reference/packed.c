#include "kernels/reference/reference.h"

#include <stdlib.h>
#include <string.h>

/* Creates a weight of n * k values and its bias, converted but not yet laid out. */
static struct reference_packed *create(
    const struct tensor *weight, const struct tensor *bias, enum dtype dtype, struct error *err) {
    int64_t count = tensor_elements(weight), n = weight->shape[0];
    struct reference_packed *p = calloc(1, sizeof(*p));
    uint16_t *rounded = calloc((size_t)count, sizeof(*rounded));
    float *values = calloc((size_t)count, sizeof(*values));
    float *biases = bias ? calloc((size_t)n, sizeof(*biases)) : NULL;
    if (!p || !rounded || !values || (bias && !biases)) {
        free(p);
        free(rounded);
        free(values);
        free(biases);
        error_set(err, ERROR_NO_MEMORY, "no memory for a weight of %lld values", (long long)count);
        return NULL;
    }
    if (dtype != DTYPE_F32) {
        convert_elements(rounded, dtype, weight->data, weight->dtype, count);
        convert_elements(values, DTYPE_F32, rounded, dtype, count);
    } else {
        convert_elements(values, DTYPE_F32, weight->data, weight->dtype, count);
    }
    free(rounded);
    if (bias)
        convert_elements(biases, DTYPE_F32, bias->data, bias->dtype, n);
    p->weight = values;
    p->bias = biases;
    p->dtype = dtype;
    p->base.n = n;
    p->base.k = weight->shape[1];
    p->base.bytes = ((size_t)count + (bias ? (size_t)n : 0)) * sizeof(float) + sizeof(*p);
    p->base.owner = kernels_reference();
    return p;
}

bool reference_linear_pack(const struct tensor *weight, const struct tensor *bias, bool geglu,
    enum dtype dtype, struct packed **out, struct error *err) {
    struct reference_packed *p = create(weight, bias, dtype, err);
    if (!p)
        return false;
    p->base.geglu = geglu;
    *out = &p->base;
    return true;
}

bool reference_conv2d_pack(const struct tensor *weight, const struct tensor *bias,
    enum conv_kind kind, enum dtype dtype, struct packed **out, struct error *err) {
    struct reference_packed *p = create(weight, bias, dtype, err);
    if (!p)
        return false;
    int64_t c_out = weight->shape[0], c_in = weight->shape[1];
    int64_t taps = weight->shape[2] * weight->shape[3];
    float *channels_last = calloc((size_t)(c_out * c_in * taps), sizeof(float));
    if (!channels_last) {
        reference_packed_destroy(&p->base);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a weight");
    }
    for (int64_t o = 0; o < c_out; o++)
        for (int64_t i = 0; i < c_in; i++)
            for (int64_t tap = 0; tap < taps; tap++)
                channels_last[(o * taps + tap) * c_in + i] = p->weight[(o * c_in + i) * taps + tap];
    free(p->weight);
    p->weight = channels_last;
    p->base.is_conv = true;
    p->base.kind = kind;
    *out = &p->base;
    return true;
}

bool reference_unpack(const struct packed *packed, float *weight, float *bias, struct error *err) {
    const struct reference_packed *p = (const struct reference_packed *)packed;
    const size_t n = (size_t)p->base.n, taps = p->base.is_conv && p->base.kind != CONV_1X1 ? 9 : 1;
    (void)err;
    if (weight)
        memcpy(weight, p->weight, n * taps * (size_t)p->base.k * sizeof(*weight));
    if (bias && p->bias)
        memcpy(bias, p->bias, n * sizeof(*bias));
    else if (bias)
        memset(bias, 0, n * sizeof(*bias));
    return true;
}

bool reference_rewrite(
    struct packed *packed, const float *weight, const float *bias, struct error *err) {
    struct reference_packed *p = (struct reference_packed *)packed;
    const int64_t taps = packed->is_conv && packed->kind != CONV_1X1 ? 9 : 1;
    (void)err;
    for (int64_t i = 0; i < packed->n * taps * packed->k; i++) {
        float rounded; /* room for a value of any dtype */
        convert_elements(&rounded, p->dtype, weight + i, DTYPE_F32, 1);
        convert_elements(p->weight + i, DTYPE_F32, &rounded, p->dtype, 1);
    }
    if (p->bias)
        memcpy(p->bias, bias, (size_t)packed->n * sizeof(*bias));
    return true;
}

void reference_packed_destroy(struct packed *packed) {
    struct reference_packed *p = (struct reference_packed *)packed;
    if (!p)
        return;
    free(p->weight);
    free(p->bias);
    free(p);
}
