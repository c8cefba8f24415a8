/* Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a bijection
 * of a 128-bit counter under a 64-bit key, the engine of torch's CUDA generator. */
#ifndef ENGINE_PHILOX_H
#define ENGINE_PHILOX_H

#include <stdint.h>

/* out = philox(counter, key); words are little end first. */
void philox_4x32_10(const uint32_t counter[4], uint64_t key, uint32_t out[4]);

#endif
