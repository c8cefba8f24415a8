/* Where a job's pictures and captions come from: a data set (train/data/), or in tests anything. */
#ifndef TRAIN_SOURCE_H
#define TRAIN_SOURCE_H

#include "base/error.h"

#include <stdint.h>

/* Pictures are counted from 0 to count - 1, each as often as it is repeated. The engine's thread
 * asks; what it asks for next may be prepared meanwhile. */
struct train_source {
    void *user;
    int64_t count;
    /* The size in which it is trained, in px. */
    void (*size)(void *user, int64_t item, int *height, int *width);
    int (*captions)(void *user, int64_t item); /* 1 or more */
    /* UTF-8, borrowed as long as the source. */
    const char *(*caption)(void *user, int64_t item, int which);
    /* f32 [height][width][3] in -1..1. `crop_y` and `crop_x`, in [0, 1), say where the size is cut
     * out of a picture that has more. */
    bool (*pixels)(
        void *user, int64_t item, float crop_y, float crop_x, float *out, struct error *err);
};

#endif
