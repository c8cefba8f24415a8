/* The register tile of the matrix product, on the vectors of simd.h. */
#ifndef KERNELS_CPU_MATMUL_VECTOR_H
#define KERNELS_CPU_MATMUL_VECTOR_H

#include "kernels/cpu/simd.h"

#if LANES == 16
#define TILE_ROWS 12 /* 24 accumulators of 32 registers */
#else
#define TILE_ROWS 6 /* 12 accumulators of 16 registers */
#endif
#define PANEL (2 * LANES)

#endif
