/* Which size a picture is trained at: where it is resized to and how much of it is cut out.
 *
 * Without buckets as diffusers' scripts: torchvision's Resize(resolution), so that the shorter side
 * has that many pixels, then a crop of resolution x resolution. With buckets as kohya's sd-scripts:
 * sizes of about resolution^2 pixels with sides that are multiples of a step; a picture goes to the
 * one whose aspect ratio is nearest, the first in order of width and height on a tie. */
#ifndef TRAIN_DATA_BUCKET_H
#define TRAIN_DATA_BUCKET_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct bucket_options {
    int resolution; /* pixels a side; with buckets the square root of the area */
    bool enabled;
    int min_px, max_px, step_px; /* of a bucket's sides */
    bool no_upscale;             /* smaller pictures keep their size, cut to multiples of step_px */
};

#define BUCKET_OPTIONS_DEFAULT                                                                     \
    { .resolution = 512, .min_px = 256, .max_px = 1024, .step_px = 64 }

struct bucket {
    int width, height;
};

/* A picture's way to its bucket. */
struct placement {
    int resized_width, resized_height;
    struct bucket bucket; /* not larger than that */
    bool floor_centre;    /* how an odd rest is halved in the middle */
};

/* What is cut out of the resized picture, in this order. */
struct crop {
    int top, left;
    bool flip; /* then left and right change places */
};

/* ERROR_INVALID names the option. Not called is fine where they are the defaults. */
bool bucket_options_check(const struct bucket_options *options, struct error *err)
    __attribute__((warn_unused_result));

/* The predefined sizes, sorted; at most DATASET_BUCKETS_MAX. How many. */
int bucket_list(const struct bucket_options *options, struct bucket *out);

/* Where a picture of width x height goes. ERROR_INVALID where, with no_upscale, it is smaller than
 * one step. */
bool bucket_place(const struct bucket_options *options, int width, int height,
    struct placement *out, struct error *err) __attribute__((warn_unused_result));

/* How many values a random crop's top and left have: they are 0 to one less. torchvision draws
 * randint(0, tops), then randint(0, lefts), and neither where both are 1. */
int placement_tops(const struct placement *placement);
int placement_lefts(const struct placement *placement);
struct crop placement_centre(const struct placement *placement);

#endif
