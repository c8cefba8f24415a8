/* Who is in the next call of a model, as a pure function.
 *
 * A request's work is known exactly: the flops of the evaluations and decodes that its images have
 * before them. Whoever has the least left goes first, which makes the mean of all waiting times
 * least, minus a share of the time that has passed since it came, so that nobody waits for ever: a
 * request with w seconds of work left is passed by those only that come within w / POLICY_AGEING
 * after it. Priorities multiply the work that is left. A decode is the last piece of an image's
 * work like any other, and sizes take turns by the same rule: the first image decides what the call
 * is, those behind it that can be in the same call come along.
 *
 * That is the order of one caller's requests; turns (engine/turns.h) put those of several callers
 * into one order. An image joins a call only while this slows no other caller in it beyond its
 * share: with n callers, a call takes at most n times as long as it would with the images of any
 * one of them. */
#ifndef ENGINE_POLICY_H
#define ENGINE_POLICY_H

#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>

#define POLICY_AGEING 0.1

/* The rank of a request with `work_s` seconds of work left that came `waited_s` seconds ago; the
 * least goes first. Each level of priority halves the work, each below 0 doubles it. */
double policy_rank(double work_s, double waited_s, int priority);

enum policy_state {
    POLICY_CODING, /* the VAE is next: on its latents, or on the pictures that it begins with */
    POLICY_STEPPING,
    POLICY_NEW, /* nothing was done for it yet, and it takes memory when that begins */
};

struct policy_image {
    uint64_t caller;   /* a number that means nothing here */
    double turn, rank; /* its request's: the rank decides between equal turns */
    enum policy_state state;
    int size;        /* images of other sizes share no UNet call */
    int rows;        /* of a UNet call */
    int call_images; /* of its size, in one UNet call */
    bool alone;      /* in its UNet calls */
};

struct policy_call {
    bool codes;                       /* the VAE; else the UNet */
    int count;                        /* 0: there is nothing to do */
    int images[UNET_CALL_MAX_IMAGES]; /* indices, the first ranked first */
};

struct policy_limits {
    int call_rows; /* of a UNet call, unless its first image has more alone */
    bool no_new;   /* passes over new images */
    /* How long a call of so many rows takes, in any unit; never less than one of fewer rows. NULL:
     * as long as its rows. */
    const double *cost; /* [UNET_CALL_MAX_ROWS + 1] */
};

/* The least turn goes first. Among images of the same turn and rank, those whose latents are there
 * go before those on their way, and these before new ones, else the first in the list. */
void policy_choose(const struct policy_image *images, int count, const struct policy_limits *limits,
    struct policy_call *out);

#endif
