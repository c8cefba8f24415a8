/* The source of a job's pictures and captions: a data set (train/data/), or anything in tests.
 *
 * Pictures are numbered from 0: first `count` pictures to train on, counting repeats, then
 * `held_out` pictures for the validation loss, then `class_count` of prior preservation. The engine
 * thread calls the functions. */
#ifndef TRAIN_EXAMPLES_SOURCE_H
#define TRAIN_EXAMPLES_SOURCE_H

#include "base/sha256.h"
#include "train/data/bucket.h"

struct train_source {
    void *user;
    int64_t count, held_out, class_count;
    /* Returns how the picture is resized and cropped for training. Borrowed while the source
     * exists. */
    const struct placement *(*placement)(void *user, int64_t item);
    /* Adds everything that the picture's pixels depend on, except its placement and crop, to the
     * digest. Equal names mean equal pixels and masks. */
    void (*name)(void *user, int64_t item, struct sha256 *to);
    int (*captions)(void *user, int64_t item); /* 1 or more */
    /* Returns UTF-8, borrowed while the source exists. */
    const char *(*caption)(void *user, int64_t item, int which);
    /* Reads the part that `crop` leaves: f32 [height][width][3] in -1..1. `mask` is [height][width]
     * of 0 and 1 from the file beside the picture, where 1 is drawn anew; NULL: not wanted. */
    bool (*pixels)(void *user, int64_t item, const struct crop *crop, float *pixels, float *mask,
        struct error *err);
    /* Announces a picture whose pixels will be asked for, after the pictures announced before, so
     * that it can be decoded meanwhile. It does not change the result of pixels(). Returns false if
     * there is no room now. NULL: nothing is decoded ahead. */
    bool (*expect)(void *user, int64_t item, const struct crop *crop, bool with_mask);
    bool (*expects)(void *user); /* an announced picture was not asked for yet */
};

static inline int64_t train_source_all(const struct train_source *source) {
    return source->count + source->held_out + source->class_count;
}

/* In px. */
static inline struct bucket train_source_size(const struct train_source *source, int64_t item) {
    return source->placement(source->user, item)->bucket;
}

#endif
