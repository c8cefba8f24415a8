/* Chooses the images of the next model call, as a pure function.
 *
 * The work of a request is known exactly: the flops of the evaluations and decodes left for its
 * images. The request with the least work left goes first, which minimises the mean waiting time. A
 * share of the time since its arrival is subtracted, so that no request waits for ever: a request
 * with w seconds of work left is passed only by requests that arrive within w / POLICY_AGEING after
 * it. Priorities multiply the work left. A decode counts as the last piece of an image's work and
 * has no rule of its own. Sizes have none either: the image that goes first decides what the call
 * does, and later images that fit into the same call join it.
 *
 * The rank orders one caller's requests; turns (engine/drawing/turns.h) merge the requests of
 * several callers into one order. An image joins a call only if the call slows no other caller in
 * it beyond its share: with n callers, a call takes at most n times as long as it would with the
 * images of any one of them. And a call takes more images only as far as that saves time for each:
 * on a device that gains nothing from wider calls, drawing one image after the other lets requests
 * wait less on average (POLICY_GAIN). */
#ifndef ENGINE_DRAWING_POLICY_H
#define ENGINE_DRAWING_POLICY_H

#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>

#define POLICY_AGEING 0.1

/* A call takes several images only if its time per row is lower by at least this share than that of
 * its first image alone. */
#define POLICY_GAIN 0.1

/* The rank of a request with `work_s` seconds of work left that arrived `waited_s` seconds ago; the
 * lowest goes first. Each priority level above 0 halves the work, each below 0 doubles it. */
double policy_rank(double work_s, double waited_s, int priority);

enum policy_state {
    POLICY_CODING, /* the VAE is next: it decodes the image's latents or encodes its request's
                      pictures */
    POLICY_STEPPING,
    POLICY_NEW, /* nothing was done for it yet; it takes memory when it begins */
};

struct policy_image {
    uint64_t caller;   /* a number that has no meaning here */
    double turn, rank; /* of its request: the rank decides between equal turns */
    enum policy_state state;
    int size;        /* images of other sizes share no UNet call */
    int rows;        /* of a UNet call */
    int call_images; /* the most images of its size in one UNet call */
    bool alone;      /* it shares no UNet call */
};

struct policy_call {
    bool codes;                       /* true: the VAE, false: the UNet */
    int count;                        /* 0: there is nothing to do */
    int images[UNET_CALL_MAX_IMAGES]; /* indices; the first one is ranked first */
};

struct policy_limits {
    int call_rows; /* the most rows of a UNet call; its first image alone may have more */
    bool no_new;   /* skips new images */
    /* How long a call with that many rows takes, in any unit; must not fall with the rows. NULL:
     * unknown; shares then count rows, and calls take all that fit. */
    const double *cost; /* [UNET_CALL_MAX_ROWS + 1] */
};

/* Chooses the call. The lowest turn goes first, then the lowest rank, then the order of enum
 * policy_state, then the order of the list. */
void policy_choose(const struct policy_image *images, int count, const struct policy_limits *limits,
    struct policy_call *out);

#endif
