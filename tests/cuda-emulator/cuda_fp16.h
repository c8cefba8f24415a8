/* CUDA's cuda_fp16.h: the functions that kernels use. */
#ifndef TESTS_CUDA_EMULATOR_CUDA_FP16_H
#define TESTS_CUDA_EMULATOR_CUDA_FP16_H

#ifdef __cplusplus
#include "tests/cuda-emulator/float16.h"

EMULATOR_FLOAT16(__half, __half2, half)
typedef __half half;
typedef __half2 half2;
#endif

#endif
