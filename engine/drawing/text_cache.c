#include "engine/drawing/text_cache.h"

#include "base/limits.h"
#include "base/metrics.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    struct text_key key; /* its ids and weights are in `block` */
    size_t bytes;
    char *block;  /* owned: encoded text, ids, weights; NULL: the entry is free */
    int64_t used; /* clock of the last use */
};

struct text_cache {
    struct entry entries[TEXT_CACHE_ENTRIES];
    size_t bytes, max_bytes;
    int64_t clock;
};

static size_t id_bytes(const struct text_key *key) {
    return key->id_count * sizeof(*key->ids);
}

static size_t weight_bytes(const struct text_key *key) {
    return key->weights ? key->id_count * sizeof(*key->weights) : 0;
}

static size_t key_bytes(const struct text_key *key) {
    return id_bytes(key) + weight_bytes(key);
}

static size_t block_bytes(const struct entry *e) {
    return e->bytes + key_bytes(&e->key);
}

static bool same_key(const struct text_key *a, const struct text_key *b) {
    return a->id_count == b->id_count && a->clip_skip == b->clip_skip &&
           a->adapters == b->adapters && weight_bytes(a) == weight_bytes(b) &&
           memcmp(a->ids, b->ids, id_bytes(a)) == 0 &&
           (!a->weights || memcmp(a->weights, b->weights, weight_bytes(a)) == 0);
}

struct text_cache *text_cache_create(size_t max_bytes) {
    struct text_cache *cache = calloc(1, sizeof(*cache));
    if (cache)
        cache->max_bytes = max_bytes;
    return cache;
}

static void count(struct text_cache *cache, size_t bytes) {
    cache->bytes = bytes;
    metric_set(METRIC_text_cache_bytes, (int64_t)bytes);
}

static void drop(struct text_cache *cache, struct entry *e) {
    count(cache, cache->bytes - block_bytes(e));
    free(e->block);
    *e = (struct entry){ 0 };
}

void text_cache_destroy(struct text_cache *cache) {
    for (int i = 0; cache && i < TEXT_CACHE_ENTRIES; i++)
        if (cache->entries[i].block)
            drop(cache, &cache->entries[i]);
    free(cache);
}

const void *text_cache_find(struct text_cache *cache, const struct text_key *key, size_t bytes) {
    for (int i = 0; cache && i < TEXT_CACHE_ENTRIES; i++) {
        struct entry *e = &cache->entries[i];
        if (e->block && e->bytes == bytes && same_key(&e->key, key)) {
            e->used = ++cache->clock;
            metric_add(METRIC_text_cache_hits_total, 1);
            return e->block;
        }
    }
    metric_add(METRIC_text_cache_misses_total, 1);
    return NULL;
}

/* Returns a free entry, else the least recently used one. `kept`: never returns a free entry. */
static struct entry *oldest(struct text_cache *cache, bool kept) {
    struct entry *found = NULL;
    for (int i = 0; i < TEXT_CACHE_ENTRIES; i++) {
        struct entry *e = &cache->entries[i];
        if ((!kept || e->block) && (!found || e->used < found->used))
            found = e;
    }
    return found;
}

void text_cache_put(
    struct text_cache *cache, const struct text_key *key, const void *encoded, size_t bytes) {
    const size_t all = bytes + key_bytes(key);
    if (!cache || all > cache->max_bytes)
        return;
    while (cache->bytes > cache->max_bytes - all)
        drop(cache, oldest(cache, true));
    struct entry *e = oldest(cache, false);
    if (e->block)
        drop(cache, e);
    char *block = malloc(all);
    if (!block)
        return;
    memcpy(block, encoded, bytes);
    memcpy(block + bytes, key->ids, id_bytes(key));
    if (key->weights)
        memcpy(block + bytes + id_bytes(key), key->weights, weight_bytes(key));
    *e = (struct entry){ *key, bytes, block, ++cache->clock };
    e->key.ids = (const int32_t *)(block + bytes);
    if (key->weights)
        e->key.weights = (const float *)(block + bytes + id_bytes(key));
    count(cache, cache->bytes + all);
}
