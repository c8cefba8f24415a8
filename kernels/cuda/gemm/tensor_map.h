/* Inside kernels/cuda/: descriptions of tensors for TMA. */
#ifndef KERNELS_CUDA_GEMM_TENSOR_MAP_H
#define KERNELS_CUDA_GEMM_TENSOR_MAP_H

#include "kernels/cuda/device.h"

#include <cuda.h>

/* Describes a tensor of f16 or bf16 with `rank` dimensions, the innermost first. `strides` are in
 * bytes and leave out the innermost dimension. Boxes have `box` elements, of which dimension i
 * takes every steps[i]th, in rows of 64 elements with the 128-byte swizzle; zeros outside the
 * tensor. ERROR_UNSUPPORTED if the driver lacks the function, ERROR_DEVICE if it refuses. */
bool tensor_map_encode(CUtensorMap *map, enum dtype dtype, int rank, const void *data,
    const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
    const cuuint32_t *steps, struct error *err);

#endif
