#include "kernels/reference/reference.h"

#include <math.h>
#include <stdlib.h>

bool floats_init(struct floats *f, const struct tensor *t, struct error *err) {
    *f = (struct floats){ 0 };
    if (!t)
        return true;
    f->data = t->data;
    if (t->dtype == DTYPE_F32)
        return true;
    int64_t n = tensor_elements(t);
    f->copy = calloc((size_t)n, sizeof(float));
    if (!f->copy)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %lld floats", (long long)n);
    convert_elements(f->copy, DTYPE_F32, t->data, t->dtype, n);
    f->data = f->copy;
    return true;
}

void floats_finish(struct floats *f) {
    free(f->copy);
}

bool float_output_init(struct float_output *o, struct tensor *y, struct error *err) {
    *o = (struct float_output){ .data = y->data, .y = y };
    if (y->dtype == DTYPE_F32)
        return true;
    int64_t n = tensor_elements(y);
    o->data = o->buffer = calloc((size_t)n, sizeof(float));
    return o->buffer || error_set(err, ERROR_NO_MEMORY, "no memory for %lld floats", (long long)n);
}

bool float_output_store(struct float_output *o) {
    if (o->buffer)
        convert_elements(o->y->data, o->y->dtype, o->buffer, DTYPE_F32, tensor_elements(o->y));
    return true;
}

void float_output_finish(struct float_output *o) {
    free(o->buffer);
}

void reference_store(struct tensor *t, int64_t i, double x, bool accumulate) {
    char *at = (char *)t->data + (size_t)i * dtype_size(t->dtype);
    float value;
    if (accumulate) {
        convert_elements(&value, DTYPE_F32, at, t->dtype, 1);
        x += (double)value;
    }
    value = (float)x;
    convert_elements(at, t->dtype, &value, DTYPE_F32, 1);
}

double reference_activation(enum activation activation, double x) {
    switch (activation) {
    case ACTIVATION_NONE:
        return x;
    case ACTIVATION_SILU:
        return x / (1.0 + exp(-x));
    case ACTIVATION_QUICK_GELU:
        return x / (1.0 + exp(-1.702 * x));
    case ACTIVATION_GELU:
        return 0.5 * x * erfc(-x * M_SQRT1_2); /* erfc(-z) = 1 + erf(z) */
    }
    return x;
}

double reference_derivative(enum activation activation, double x) {
    switch (activation) {
    case ACTIVATION_NONE:
        return 1;
    case ACTIVATION_SILU: {
        const double s = 1.0 / (1.0 + exp(-x));
        return s * (1.0 + x * (1.0 - s));
    }
    case ACTIVATION_QUICK_GELU: {
        const double s = 1.0 / (1.0 + exp(-1.702 * x));
        return s * (1.0 + 1.702 * x * (1.0 - s));
    }
    case ACTIVATION_GELU: /* Phi(x) + x phi(x) */
        return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-0.5 * x * x) * (0.5 * M_2_SQRTPI * M_SQRT1_2);
    }
    return 1;
}

double reference_dot(const float *a, const float *b, int64_t n) {
    /* Four sums, so that a compiler which may not reorder can still use vectors. */
    double sum[4] = { 0 };
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++)
            sum[j] += (double)a[i + j] * (double)b[i + j];
    for (; i < n; i++)
        sum[0] += (double)a[i] * (double)b[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static enum dtype same_dtype(enum dtype weight_dtype) {
    return weight_dtype;
}

#define ENTRY(operation) .operation = reference_##operation,
const struct kernels *kernels_reference(void) {
    static const struct kernels table = { .name = "reference",
        .device = DEVICE_CPU,
        .memory = &host_memory,
        .weight_dtypes = 1u << DTYPE_F32 | 1u << DTYPE_BF16 | 1u << DTYPE_F16,
        .default_dtype = DTYPE_F32,
        .batch_images = 1,
        .batch_px = 512 * 512,
        .widens = true,
        .activation_dtype = same_dtype,
        .linear_pack = reference_linear_pack,
        .conv2d_pack = reference_conv2d_pack,
        .packed_destroy = reference_packed_destroy,
        .unpack = reference_unpack,
        .rewrite = reference_rewrite,
        ALL_OPERATIONS(ENTRY) };
    return &table;
}
#undef ENTRY
