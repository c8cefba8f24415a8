/* The size at which a picture is trained: how it is resized and how much of it is cut out.
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
    int min_px, max_px, step_px; /* of a bucket's sides */
    bool no_upscale; /* smaller pictures keep their size, cropped to multiples of step_px */
};

#define BUCKET_OPTIONS_DEFAULT                                                                     \
    { .resolution = 512, .min_px = 256, .max_px = 1024, .step_px = 64 }

struct bucket {
    int width, height;
};

/* How a picture is brought to its bucket's size. */
struct placement {
    int resized_width, resized_height;
    struct bucket bucket; /* at most the resized size */
    bool floor_centre;    /* rounding of an odd margin in a centre crop: down (kohya), else to even
                             (torchvision) */
};

/* The upper left corner, in px, of the part of the bucket's size that is cut out of the resized
 * picture; then it may be mirrored. */
struct crop {
    int top, left;
    bool flip; /* then mirrored left to right */
};

/* ERROR_INVALID names the option. Not needed for the defaults. */
bool bucket_options_check(const struct bucket_options *options, struct error *err)
    __attribute__((warn_unused_result));

/* Fills in the predefined sizes, sorted; at most DATASET_BUCKETS_MAX. Returns their number. */
int bucket_list(const struct bucket_options *options, struct bucket *out);

/* Places a picture of width x height. ERROR_INVALID if, with no_upscale, it is smaller than one
 * step. */
bool bucket_place(const struct bucket_options *options, int width, int height,
    struct placement *out, struct error *err) __attribute__((warn_unused_result));

/* Number of possible values of a random crop's top and left, which start at 0. torchvision draws
 * randint(0, tops), then randint(0, lefts), and neither if both are 1. */
int placement_tops(const struct placement *placement);
int placement_lefts(const struct placement *placement);
struct crop placement_centre(const struct placement *placement);

#endif
