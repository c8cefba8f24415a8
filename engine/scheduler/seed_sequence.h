/* numpy.random.SeedSequence, which derives seeds from a seed. torchsde's Brownian trees use it. */
#ifndef ENGINE_SCHEDULER_SEED_SEQUENCE_H
#define ENGINE_SCHEDULER_SEED_SEQUENCE_H

#include <stdint.h>

#define SEED_SEQUENCE_POOL_MAX 32

/* Computes SeedSequence(entropy, spawn_key=(key[0], ..., key[keys - 1]),
 * pool_size=pool).generate_state(count). keys: at most 4; 0: no spawn_key. pool: 4 to
 * SEED_SEQUENCE_POOL_MAX words. */
void seed_sequence(
    uint64_t entropy, const uint64_t *key, int keys, int pool, uint32_t *out, int count);

#endif
