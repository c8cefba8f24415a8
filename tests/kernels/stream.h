/* The input numbers of the recorded references; tests/reference/kernels_golden.py generates the
 * same. */
#ifndef TESTS_KERNELS_STREAM_H
#define TESTS_KERNELS_STREAM_H

#include "kernels/tensor.h"

/* Fills `memory` with stream s, f32, -1 .. 1. Returns it with this shape. */
static inline struct tensor stream(float *memory, uint32_t s, struct tensor shape) {
    shape.data = memory;
    for (int64_t i = 0; i < tensor_elements(&shape); i++) {
        uint32_t u = ((uint32_t)i * 7919u + s * 104729u + 12345u) * 2654435761u;
        memory[i] = (float)((double)u / 2147483648.0 - 1.0);
    }
    return shape;
}

#endif
