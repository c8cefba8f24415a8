#include "train/data/python_random.h"

/* init_by_array of the Mersenne Twister's authors; the key is the seed's 32-bit words, lowest
 * first. */
void python_random_seed(struct mt19937 *mt, uint64_t seed) {
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    const int words = key[1] ? 2 : 1;
    uint32_t *state = mt->state;
    int i = 1;
    mt19937_init(mt, 19650218);
    for (int k = 0; k < MT19937_WORDS; k++) {
        const uint32_t mixed = (state[i - 1] ^ (state[i - 1] >> 30)) * 1664525u;
        state[i] = (state[i] ^ mixed) + key[k % words] + (uint32_t)(k % words);
        if (++i == MT19937_WORDS) {
            state[0] = state[MT19937_WORDS - 1];
            i = 1;
        }
    }
    for (int k = 1; k < MT19937_WORDS; k++) {
        const uint32_t mixed = (state[i - 1] ^ (state[i - 1] >> 30)) * 1566083941u;
        state[i] = (state[i] ^ mixed) - (uint32_t)i;
        if (++i == MT19937_WORDS) {
            state[0] = state[MT19937_WORDS - 1];
            i = 1;
        }
    }
    state[0] = 0x80000000u;
}

int python_random_below(struct mt19937 *mt, int count) {
    int bits = 0;
    uint32_t value;
    while (count >> bits)
        bits++;
    do
        value = mt19937_next(mt) >> (32 - bits);
    while (value >= (uint32_t)count);
    return (int)value;
}
