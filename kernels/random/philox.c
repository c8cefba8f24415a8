#include "kernels/random/philox.h"

#include <math.h>

void philox_4x32_10(const uint32_t counter[4], uint64_t key, uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t a = (uint64_t)PHILOX_MULTIPLY_0 * c0;
        uint64_t b = (uint64_t)PHILOX_MULTIPLY_2 * c2;
        uint32_t old_c1 = c1, old_c3 = c3;
        c0 = (uint32_t)(b >> 32) ^ old_c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ old_c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += PHILOX_KEY_STEP_0;
        k1 += PHILOX_KEY_STEP_1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

int64_t philox_threads(int64_t count) {
    int64_t blocks = (count + PHILOX_BLOCK_THREADS - 1) / PHILOX_BLOCK_THREADS;
    return (blocks < PHILOX_MAX_BLOCKS ? blocks : PHILOX_MAX_BLOCKS) * PHILOX_BLOCK_THREADS;
}

int64_t philox_rounds(int64_t count) {
    return count < 1 ? 0 : (count - 1) / (philox_threads(count) * PHILOX_UNROLL) + 1;
}

/* Box-Muller as in cuRAND: turns two random words into two normal numbers, sine first. */
static void normalize_words(uint32_t x, uint32_t y, float *first, float *second) {
    const float scale = 2.3283064e-10f; /* 2^-32 */
    const float scale_2pi = 2.3283064e-10f * 6.2831855f;
    float u = (float)x * scale + scale / 2;
    float angle = fmaf((float)y, scale_2pi, scale_2pi / 2); /* as nvcc compiles it */
    float radius = sqrtf(-2.0f * logf(u));
    *first = radius * sinf(angle);
    *second = radius * cosf(angle);
}

void philox_randn(uint64_t seed, uint64_t offset, float *out, int64_t count) {
    const int64_t threads = philox_threads(count), rounds = philox_rounds(count);
    for (int64_t round = 0; round < rounds; round++) {
        const uint64_t at = offset + (uint64_t)round;
        for (int64_t thread = 0; thread < threads; thread++) {
            int64_t first = round * threads * PHILOX_UNROLL + thread;
            if (first >= count)
                break;
            uint32_t counter[4] = { (uint32_t)at, (uint32_t)(at >> 32), (uint32_t)thread,
                (uint32_t)((uint64_t)thread >> 32) };
            uint32_t words[4];
            float normals[PHILOX_UNROLL];
            philox_4x32_10(counter, seed, words);
            normalize_words(words[0], words[1], &normals[0], &normals[1]);
            normalize_words(words[2], words[3], &normals[2], &normals[3]);
            for (int i = 0; i < PHILOX_UNROLL && first + i * threads < count; i++)
                out[first + i * threads] = normals[i];
        }
    }
}
