/* The file of what a tuner measured: one line for each problem, with the figures, for one identity.
 * It is written whole under another name and then renamed; a file that is damaged, of another
 * version or of another identity counts as empty, and a log line says so, with the parts of the
 * identity that differ. */
#ifndef KERNELS_TUNER_CACHE_H
#define KERNELS_TUNER_CACHE_H

#include "kernels/tuner.h"

struct tuner_entry {
    char key[TUNER_KEY_BYTES];
    char name[TUNER_NAME_BYTES]; /* the fastest right candidate */
    double us, default_us;       /* of it, and of what is used without tuning; 0: that is wrong */
    int candidates, wrong;       /* how many were tried, and found wrong or faulting */
};

struct tuner_cache {
    char identity[TUNER_IDENTITY_BYTES];
    struct tuner_entry *entries; /* owned */
    int count;
};

/* An empty one for this identity. */
void tuner_cache_init(struct tuner_cache *cache, const char *identity);
void tuner_cache_finish(struct tuner_cache *cache);

/* LATENTD_TUNER_CACHE, or $XDG_CACHE_HOME/latentd/tuner-HASH.txt (~/.cache/... without), where the
 * hash is that of the identity's first part, the chip: what was measured there with other code is
 * found, and refused by name. False without a home. */
bool tuner_cache_path(const char *identity, char *path, size_t size);

/* Fills an initialised cache; leaves it empty where there is no usable file. */
void tuner_cache_load(struct tuner_cache *cache, const char *path);
/* Adds, or replaces the entry of that key; at most TUNER_SHAPES_MAX. */
bool tuner_cache_put(struct tuner_cache *cache, const struct tuner_entry *entry, struct error *err)
    __attribute__((warn_unused_result));
const struct tuner_entry *tuner_cache_find(const struct tuner_cache *cache, const char *key);
/* Makes the folder if need be. */
bool tuner_cache_store(const struct tuner_cache *cache, const char *path, struct error *err)
    __attribute__((warn_unused_result));

/* Gives all entries to the tuner; how many. */
int tuner_cache_apply(const struct tuner_cache *cache, const struct tuner *tuner);

#endif
