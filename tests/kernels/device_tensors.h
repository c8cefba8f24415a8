/* What tests of the CUDA operations on host data share: random tensors, copies on the device, and
 * how far results are apart. */
#ifndef TESTS_KERNELS_DEVICE_TENSORS_H
#define TESTS_KERNELS_DEVICE_TENSORS_H

#include "kernels/devices.h"
#include "tests/check.h"

#include <stdlib.h>

static const struct kernels *cuda; /* the device */
static uint64_t state = 1;

static float random_float(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

/* Host memory of random numbers, owned by the caller. */
static struct tensor random_tensor(struct tensor shape, float scale) {
    shape.data = malloc(tensor_bytes(&shape));
    for (int64_t i = 0; i < tensor_elements(&shape); i++) {
        float f = random_float() * scale;
        if (shape.dtype == DTYPE_F32)
            ((float *)shape.data)[i] = f;
        else
            ((uint16_t *)shape.data)[i] = shape.dtype == DTYPE_BF16 ? f32_to_bf16(f)
                                                                    : f32_to_f16(f);
    }
    return shape;
}

static double value(const struct tensor *t, int64_t i) {
    return t->dtype == DTYPE_F32    ? (double)((const float *)t->data)[i]
           : t->dtype == DTYPE_BF16 ? (double)bf16_to_f32(((const uint16_t *)t->data)[i])
                                    : (double)f16_to_f32(((const uint16_t *)t->data)[i]);
}

/* A copy in device memory, to be released by device_release. */
static struct tensor on_device(const struct tensor *t) {
    struct tensor d = *t;
    struct error err = { 0 };
    CHECK(cuda->memory->alloc(MEMORY_ACTIVATIONS, tensor_bytes(t), &d.data, &err) &&
              cuda->memory->upload(d.data, t->data, tensor_bytes(t), &err),
        "%s", err.message);
    d.device = DEVICE_CUDA;
    return d;
}

static void device_release(struct tensor *t) {
    cuda->memory->release(MEMORY_ACTIVATIONS, t->data, tensor_bytes(t));
}

/* |got - want| / |want|; a NaN makes it NaN. */
static double distance(const struct tensor *got, const struct tensor *want) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < tensor_elements(want); i++) {
        double w = value(want, i), d = value(got, i) - w;
        difference += d * d;
        size += w * w;
    }
    return sqrt(difference / size);
}

/* Sets `cuda`; false, after saying why, if there is no device. */
static bool device_is_there(void) {
    struct error err = { 0 };
    cuda = devices_open(&(struct device_choice){ .kind = DEVICE_CUDA }, &err);
    if (!cuda)
        printf("%s\n", err.message);
    return cuda != NULL;
}

#endif
