/* Inside kernels/cuda/: kernels/random/philox.h on the device. */
#ifndef KERNELS_CUDA_PHILOX_CUH
#define KERNELS_CUDA_PHILOX_CUH

#include "kernels/random/philox.h"

#include <cuda_runtime.h>

/* c = philox(c, key) */
__device__ __forceinline__ void philox(uint64_t key, uint32_t *c) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma unroll
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint32_t high0 = __umulhi(PHILOX_MULTIPLY_0, c[0]), low0 = PHILOX_MULTIPLY_0 * c[0];
        const uint32_t high2 = __umulhi(PHILOX_MULTIPLY_2, c[2]), low2 = PHILOX_MULTIPLY_2 * c[2];
        c[0] = high2 ^ c[1] ^ k0;
        c[1] = low2;
        c[2] = high0 ^ c[3] ^ k1;
        c[3] = low0;
        k0 += PHILOX_KEY_STEP_0;
        k1 += PHILOX_KEY_STEP_1;
    }
}

#endif
