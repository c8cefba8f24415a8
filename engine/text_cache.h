/* Encoded texts, kept for the next image that asks for the same: the negative prompt of every
 * request, the prompt of those that try another seed. Copies in host memory, the longest unused
 * dropped where a new one needs its bytes.
 *
 * The keys and values that the UNet makes of a text are not kept: they are thirty times as large
 * and take a quarter of the text encoder's work.
 *
 * One thread at a time.
 */
#ifndef ENGINE_TEXT_CACHE_H
#define ENGINE_TEXT_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text_cache;

/* What an encoded text depends on. */
struct text_key {
    const int32_t *ids; /* borrowed for the call */
    size_t id_count;
    const float *weights; /* of the ids; NULL: all are 1; borrowed likewise */
    int clip_skip;
    uint64_t adapters; /* of the text encoder: adapter_set_text_key */
};

/* NULL without memory, which everything below takes: nothing is kept then. max_bytes: of all that
 * is kept. */
struct text_cache *text_cache_create(size_t max_bytes);
void text_cache_destroy(struct text_cache *cache);

/* NULL if it is not there; borrowed until the next call. */
const void *text_cache_find(struct text_cache *cache, const struct text_key *key, size_t bytes);
/* A copy, if there is room for it. */
void text_cache_put(
    struct text_cache *cache, const struct text_key *key, const void *encoded, size_t bytes);

#endif
