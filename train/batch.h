/* One batch of pictures and texts, from what is drawn for each to what a pass takes:
 *
 *   batch_begin   draws how each picture is taken: for one after the other crop, side and caption
 *                   top   randint(0, tops), left  randint(0, lefts)   where it is cut anew
 *                   f     rand                  mirrored where f < 0.5            (random_flip)
 *                   k     rand                  caption floor(k captions)  where it has several
 *                 with prior preservation a class picture behind each instance; then, of Python's
 *                 generator, a mask for each row
 *   batch_fetch   a row's latents and text, from the cache or computed
 *   batch_take    draws noise, timesteps and dropped captions (train/draws.h)
 *
 * Rows of class pictures follow all of the instances', as diffusers' scripts put them together. The
 * input of an inpainting UNet is [noisy latents, mask, masked latents].
 *
 * One thread at a time, the one that computes. */
#ifndef TRAIN_BATCH_H
#define TRAIN_BATCH_H

#include "kernels/noise.h"
#include "train/config.h"
#include "train/encoded.h"
#include "train/pass.h"

struct batch_options {
    const struct train_config *config;
    const struct train_source *source;
    struct encoded *encoded;
    const struct vae *vae;
    const float *alphas_cumprod; /* [num_train_timesteps] */
    int num_train_timesteps;
    bool v_prediction;
    bool inpainting;
};

struct batch;

/* Everything is borrowed as long as it. */
bool batch_create(const struct batch_options *options, struct batch **out, struct error *err)
    __attribute__((warn_unused_result));
void batch_destroy(struct batch *batch); /* NULL is fine */

/* The rows of a full batch: twice train_batch_size with prior preservation. */
int64_t batch_rows_max(const struct train_config *config);
/* Samples of an epoch: pictures, or class pictures where these are more. */
int64_t batch_samples(const struct train_config *config, const struct train_source *source);

/* Samples of an epoch; all have one size. `masks`: a generator of Python's. */
void batch_begin(struct batch *batch, const int64_t *samples, int64_t count,
    struct noise_generator *generator, struct mt19937 *masks);
/* Once all rows are fetched: the samples that batch_begin will be given next, with the generator as
 * it is now, so that their pictures can be decoded meanwhile. What is drawn does not follow from
 * it. Or they will be others after all. */
void batch_expect(struct batch *batch, const int64_t *samples, int64_t count,
    const struct noise_generator *generator);
void batch_expect_none(struct batch *batch);
/* Pictures of the source, held out or not, in the middle, as they are, with their first captions.
 * At most train_batch_size. */
void batch_begin_plain(
    struct batch *batch, const int64_t *items, int64_t count, struct mt19937 *masks);
/* One row more; *done after the last one. */
bool batch_fetch(struct batch *batch, bool *done, struct error *err)
    __attribute__((warn_unused_result));
/* Then: every row's loss counts with the config's weight times `scale`. Valid until the batch
 * begins again. */
struct pass_batch batch_take(struct batch *batch, struct noise_generator *generator, double scale);

struct batch_shape {
    int64_t rows, height, width; /* of the latents */
};
struct batch_shape batch_get_shape(const struct batch *batch);

#endif
