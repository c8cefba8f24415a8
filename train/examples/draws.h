/* The random draws of a training step, and what is computed from them. Uses torch's CPU generator
 * in the order of diffusers' scripts, so that a job with the same seed gets the same numbers in
 * both.
 *
 *   z       randn [rows][c][h][w]   latents = (mean + exp(log_variance / 2) z) scaling_factor
 *   z2      randn [rows][c][h][w]   latents of the masked pictures          (for inpainting)
 *   noise   randn [rows][c][h][w]
 *   offset  randn [rows][c]         noise += noise_offset offset            (if noise_offset)
 *   p       randn [rows][c][h][w]   used = noise + input_perturbation p     (if input_perturbation)
 *   t       randint(0, num_train_timesteps, [rows])
 *   d       rand [rows]             drop the caption if d < caption_dropout (if caption_dropout)
 *   noisy = sqrt(a) latents + sqrt(1 - a) used, a = alphas_cumprod[t]
 *   target = noise, or sqrt(a) noise - sqrt(1 - a) latents for v-prediction
 *
 * diffusers' scripts drop no captions. Our draw for it comes last, so that the other draws are the
 * same as theirs. */
#ifndef TRAIN_EXAMPLES_DRAWS_H
#define TRAIN_EXAMPLES_DRAWS_H

#include "kernels/random/noise.h"

struct draws_options {
    float noise_offset, input_perturbation, caption_dropout; /* 0: none, and nothing is drawn */
    bool v_prediction;                                       /* false: epsilon */
    int num_train_timesteps;
    const float *alphas_cumprod; /* borrowed: [num_train_timesteps] */
    float scaling_factor;        /* the VAE's */
};

struct draws_shape {
    int64_t rows, height, width, channels;
};

/* All arrays are in host memory with the channels last: [rows][height][width][channels]. */
struct draws_batch {
    struct draws_shape shape;
    const float *mean, *log_variance; /* of the VAE's posterior; logarithm clamped to -30..20 */
    const float *masked_mean, *masked_log_variance; /* for inpainting; else NULL */
    float *masked;                                  /* output: the latents of the masked pictures */
    float *noisy, *target;                          /* outputs, as are timesteps and dropped */
    int32_t *timesteps;                             /* [rows] */
    bool *dropped;                                  /* [rows] */
    float *work;                                    /* scratch, as large as noisy */
};

void draws_take(struct noise_generator *generator, const struct draws_options *options,
    const struct draws_batch *batch);

/* Advances the generator as draws_take does for a batch of this shape. `masked`: with latents of
 * masked pictures. */
void draws_skip(struct noise_generator *generator, const struct draws_options *options,
    const struct draws_shape *shape, bool masked);

/* Do what torch.rand(()) and torch.randperm(count) do. The permutation has the numbers below
 * count. */
float draws_uniform(struct mt19937 *mt);
void draws_permutation(struct mt19937 *mt, int64_t count, int64_t *out);

#endif
