/* Chooses the images of the next model call, as a pure function.
 *
 * The work of a request is known exactly: the flops of the evaluations and decodes left for its
 * images. The request with the least work left is served first, which minimises the mean waiting
 * time. A fraction of the time since its arrival is subtracted, so that no request waits for ever:
 * a request with w seconds of work left can only be overtaken by requests that arrive within w /
 * POLICY_AGEING after it. A priority multiplies the work left. Sizes and decodes have no special
 * rules; a decode is the last piece of an image's work. The first image in the order
 * decides what the call does, and later images that fit into the same call join it.
 *
 * The rank orders one caller's requests; turns (engine/drawing/turns.h) merge the requests of
 * several callers into one order. An image joins a call only if the call slows no other caller in
 * it beyond its share: with n callers, a call takes at most n times as long as it would with the
 * images of any one of them. A call takes more images only if this lowers its time per row. On a
 * device that gains nothing from wider calls, requests wait less on average if images are drawn one
 * after the other (POLICY_GAIN). */
#ifndef ENGINE_DRAWING_POLICY_H
#define ENGINE_DRAWING_POLICY_H

#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>

#define POLICY_AGEING 0.1

/* A call takes several images only if this lowers its time per row by at least this share, compared
 * with its first image alone. */
#define POLICY_GAIN 0.1

/* Returns the rank of a request that arrived `waited_s` seconds ago and has `work_s` seconds of
 * work left. The lowest rank is served first. Each priority level above 0 halves the work, each
 * level below 0 doubles it. */
double policy_rank(double work_s, double waited_s, int priority);

enum policy_state {
    POLICY_CODING, /* the VAE is next: to decode the image's latents or to encode its request's
                      pictures */
    POLICY_STEPPING,
    POLICY_NEW, /* not begun; takes memory when it begins */
};

struct policy_image {
    uint64_t caller;   /* the account; only compared for equality */
    double turn, rank; /* of its request; rank decides between equal turns */
    enum policy_state state;
    int size;        /* only images of one size share a UNet call */
    int rows;        /* that it takes in a UNet call */
    int call_images; /* the most images of its size in one UNet call, and half of the most rows; one
                        image alone may have more rows */
    bool alone;      /* must not share a UNet call */
};

struct policy_call {
    bool codes;                       /* true: the VAE, false: the UNet */
    int count;                        /* 0: there is nothing to do */
    int images[UNET_CALL_MAX_IMAGES]; /* indices; the first one leads the call */
};

struct policy_limits {
    int call_rows; /* the most rows of a UNet call; one image alone may have more */
    bool no_new;   /* true: skip POLICY_NEW images */
    /* The time of a call for each number of rows, in any unit. Must not fall as rows increase.
     * NULL: unknown; shares then count rows, and a call takes all images that fit. */
    const double *cost; /* [UNET_CALL_MAX_ROWS + 1] */
};

/* Chooses the images of the next call. The order is by turn, then by rank, then by enum
 * policy_state, then by position in the list; the lowest comes first. */
void policy_choose(const struct policy_image *images, int count, const struct policy_limits *limits,
    struct policy_call *out);

#endif
