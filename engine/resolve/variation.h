/* Variations of a seed's first noise, as AUTOMATIC1111 makes them: a subseed that turns it towards
 * the noise of another seed, and a size for which the noise was made before. The formulas are those
 * of its modules/rng.py (first() and slerp()). */
#ifndef ENGINE_RESOLVE_VARIATION_H
#define ENGINE_RESOLVE_VARIATION_H

#include "base/error.h"
#include "kernels/random/noise.h"

/* Shape of the latents of one image. */
struct latent_shape {
    int64_t channels, height, width;
};

struct noise_variation {
    enum rng_kind kind;
    uint64_t seed;         /* of the image */
    double strength;       /* 0: none; up to 1: the subseed's noise alone */
    uint64_t subseed;      /* of the noise towards which the seed's is turned */
    int64_t height, width; /* of the latents for which the noise is made; 0: those that are drawn */
};

/* Changes `noise`, [c][h][w], which is the noise that the image's generator drew: its first, or
 * with a picture its second:
 *
 * - with a size of its own, the seed's noise for that size replaces the middle; where that is
 *   larger, its middle is taken;
 * - with a strength, this noise is turned towards the subseed's by that share of the angle between
 *   them. Each column [h] of each channel has an angle of its own, as in AUTOMATIC1111.
 *
 * The subseed's noise and that of another size are the first of generators of their own.
 * ERROR_NO_MEMORY. */
bool noise_vary(const struct noise_variation *variation, const struct latent_shape *shape,
    float *noise, struct error *err) __attribute__((warn_unused_result));

#endif
