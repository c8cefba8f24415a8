/* Where a job's pictures and captions come from: a data set (train/data/), or in tests anything.
 *
 * Pictures are counted from 0: first `count` that are trained on, each as often as it is repeated,
 * then `held_out` that are only compared with, then `class_count` of prior preservation. The
 * engine's thread asks. */
#ifndef TRAIN_SOURCE_H
#define TRAIN_SOURCE_H

#include "base/sha256.h"
#include "train/data/bucket.h"

struct train_source {
    void *user;
    int64_t count, held_out, class_count;
    /* How it comes to the size in which it is trained; borrowed as long as the source. */
    const struct placement *(*placement)(void *user, int64_t item);
    /* Adds whatever its pixels follow from, beside its placement and crop: equal names, equal
     * pixels and masks. */
    void (*name)(void *user, int64_t item, struct sha256 *to);
    int (*captions)(void *user, int64_t item); /* 1 or more */
    /* UTF-8, borrowed as long as the source. */
    const char *(*caption)(void *user, int64_t item, int which);
    /* f32 [height][width][3] in -1..1 of what `crop` leaves. mask: [height][width] of 0 and 1 of
     * the file beside it, where 1 is drawn anew; NULL: it is not wanted. */
    bool (*pixels)(void *user, int64_t item, const struct crop *crop, float *pixels, float *mask,
        struct error *err);
    /* Says whose pixels will be asked for next, after those that it said before, so that they can
     * be decoded meanwhile: pixels() gives the same without. False: there is no room for more now.
     * NULL: nothing is decoded ahead. */
    bool (*expect)(void *user, int64_t item, const struct crop *crop, bool with_mask);
    bool (*expects)(void *user); /* whether something that it said has not been asked for yet */
};

static inline int64_t train_source_all(const struct train_source *source) {
    return source->count + source->held_out + source->class_count;
}

/* In px. */
static inline struct bucket train_source_size(const struct train_source *source, int64_t item) {
    return source->placement(source->user, item)->bucket;
}

#endif
