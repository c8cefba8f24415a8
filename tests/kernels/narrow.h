/* Conversions of one number to 16 bits. */
#ifndef TESTS_KERNELS_NARROW_H
#define TESTS_KERNELS_NARROW_H

#include "kernels/dtype.h"

static inline uint16_t f32_to_f16(float f) {
    uint16_t h;
    convert_elements(&h, DTYPE_F16, &f, DTYPE_F32, 1);
    return h;
}

static inline uint16_t f32_to_bf16(float f) {
    uint16_t h;
    convert_elements(&h, DTYPE_BF16, &f, DTYPE_F32, 1);
    return h;
}

#endif
