/* The Brownian noise of one image, as torchsde's BrownianTree draws it from a seed. For each
 * evaluation of a plan that draws it, the noise is (W(to) - W(from)) / sqrt(distance), where W is a
 * Brownian motion in sigma. The samplers called SDE in k-diffusion and diffusers draw their noise
 * this way, so that the noise between two sigmas is the same for every number of steps.
 *
 * The motion is a binary tree. The increment of a span is drawn once and split at the span's
 * middle, with a generator seeded by the span's place in the tree, down to a millionth of sigma.
 * The spans of a plan descend. So one walk through the tree, highest sigma first, visits them all
 * in order and draws nothing twice. Each tree has a thread that walks a few draws ahead of the
 * sampler. The values do not depend on how far ahead it is. */
#ifndef ENGINE_SCHEDULER_BROWNIAN_H
#define ENGINE_SCHEDULER_BROWNIAN_H

#include "engine/scheduler/scheduler.h"
#include "kernels/random/noise.h"

struct brownian;

/* Makes the tree of `plan`, which must draw Brownian noise, for `count` values. `seed` is
 * torchsde's entropy. RNG_CUDA: the nodes use CUDA generators, as for a tensor on a CUDA device.
 * `ahead`: draw on a separate thread, if one can be started; otherwise brownian_draw draws. Borrows
 * nothing. */
bool brownian_create(const struct scheduler_plan *plan, enum rng_kind kind, uint64_t seed,
    int64_t count, bool ahead, struct brownian **out, struct error *err)
    __attribute__((warn_unused_result));
void brownian_destroy(struct brownian *brownian); /* NULL is fine; waits for at most one draw */

/* Writes the noise of the plan's next evaluation that draws Brownian noise. Call it at most once
 * for each such evaluation. One thread at a time. */
void brownian_draw(struct brownian *brownian, float *out);

/* Whether the noise between `from` and `to` is not zero in the tree over the sigmas low..high,
 * whose resolution is a millionth. */
bool brownian_resolves(float low, float high, float from, float to);

#endif
