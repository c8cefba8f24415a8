/* A cache of encoded texts for later images with the same text, such as a negative prompt that
 * every request has, or the prompt of requests that only try another seed. Copies are in host
 * memory; the least recently used are dropped when a new one needs room.
 *
 * The keys and values that the UNet makes of a text are not cached: they are thirty times as large
 * and cost a quarter of the text encoder's work.
 *
 * One thread at a time. */
#ifndef ENGINE_DRAWING_TEXT_CACHE_H
#define ENGINE_DRAWING_TEXT_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text_cache;

/* Everything that an encoded text depends on. */
struct text_key {
    const int32_t *ids; /* borrowed for the call */
    size_t id_count;
    const float *weights; /* one per id; borrowed; NULL: all are 1 */
    int clip_skip;
    uint64_t adapters; /* adapter_set_text_key of the text encoder's adapters */
};

/* max_bytes limits the size of everything in the cache. Returns NULL if there is no memory. The
 * functions below accept NULL and then cache nothing. */
struct text_cache *text_cache_create(size_t max_bytes);
void text_cache_destroy(struct text_cache *cache);

/* Returns the encoded text, borrowed until the next call; NULL if it is not in the cache. */
const void *text_cache_find(struct text_cache *cache, const struct text_key *key, size_t bytes);
/* Stores a copy of the encoded text. Does nothing if it is larger than max_bytes or there is no
 * memory. */
void text_cache_put(
    struct text_cache *cache, const struct text_key *key, const void *encoded, size_t bytes);

#endif
