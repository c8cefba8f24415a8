/* Inside kernels/cuda/: descriptions of tensors for TMA. */
#ifndef KERNELS_CUDA_GEMM_TENSOR_MAP_H
#define KERNELS_CUDA_GEMM_TENSOR_MAP_H

#include "kernels/cuda/device.h"

#include <cuda.h>

/* Describes a tensor of f16 or bf16 with `rank` dimensions, the innermost first. `strides` are in
 * bytes and leave out the innermost dimension. A box spans `box` elements; in dimension i, every
 * steps[i]th of them is read. The box is stored in rows of 64 elements with the 128-byte swizzle;
 * elements outside the tensor are zeros. ERROR_UNSUPPORTED if the driver lacks the function,
 * ERROR_DEVICE if it refuses. */
bool tensor_map_encode(CUtensorMap *map, enum dtype dtype, int rank, const void *data,
    const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
    const cuuint32_t *steps, struct error *err);

#endif
