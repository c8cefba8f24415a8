#include "kernels/tensor.h"

#include <stdio.h>

int64_t tensor_elements(const struct tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

size_t tensor_bytes(const struct tensor *t) {
    return (size_t)tensor_elements(t) * dtype_size(t->dtype);
}

struct tensor tensor_1d(void *data, enum dtype dtype, int64_t a) {
    return (struct tensor){ data, dtype, DEVICE_CPU, 1, { a } };
}

struct tensor tensor_2d(void *data, enum dtype dtype, int64_t a, int64_t b) {
    return (struct tensor){ data, dtype, DEVICE_CPU, 2, { a, b } };
}

struct tensor tensor_3d(void *data, enum dtype dtype, int64_t a, int64_t b, int64_t c) {
    return (struct tensor){ data, dtype, DEVICE_CPU, 3, { a, b, c } };
}

struct tensor tensor_4d(void *data, enum dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d) {
    return (struct tensor){ data, dtype, DEVICE_CPU, 4, { a, b, c, d } };
}

struct tensor tensor_view_2d(const struct tensor *t, int64_t a, int64_t b) {
    return (struct tensor){ t->data, t->dtype, t->device, 2, { a, b } };
}

struct tensor tensor_view_3d(const struct tensor *t, int64_t a, int64_t b, int64_t c) {
    return (struct tensor){ t->data, t->dtype, t->device, 3, { a, b, c } };
}

struct tensor tensor_rows(const struct tensor *t, int64_t first, int64_t count) {
    struct tensor rows = *t;
    size_t row_bytes = tensor_bytes(t) / (size_t)t->shape[0];
    /* Computed as an integer, because in a dry run there is no memory at the tensor's address. */
    rows.data = (void *)((uintptr_t)t->data + (size_t)first * row_bytes);
    rows.shape[0] = count;
    return rows;
}

bool tensor_same_shape(const struct tensor *a, const struct tensor *b) {
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

const char *tensor_describe(const struct tensor *t, char *text, size_t size) {
    if (size == 0)
        return text;
    int used = snprintf(text, size, "%s ", dtype_name(t->dtype));
    for (int i = 0; i < t->rank && used > 0 && (size_t)used < size; i++)
        used += snprintf(text + used, size - (size_t)used, "[%lld]", (long long)t->shape[i]);
    return text;
}
