/* dots: sum + a x b for n lanes of pairs. roundings: n pairs of floats, rounded to bf16. n is a
 * multiple of 16. */
#ifndef TESTS_KERNELS_CPU_PAIRS_OPS_H
#define TESTS_KERNELS_CPU_PAIRS_OPS_H

#include <stdint.h>

void dots_hardware(const float *sum, const uint32_t *a, const uint32_t *b, int64_t n, float *out);
void dots_twin(const float *sum, const uint32_t *a, const uint32_t *b, int64_t n, float *out);
void roundings_hardware(const float *first, const float *second, int64_t n, uint32_t *out);
void roundings_twin(const float *first, const float *second, int64_t n, uint32_t *out);

#endif
