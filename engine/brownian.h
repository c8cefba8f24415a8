/* One image's Brownian noise, as torchsde's BrownianTree draws it from a seed: for each evaluation
 * of a plan that asks for it, W(to) - W(from) over the root of the distance, W a Brownian motion in
 * sigma. The k-diffusion samplers that k-diffusion and diffusers call SDE take their noise so: what
 * is drawn between two sigmas agrees for every number of steps.
 *
 * The motion is a binary tree: a span's increment is drawn once and split at its middle, with a
 * generator seeded from the span's place in the tree, down to a millionth of sigma. A plan's spans
 * descend, so one walk through the tree, highest sigma first, meets all of them in order and draws
 * nothing twice. A thread of each tree's own walks ahead of the sampler by a few draws; the values
 * do not depend on how far it got.
 */
#ifndef ENGINE_BROWNIAN_H
#define ENGINE_BROWNIAN_H

#include "kernels/noise.h"
#include "engine/scheduler/scheduler.h"

struct brownian;

/* The tree of `plan` (which must draw Brownian noise) for `count` values, the seed as torchsde's
 * entropy. RNG_CUDA: as for a tensor on a CUDA device, whose nodes are drawn by CUDA generators.
 * `ahead`: on a thread of its own, if there can be one; otherwise within brownian_draw. Borrows
 * nothing. */
bool brownian_create(const struct scheduler_plan *plan, enum rng_kind kind, uint64_t seed,
    int64_t count, bool ahead, struct brownian **out, struct error *err)
    __attribute__((warn_unused_result));
void brownian_destroy(struct brownian *brownian); /* NULL is fine; waits for one draw at most */

/* The noise of the plan's next evaluation that draws Brownian noise: at most as many calls as there
 * are of those. One thread at a time. */
void brownian_draw(struct brownian *brownian, float *out);

/* Whether the tree over sigmas low..high, which resolves a millionth, has noise between two. */
bool brownian_resolves(float low, float high, float from, float to);

#endif
