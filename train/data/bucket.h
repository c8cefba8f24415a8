/* The size at which a picture is trained: how the picture is resized and cropped.
 *
 * Without buckets this follows diffusers' scripts: torchvision's Resize(resolution), which gives
 * the shorter side that many pixels, then a crop of resolution x resolution. With buckets it
 * follows kohya's sd-scripts: the sizes have about resolution^2 pixels and sides that are multiples
 * of a step. A picture goes to the size with the nearest aspect ratio; on a tie, to the first in
 * order of width and height. */
#ifndef TRAIN_DATA_BUCKET_H
#define TRAIN_DATA_BUCKET_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct bucket_options {
    int resolution; /* side in px; with buckets, the square root of the area */
    bool enabled;
    int min_px, max_px, step_px; /* limits and step of a bucket's sides */
    bool no_upscale;             /* never enlarge; crop smaller pictures to multiples of step_px */
};

#define BUCKET_OPTIONS_DEFAULT                                                                     \
    { .resolution = 512, .min_px = 256, .max_px = 1024, .step_px = 64 }

struct bucket {
    int width, height;
};

/* How a picture is resized and cropped to its bucket's size. */
struct placement {
    int resized_width, resized_height;
    struct bucket bucket; /* not larger than the resized picture */
    bool floor_centre;    /* rounding of an odd margin in a centre crop: down (kohya), else to even
                             (torchvision) */
};

/* The part of the resized picture that is used: its upper left corner in px. Its size is the
 * bucket's. */
struct crop {
    int top, left;
    bool flip; /* then mirrored left to right */
};

/* Checks the options; ERROR_INVALID names the option. Defaults need no check. */
bool bucket_options_check(const struct bucket_options *options, struct error *err)
    __attribute__((warn_unused_result));

/* Fills in the predefined sizes, sorted; at most DATASET_BUCKETS_MAX. Returns their number. */
int bucket_list(const struct bucket_options *options, struct bucket *out);

/* Places a picture of width x height. With no_upscale, a picture smaller than one step is
 * ERROR_INVALID. */
bool bucket_place(const struct bucket_options *options, int width, int height,
    struct placement *out, struct error *err) __attribute__((warn_unused_result));

/* Return how many values a random crop's top, or its left, can have: 0 to that number - 1.
 * torchvision draws randint(0, tops), then randint(0, lefts); it draws nothing if both are 1. */
int placement_tops(const struct placement *placement);
int placement_lefts(const struct placement *placement);
struct crop placement_centre(const struct placement *placement);

#endif
