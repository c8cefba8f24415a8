/* The cache of encoded texts: an entry is found under its own key only, the cache stays within its
 * limit of bytes, and the least recently used entry is dropped first. */
#include "base/limits.h"
#include "base/metrics.h"
#include "engine/drawing/text_cache.h"
#include "tests/check.h"

#include <stdlib.h>
#include <string.h>

#define IDS 77

static int32_t ids[IDS];
static char encoded[1000];

static struct text_key key_of(int32_t first, int clip_skip, uint64_t adapters) {
    ids[0] = first;
    return (struct text_key){
        .ids = ids, .id_count = IDS, .clip_skip = clip_skip, .adapters = adapters
    };
}

static void put(struct text_cache *cache, int32_t first) {
    const struct text_key key = key_of(first, 0, 0);
    memset(encoded, first, sizeof(encoded));
    text_cache_put(cache, &key, encoded, sizeof(encoded));
}

static bool has(struct text_cache *cache, int32_t first) {
    const struct text_key key = key_of(first, 0, 0);
    const char *found = text_cache_find(cache, &key, sizeof(encoded));
    memset(encoded, first, sizeof(encoded));
    CHECK(!found || memcmp(found, encoded, sizeof(encoded)) == 0,
        "the cache returns other bytes for text %d", first);
    return found;
}

static void every_part_of_the_key_counts(void) {
    struct text_cache *cache = text_cache_create(1 << 20);
    put(cache, 1);
    CHECK(has(cache, 1), "the text is not found");
    struct text_key key = key_of(2, 0, 0);
    CHECK(!text_cache_find(cache, &key, sizeof(encoded)), "a text with other ids is found");
    key = key_of(1, 1, 0);
    CHECK(!text_cache_find(cache, &key, sizeof(encoded)), "a text with another clip_skip is found");
    key = key_of(1, 0, 7);
    CHECK(!text_cache_find(cache, &key, sizeof(encoded)), "a text with other adapters is found");
    float weights[IDS] = { 1, 1.5f };
    key = key_of(1, 0, 0);
    key.weights = weights;
    CHECK(!text_cache_find(cache, &key, sizeof(encoded)),
        "a text with weights is found before it was stored");
    text_cache_put(cache, &key, encoded, sizeof(encoded));
    CHECK(text_cache_find(cache, &key, sizeof(encoded)), "the text with weights is not found");
    weights[IDS - 1] = 2;
    CHECK(!text_cache_find(cache, &key, sizeof(encoded)), "a text with other weights is found");
    key = key_of(1, 0, 0);
    key.id_count = IDS - 1;
    CHECK(!text_cache_find(cache, &key, sizeof(encoded)), "a text with fewer ids is found");
    key = key_of(1, 0, 0);
    CHECK(!text_cache_find(cache, &key, sizeof(encoded) - 1), "a text of another size is found");
    text_cache_destroy(cache);
}

/* Returns the size of the cache as GET /metrics reports it. */
static size_t bytes_told(void) {
    static const char name[] = "\nlatentd_text_cache_bytes ";
    size_t size;
    char *text = metrics_render(NULL, &size);
    const char *line = text ? strstr(text, name) : NULL;
    const size_t bytes = line ? strtoull(line + strlen(name), NULL, 10) : SIZE_MAX;
    free(text);
    return bytes;
}

static void the_oldest_goes_first(void) {
    const size_t one = sizeof(encoded) + IDS * sizeof(*ids);
    struct text_cache *cache = text_cache_create(3 * one + 5);
    for (int32_t i = 1; i <= 3; i++)
        put(cache, i);
    CHECK(has(cache, 1) && has(cache, 2) && has(cache, 3), "not all of three texts are kept");
    CHECK(has(cache, 1), "the first text is not found");
    put(cache, 4);
    CHECK(has(cache, 1) && !has(cache, 2) && has(cache, 3) && has(cache, 4),
        "the removed text is not the least recently used one");
    CHECK(
        bytes_told() == 3 * one, "the metric says %zu bytes instead of %zu", bytes_told(), 3 * one);
    text_cache_destroy(cache);
    CHECK(bytes_told() == 0, "the metric says %zu bytes of an empty cache", bytes_told());
    cache = text_cache_create(one - 1);
    put(cache, 1);
    CHECK(!has(cache, 1), "a text larger than the cache is kept");
    text_cache_destroy(cache);
}

static void entries_are_limited(void) {
    struct text_cache *cache = text_cache_create((size_t)1 << 30);
    for (int32_t i = 0; i <= TEXT_CACHE_ENTRIES; i++)
        put(cache, i);
    CHECK(!has(cache, 0) && has(cache, 1) && has(cache, TEXT_CACHE_ENTRIES),
        "the removed text is not exactly the oldest");
    text_cache_destroy(cache);
}

int main(void) {
    every_part_of_the_key_counts();
    the_oldest_goes_first();
    entries_are_limited();
    CHECK(!has(NULL, 1), "a cache that does not exist has a text");
    put(NULL, 1);
    text_cache_destroy(NULL);
    return check_done();
}
