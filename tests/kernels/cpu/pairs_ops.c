/* The operations of kernels/cpu/attention/pairs.h over arrays. Compiled twice for pairs_test.c: for
 * AVX512_BF16 and as the twin. */
#include "tests/kernels/cpu/pairs_ops.h"

#include "kernels/cpu/attention/pairs.h"

#if defined(__AVX512BF16__)
#define OPS(name) name##_hardware
#else
#define OPS(name) name##_twin
#endif

void OPS(dots)(const float *sum, const uint32_t *a, const uint32_t *b, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i += LANES)
        store(out + i, pairs_dot(load(sum + i), load_pairs(a + i), load_pairs(b + i)));
}

void OPS(roundings)(const float *first, const float *second, int64_t n, uint32_t *out) {
    for (int64_t i = 0; i < n; i += LANES)
        store_pairs(out + i, pairs_of(load(first + i), load(second + i)));
}
