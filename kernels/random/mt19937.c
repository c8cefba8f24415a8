#include "kernels/random/mt19937.h"

#define SHIFT_WORDS 397

void mt19937_init(struct mt19937 *mt, uint64_t seed) {
    mt->state[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < MT19937_WORDS; i++) {
        uint32_t previous = mt->state[i - 1];
        mt->state[i] = 1812433253u * (previous ^ (previous >> 30)) + i;
    }
    mt->next = MT19937_WORDS;
}

static uint32_t mix(uint32_t word, uint32_t next) {
    const uint32_t mixed = (word & 0x80000000u) | (next & 0x7fffffffu);
    return (mixed >> 1) ^ (next & 1 ? 0x9908b0dfu : 0);
}

/* Word i becomes word i + SHIFT_WORDS mixed with words i and i + 1; indices wrap around. The loops
 * are cut where they do, so that compilers make vectors of them: other ranks' draws are skipped at
 * the speed of this function. */
static void twist(struct mt19937 *mt) {
    uint32_t *s = mt->state;
    int i = 0;
    for (; i < MT19937_WORDS - SHIFT_WORDS; i++)
        s[i] = s[i + SHIFT_WORDS] ^ mix(s[i], s[i + 1]);
    for (; i < MT19937_WORDS - 1; i++)
        s[i] = s[i + SHIFT_WORDS - MT19937_WORDS] ^ mix(s[i], s[i + 1]);
    s[i] = s[SHIFT_WORDS - 1] ^ mix(s[i], s[0]);
    mt->next = 0;
}

uint32_t mt19937_next(struct mt19937 *mt) {
    if (mt->next == MT19937_WORDS)
        twist(mt);
    uint32_t y = mt->state[mt->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

void mt19937_skip(struct mt19937 *mt, int64_t count) {
    while (count > MT19937_WORDS - mt->next) {
        count -= MT19937_WORDS - mt->next;
        twist(mt);
    }
    if (count > 0)
        mt->next += (int)count;
}
