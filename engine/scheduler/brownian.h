/* The Brownian noise of one image, as torchsde's BrownianTree draws it from a seed. For each
 * evaluation of a plan that asks for it, this is (W(to) - W(from)) / sqrt(distance), where W is a
 * Brownian motion in sigma. The k-diffusion samplers called SDE in k-diffusion and diffusers take
 * their noise this way, so that the noise between two sigmas is the same for every number of steps.
 *
 * The motion is a binary tree. The increment of a span is drawn once and split at the span's
 * middle, with a generator seeded by the span's place in the tree, down to a millionth of sigma.
 * The spans of a plan descend, so one walk through the tree, highest sigma first, meets them all in
 * order and draws nothing twice. A thread per tree walks a few draws ahead of the sampler; the
 * values do not depend on how far ahead it is. */
#ifndef ENGINE_SCHEDULER_BROWNIAN_H
#define ENGINE_SCHEDULER_BROWNIAN_H

#include "engine/scheduler/scheduler.h"
#include "kernels/random/noise.h"

struct brownian;

/* Makes the tree of `plan` (which must draw Brownian noise) for `count` values; `seed` is
 * torchsde's entropy. RNG_CUDA: as for a tensor on a CUDA device, with CUDA generators in the
 * nodes. `ahead`: draw on a thread of its own if one can be started; otherwise within
 * brownian_draw. Borrows nothing. */
bool brownian_create(const struct scheduler_plan *plan, enum rng_kind kind, uint64_t seed,
    int64_t count, bool ahead, struct brownian **out, struct error *err)
    __attribute__((warn_unused_result));
void brownian_destroy(struct brownian *brownian); /* NULL is fine; waits for at most one draw */

/* Writes the noise of the plan's next evaluation that draws Brownian noise. Call it at most once
 * for each such evaluation. One thread at a time. */
void brownian_draw(struct brownian *brownian, float *out);

/* Whether the tree over the sigmas low..high, which resolves a millionth, has noise between `from`
 * and `to`. */
bool brownian_resolves(float low, float high, float from, float to);

#endif
