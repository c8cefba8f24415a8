/* Inside kernels/cuda/: tensors as TMA sees them. */
#ifndef KERNELS_CUDA_TENSOR_MAP_H
#define KERNELS_CUDA_TENSOR_MAP_H

#include "kernels/cuda/device.h"

#include <cuda.h>

/* Describes `rank` dimensions of f16 or bf16, the innermost first, `strides` apart in bytes (those
 * of all dimensions but the first): boxes of `box` elements, every steps[i]th of dimension i, in
 * rows of 64 elements with the 128-byte swizzle; zeros outside. ERROR_UNSUPPORTED if the driver
 * cannot, ERROR_DEVICE if it refuses. */
bool tensor_map_encode(CUtensorMap *map, enum dtype dtype, int rank, const void *data,
    const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
    const cuuint32_t *steps, struct error *err);

#endif
