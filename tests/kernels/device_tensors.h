/* Helpers for tests of the CUDA operations on host data: random tensors, copies on the device, and
 * the distance between results. */
#ifndef TESTS_KERNELS_DEVICE_TENSORS_H
#define TESTS_KERNELS_DEVICE_TENSORS_H

#include "kernels/devices.h"
#include "tests/check.h"
#include "tests/kernels/random_tensor.h"

static const struct kernels *cuda; /* the device */

static double value(const struct tensor *t, int64_t i) {
    return t->dtype == DTYPE_F32    ? (double)((const float *)t->data)[i]
           : t->dtype == DTYPE_BF16 ? (double)bf16_to_f32(((const uint16_t *)t->data)[i])
                                    : (double)f16_to_f32(((const uint16_t *)t->data)[i]);
}

/* Copies the tensor to device memory; free it with device_release. */
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

/* Returns |got - want| / |want|; NaN if any element is NaN. */
static double distance(const struct tensor *got, const struct tensor *want) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < tensor_elements(want); i++) {
        double w = value(want, i), d = value(got, i) - w;
        difference += d * d;
        size += w * w;
    }
    return sqrt(difference / size);
}

/* Sets `cuda`. Returns 0, or main's return value if there is no device. */
static int device_open(void) {
    struct error err = { 0 };
    cuda = devices_open(&(struct device_choice){ .kind = DEVICE_CUDA }, &err);
    return cuda ? 0 : check_no_device(err.message);
}

#endif
