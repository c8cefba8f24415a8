/* noise: torch.randn of torch's CUDA generator. Philox uses integers and is the same everywhere.
 * Box-Muller takes the sine of pi times a number, which needs no argument reduction and no table.
 * Values differ by at most 2e-6 from the host's, and also from those of torch, which uses the fast
 * sine. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/ptx.cuh"

#include <string.h>

#define NOISE_ROWS 64

/* The arguments, passed by value: 1 KiB of kernel parameters. */
struct noise {
    float *y;
    int64_t width;   /* numbers per row */
    int64_t threads; /* of torch's kernel, not of this one */
    int rounds;
    uint64_t seeds[NOISE_ROWS], offsets[NOISE_ROWS];
};

/* Turns two uniform words into two normal numbers, sine first: u = (x + 1/2) / 2^32, angle = 2 pi
 * (y + 1/2) / 2^32. */
__device__ __forceinline__ void normalize(uint32_t x, uint32_t y, float *first, float *second) {
    const float radius = sqrtf(-2.0f * logf(fmaf((float)x, 0x1p-32f, 0x1p-33f)));
    float sine, cosine;
    sincospif(fmaf((float)y, 0x1p-31f, 0x1p-32f), &sine, &cosine);
    *first = radius * sine;
    *second = radius * cosine;
}

/* Grid: y counts rows; x counts blocks of torch's threads. Each thread does all rounds of one of
 * torch's threads. */
__global__ void __launch_bounds__(PHILOX_BLOCK_THREADS) draw(const struct noise n) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    float *y = n.y + (int64_t)blockIdx.y * n.width;
    const int64_t thread = (int64_t)blockIdx.x * PHILOX_BLOCK_THREADS + threadIdx.x;
    for (int round = 0; round < n.rounds; round++) {
        const uint64_t at = n.offsets[blockIdx.y] + (uint64_t)round;
        uint32_t words[4] = { (uint32_t)at, (uint32_t)(at >> 32), (uint32_t)thread,
            (uint32_t)((uint64_t)thread >> 32) };
        float normals[PHILOX_UNROLL];
        philox(n.seeds[blockIdx.y], words);
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
