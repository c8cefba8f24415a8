/* MT19937 as torch::Generator uses it on the CPU: the 32-bit Mersenne Twister of Matsumoto and
 * Nishimura, started from the low 32 bits of the seed. */
#ifndef KERNELS_RANDOM_MT19937_H
#define KERNELS_RANDOM_MT19937_H

#include <stdint.h>

#define MT19937_WORDS 624

struct mt19937 {
    uint32_t state[MT19937_WORDS];
    int next; /* index of the next word; MT19937_WORDS: twist first */
};

/* Uses only the low 32 bits of the seed, as torch does. */
void mt19937_init(struct mt19937 *mt, uint64_t seed);
uint32_t mt19937_next(struct mt19937 *mt);
/* Leaves the state that `count` calls of mt19937_next leave. */
void mt19937_skip(struct mt19937 *mt, int64_t count);

#endif
