/* noise: torch.randn of torch's CUDA generator. Philox in integers is the same everywhere;
 * Box-Muller takes the sine of pi times a number, which needs no reduction and no table, so that a
 * value lies within 2e-6 of the host's (and of torch's own, which takes the fast sine). */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/philox.h"

#include <string.h>

#define NOISE_ROWS 64

/* By value: 1 KiB of kernel parameters. */
struct noise {
    float *y;
    int64_t width;   /* numbers of a row */
    int64_t threads; /* of torch's kernel, whatever this one has */
    int rounds;
    uint64_t seeds[NOISE_ROWS], offsets[NOISE_ROWS];
};

__device__ __forceinline__ void philox(
    uint64_t offset, uint64_t thread, uint64_t key, uint32_t *c) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    c[0] = (uint32_t)offset, c[1] = (uint32_t)(offset >> 32);
    c[2] = (uint32_t)thread, c[3] = (uint32_t)(thread >> 32);
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

/* Two uniform words to two normal numbers, sine first: u = (x + 1/2) / 2^32, angle = 2 pi (y + 1/2)
 * / 2^32. */
__device__ __forceinline__ void normalize(uint32_t x, uint32_t y, float *first, float *second) {
    const float radius = sqrtf(-2.0f * logf(fmaf((float)x, 0x1p-32f, 0x1p-33f)));
    float sine, cosine;
    sincospif(fmaf((float)y, 0x1p-31f, 0x1p-32f), &sine, &cosine);
    *first = radius * sine;
    *second = radius * cosine;
}

/* Grid: x and its rounds count torch's threads, y rows. */
__global__ void __launch_bounds__(PHILOX_BLOCK_THREADS) draw(const struct noise n) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    float *y = n.y + (int64_t)blockIdx.y * n.width;
    const int64_t thread = (int64_t)blockIdx.x * PHILOX_BLOCK_THREADS + threadIdx.x;
    for (int round = 0; round < n.rounds; round++) {
        uint32_t words[4];
        float normals[PHILOX_UNROLL];
        philox(
            n.offsets[blockIdx.y] + (uint64_t)round, (uint64_t)thread, n.seeds[blockIdx.y], words);
        normalize(words[0], words[1], &normals[0], &normals[1]);
        normalize(words[2], words[3], &normals[2], &normals[3]);
        const int64_t first = round * n.threads * PHILOX_UNROLL + thread;
#pragma unroll
        for (int i = 0; i < PHILOX_UNROLL; i++)
            if (first + i * n.threads < n.width)
                y[first + i * n.threads] = normals[i];
    }
}

extern "C" bool cuda_noise(const struct noise_args *args, struct error *err) {
    const int64_t rows = args->y->shape[0];
    struct noise n = {};
    n.width = tensor_elements(args->y) / rows;
    n.threads = philox_threads(n.width);
    n.rounds = (int)philox_rounds(n.width);
    for (int64_t first = 0; first < rows; first += NOISE_ROWS) {
        const int64_t here = rows - first < NOISE_ROWS ? rows - first : NOISE_ROWS;
        n.y = (float *)args->y->data + first * n.width;
        memcpy(n.seeds, args->seeds + first, (size_t)here * sizeof(*n.seeds));
        memcpy(n.offsets, args->offsets + first, (size_t)here * sizeof(*n.offsets));
        const dim3 grid((unsigned)(n.threads / PHILOX_BLOCK_THREADS), (unsigned)here);
        if (!launch(draw, grid, PHILOX_BLOCK_THREADS, 0, "noise", err, n))
            return false;
    }
    return true;
}
