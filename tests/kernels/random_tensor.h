/* Tensors of pseudo-random numbers that are the same in every run, for tests of operations. */
#ifndef TESTS_KERNELS_RANDOM_TENSOR_H
#define TESTS_KERNELS_RANDOM_TENSOR_H

#include "kernels/dtype.h"
#include "kernels/tensor.h"

#include <stdlib.h>

/* In [-1, 1]. */
static inline float random_float(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

/* Allocates exactly the tensor's size in host memory, so that a sanitizer detects an access beyond
 * it. Owned by the caller. */
static inline struct tensor random_tensor(struct tensor shape, float scale) {
    shape.data = malloc(tensor_bytes(&shape));
    for (int64_t i = 0; i < tensor_elements(&shape); i++) {
        const float x = random_float() * scale;
        convert_elements((char *)shape.data + (size_t)i * dtype_size(shape.dtype), shape.dtype, &x,
            DTYPE_F32, 1);
    }
    return shape;
}

#endif
