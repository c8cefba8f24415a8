/* Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a bijection
 * of a 128-bit counter under a 64-bit key. torch's CUDA generator is built on it. philox_randn is
 * torch.randn as that generator draws it. */
#ifndef KERNELS_RANDOM_PHILOX_H
#define KERNELS_RANDOM_PHILOX_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PHILOX_ROUNDS 10
#define PHILOX_MULTIPLY_0 0xd2511f53u
#define PHILOX_MULTIPLY_2 0xcd9e8d57u
#define PHILOX_KEY_STEP_0 0x9e3779b9u
#define PHILOX_KEY_STEP_1 0xbb67ae85u

/* The launch of torch's CUDA kernel on a GPU with 132 multiprocessors of 2,048 threads. It has
 * blocks of 256 threads: as many as fit at once, but no more than the draw needs. Each thread draws
 * four numbers per round. */
#define PHILOX_BLOCK_THREADS 256
#define PHILOX_MAX_BLOCKS (132 * (2048 / PHILOX_BLOCK_THREADS))
#define PHILOX_UNROLL 4

/* out = philox(counter, key); the least significant word comes first. */
void philox_4x32_10(const uint32_t counter[4], uint64_t key, uint32_t out[4]);

/* The threads and the rounds of torch's kernel for a draw of `count` numbers. Each thread uses up
 * one counter per round. */
int64_t philox_threads(int64_t count);
int64_t philox_rounds(int64_t count);

/* out[0..count) = torch.randn(count, device="cuda") in f32 for a seed and an offset (in counters,
 * not in torch's words). Thread i of N takes elements i, i + N, i + 2N, i + 3N from one counter,
 * then continues 4N further. */
void philox_randn(uint64_t seed, uint64_t offset, float *out, int64_t count);

#ifdef __cplusplus
}
#endif

#endif
