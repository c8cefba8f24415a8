/* The file with a tuner's measurements for one identity, one line for each problem. It is written
 * completely under another name and then renamed. A file that is damaged, of another version or of
 * another identity counts as empty. A log line then says so and names the parts of the identity
 * that differ. */
#ifndef KERNELS_TUNER_CACHE_H
#define KERNELS_TUNER_CACHE_H

#include "kernels/tuner.h"

struct tuner_entry {
    char key[TUNER_KEY_BYTES];
    char name[TUNER_NAME_BYTES]; /* the fastest right candidate */
    double us, default_us;       /* times of `name` and of the untuned choice (0: that is wrong) */
    int candidates, wrong;       /* how many were tried, and how many were wrong or faulted */
};

struct tuner_cache {
    char identity[TUNER_IDENTITY_BYTES];
    struct tuner_entry *entries; /* owned */
    int count;
};

/* Makes an empty cache for this identity. */
void tuner_cache_init(struct tuner_cache *cache, const char *identity);
void tuner_cache_finish(struct tuner_cache *cache);

/* Writes the path of the file: LATENTD_TUNER_CACHE, or $XDG_CACHE_HOME/latentd/tuner-HASH.txt
 * (~/.cache/... if that is not set). HASH is the hash of the identity's first part, the chip. A
 * file that was measured on this chip with other code is therefore found, and ignored with a log
 * line that says why. Returns false if there is no home directory. */
bool tuner_cache_path(const char *identity, char *path, size_t size);

/* Fills an initialised cache; leaves it empty if there is no usable file. */
void tuner_cache_load(struct tuner_cache *cache, const char *path);
/* Adds an entry, or replaces the entry with the same key. Fails if the cache already has
 * TUNER_SHAPES_MAX entries. */
bool tuner_cache_put(struct tuner_cache *cache, const struct tuner_entry *entry, struct error *err)
    __attribute__((warn_unused_result));
const struct tuner_entry *tuner_cache_find(const struct tuner_cache *cache, const char *key);
/* Writes the file, and creates its folders if needed. */
bool tuner_cache_store(const struct tuner_cache *cache, const char *path, struct error *err)
    __attribute__((warn_unused_result));

/* Passes all entries to the tuner's `choose`. Returns how many it accepted. */
int tuner_cache_apply(const struct tuner_cache *cache, const struct tuner *tuner);

#endif
