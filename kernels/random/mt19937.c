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

static void twist(struct mt19937 *mt) {
    for (int i = 0; i < MT19937_WORDS; i++) {
        uint32_t high = mt->state[i] & 0x80000000u;
        uint32_t low = mt->state[(i + 1) % MT19937_WORDS] & 0x7fffffffu;
        uint32_t mixed = (high | low) >> 1;
        if (low & 1)
            mixed ^= 0x9908b0dfu;
        mt->state[i] = mt->state[(i + SHIFT_WORDS) % MT19937_WORDS] ^ mixed;
    }
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
