#include "engine/scheduler/seed_sequence.h"

#define KEY_WORDS_MAX 8 /* two words for each part of the key */

static uint32_t hash_word(uint32_t value, uint32_t *constant) {
    value ^= *constant;
    *constant *= 0x931e8875u;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y) {
    uint32_t mixed = x * 0xca01f9ddu - y * 0x4973f715u;
    return mixed ^ mixed >> 16;
}

/* Splits a number into 32-bit words, lowest first, without leading zeros. Returns at least one
 * word. */
static int split_words(uint64_t number, uint32_t *out) {
    out[0] = (uint32_t)number;
    out[1] = (uint32_t)(number >> 32);
    return out[1] ? 2 : 1;
}

void seed_sequence(
    uint64_t entropy, const uint64_t *key, int keys, int pool, uint32_t *out, int count) {
    uint32_t mixed[SEED_SEQUENCE_POOL_MAX] = { 0 }, spawned[KEY_WORDS_MAX + 1];
    uint32_t constant = 0x43b0d7e5u;
    int words = 0;
    for (int i = 0; i < keys && words + 2 <= KEY_WORDS_MAX; i++)
        words += split_words(key[i], spawned + words);
    split_words(entropy, mixed); /* fill the pool with zeros, so that the key follows it */
    for (int i = 0; i < pool; i++)
        mixed[i] = hash_word(mixed[i], &constant);
    for (int from = 0; from < pool; from++)
        for (int to = 0; to < pool; to++)
            if (from != to)
                mixed[to] = mix(mixed[to], hash_word(mixed[from], &constant));
    for (int from = 0; from < words; from++)
        for (int to = 0; to < pool; to++)
            mixed[to] = mix(mixed[to], hash_word(spawned[from], &constant));
    constant = 0x8b51f9ddu;
    for (int i = 0; i < count; i++) {
        uint32_t word = mixed[i % pool] ^ constant;
        constant *= 0x58f38dedu;
        word *= constant;
        out[i] = word ^ word >> 16;
    }
}
