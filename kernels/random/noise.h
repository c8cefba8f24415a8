/* Normal noise from a seed, as torch.randn draws it, so that a seed gives the same picture here and
 * in diffusers.
 *
 * RNG_CPU is torch.Generator("cpu"), RNG_CUDA torch.Generator("cuda"). Each image has its own
 * generator: a draw depends on the seed and on the sizes of earlier draws, never on the other
 * images of a batch. Draws are in torch's order, which for latents is [channel][row][column].
 *
 * One thread at a time.
 */
#ifndef KERNELS_RANDOM_NOISE_H
#define KERNELS_RANDOM_NOISE_H

#include "kernels/random/mt19937.h"

#include <stdbool.h>
#include <stdint.h>

enum rng_kind {
    RNG_CPU,  /* torch's CPU generator, MT19937 */
    RNG_CUDA, /* torch's CUDA generator, Philox */
};

struct noise_generator {
    enum rng_kind kind;
    /* CPU: the Mersenne Twister, and the second value of the last pair if a small draw did not use
     * it. */
    struct mt19937 mt;
    bool has_cached;
    double cached;
    /* CUDA: the key, and the number of 4-word counters used so far. */
    uint64_t seed, offset;
};

void noise_init(struct noise_generator *generator, enum rng_kind kind, uint64_t seed);

/* Draws torch.randn(count, dtype=float32, generator=generator) for a contiguous tensor. The values
 * agree with torch's to about 1e-6: torch computes logarithm and sine with polynomials of its own.
 *
 * In torch a CUDA draw of more than 2,048 elements per multiprocessor depends on the GPU. The draws
 * here are those of a GPU with 132 multiprocessors (270,336 elements: more than the latents of our
 * largest picture).
 */
void noise_draw(struct noise_generator *generator, float *out, int64_t count);

/* Leaves the generator as noise_draw of `count` values leaves it, bit for bit, without computing
 * the values. Draws of other sizes are not equivalent, even if their counts have the same sum. */
void noise_skip(struct noise_generator *generator, int64_t count);

#endif
