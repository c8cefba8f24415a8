/* Captions that are lists of tags, in another order in each epoch, as kohya's scripts shuffle them:
 * models then learn each tag by itself, not its place.
 *
 * A caption is split at `separator`; surrounding white space of tags is left out. The first
 * keep_tokens tags keep their places. If the caption contains `keep_separator`, the tags before it
 * keep their places instead, and so do those after a second one. The result is joined by ", ".
 *
 * The order is that of Python's random.shuffle after random.seed(key). */
#ifndef TRAIN_EXAMPLES_SHUFFLE_H
#define TRAIN_EXAMPLES_SHUFFLE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct shuffle_options {
    const char *separator;      /* borrowed; NULL: "," */
    const char *keep_separator; /* borrowed; NULL: none */
    int64_t keep_tokens;
};

/* Returns the key of a picture in an epoch: ((seed * 1000003 + epoch) * 1000003 + item) mod
 * 2^64. */
uint64_t shuffle_key(uint64_t seed, int64_t epoch, int64_t item);

/* Sets *out to the shuffled caption, malloc'd. */
bool shuffle_caption(const struct shuffle_options *options, const char *caption, uint64_t key,
    char **out, struct error *err) __attribute__((warn_unused_result));

#endif
