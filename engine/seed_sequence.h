/* numpy.random.SeedSequence, which makes seeds from a seed: torchsde's trees hang on it. */
#ifndef ENGINE_SEED_SEQUENCE_H
#define ENGINE_SEED_SEQUENCE_H

#include <stdint.h>

#define SEED_SEQUENCE_POOL_MAX 32

/* SeedSequence(entropy, spawn_key=(key[0], ..., key[keys - 1]), pool_size=pool).generate_state(
 * count): keys 0 for no spawn_key, at most 4; pool from 4 to SEED_SEQUENCE_POOL_MAX words. */
void seed_sequence(
    uint64_t entropy, const uint64_t *key, int keys, int pool, uint32_t *out, int count);

#endif
