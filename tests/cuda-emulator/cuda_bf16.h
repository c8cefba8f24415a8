/* CUDA's cuda_bf16.h: the functions that kernels use. */
#ifndef TESTS_CUDA_EMULATOR_CUDA_BF16_H
#define TESTS_CUDA_EMULATOR_CUDA_BF16_H

#ifdef __cplusplus
#include "tests/cuda-emulator/float16.h"

EMULATOR_FLOAT16(__nv_bfloat16, __nv_bfloat162, bfloat16)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
#endif

#endif
