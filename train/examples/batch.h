/* One batch of pictures and texts, from the random choices for each row to the input of a pass:
 *
 *   batch_begin   draws how each picture is used, one after the other: crop, flip and caption
 *                   top   randint(0, tops), left  randint(0, lefts)   if it is cropped anew
 *                   f     rand                  mirrored if f < 0.5               (random_flip)
 *                   k     rand                  caption floor(k captions)  if it has several
 *                 with prior preservation a class picture after each instance; then a mask per
 *                 row, from Python's generator
 *   batch_fetch   a row's latents and text, from the cache or computed
 *   batch_take    draws noise, timesteps and dropped captions (train/examples/draws.h)
 *
 * Rows of class pictures come after all rows of instances, as in diffusers' scripts. The input of
 * an inpainting UNet is [noisy latents, mask, masked latents].
 *
 * Only the thread that computes may call these functions. */
#ifndef TRAIN_EXAMPLES_BATCH_H
#define TRAIN_EXAMPLES_BATCH_H

#include "kernels/random/noise.h"
#include "train/config.h"
#include "train/examples/encoded.h"
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

/* The options are borrowed until batch_destroy. ERROR_INVALID if a batch of train_batch_size
 * samples has more than TRAIN_PASS_ROWS_MAX rows. */
bool batch_create(const struct batch_options *options, struct batch **out, struct error *err)
    __attribute__((warn_unused_result));
void batch_destroy(struct batch *batch); /* NULL is fine */

/* Returns the rows of a full batch: train_batch_size, or twice as many with prior preservation. */
int64_t batch_rows_max(const struct train_config *config);
/* Returns the samples of an epoch: the number of pictures, or of class pictures if there are
 * more. */
int64_t batch_samples(const struct train_config *config, const struct train_source *source);

/* Begins a batch. `samples` are numbers of samples of an epoch, all of one picture size. `masks` is
 * Python's generator. The captions of instances are shuffled by epoch and sample. */
void batch_begin(struct batch *batch, int64_t epoch, const int64_t *samples, int64_t count,
    struct noise_generator *generator, struct mt19937 *masks);
/* Announces the samples of the next batch_begin, with the generator's current state, so that their
 * pictures can be decoded meanwhile. Call it when all rows are fetched. It has no effect on what is
 * drawn. The next batch may have other samples than announced. */
void batch_expect(struct batch *batch, const int64_t *samples, int64_t count,
    const struct noise_generator *generator);
void batch_expect_none(struct batch *batch);
/* Begins a batch of the source's pictures `items`, held out or not. They are cropped to the middle,
 * not mirrored, and used with their first captions. At most train_batch_size. */
void batch_begin_plain(
    struct batch *batch, const int64_t *items, int64_t count, struct mt19937 *masks);
/* Fetches one more row. *done is set after the last row. */
bool batch_fetch(struct batch *batch, bool *done, struct error *err)
    __attribute__((warn_unused_result));
/* Makes the remaining draws and returns the input of a pass. Call it after the last row. Each row's
 * loss is weighted by the configuration's weight times `scale`. The result is valid until the batch
 * begins again. */
struct pass_batch batch_take(struct batch *batch, struct noise_generator *generator, double scale);

struct batch_shape {
    int64_t rows, height, width; /* size in latents */
};
struct batch_shape batch_get_shape(const struct batch *batch);

/* Skips a batch that another rank computes: advances the generators exactly as batch_begin, the
 * fetches and batch_take of these samples do. It decodes, encodes and allocates nothing, and cannot
 * fail.
 *
 * The batch in progress and its announcements stay as they are. With copies of the generators the
 * function therefore also finds the state for batch_expect, if the next batch of this rank comes
 * after batches of others. Shuffled captions and the dropout of factors draw from keys and counters
 * of their own: the first need nothing, the second need the pass's number among those of all
 * ranks. */
void batch_skip(const struct batch *batch, const int64_t *samples, int64_t count,
    struct noise_generator *generator, struct mt19937 *masks);

#endif
