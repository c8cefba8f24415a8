#include "train/examples/draws.h"

#include <math.h>

/* Visits the batch in memory order; `drawn` is the element's position in torch's order,
 * [rows][channels][height][width]. */
#define FOR_EACH(b, row, channel, i, drawn)                                                        \
    for (int64_t row = 0, i = 0, pixels_ = (b)->shape.height * (b)->shape.width;                   \
         row < (b)->shape.rows; row++)                                                             \
        for (int64_t pixel_ = 0; pixel_ < pixels_; pixel_++)                                       \
            for (int64_t channel = 0, drawn = row * (b)->shape.channels * pixels_ + pixel_;        \
                 channel < (b)->shape.channels; channel++, i++, drawn += pixels_)

static int64_t elements(const struct draws_shape *s) {
    return s->rows * s->height * s->width * s->channels;
}

float draws_uniform(struct mt19937 *mt) {
    return (float)(mt19937_next(mt) & 0xffffffu) * 0x1p-24f;
}

/* Fisher-Yates shuffle from the front, as in torch.randperm. */
void draws_permutation(struct mt19937 *mt, int64_t count, int64_t *out) {
    for (int64_t i = 0; i < count; i++)
        out[i] = i;
    for (int64_t i = 0; i + 1 < count; i++) {
        const int64_t j = i + (int64_t)(mt19937_next(mt) % (uint64_t)(count - i));
        const int64_t moved = out[i];
        out[i] = out[j];
        out[j] = moved;
    }
}

/* Computes out = (mean + exp(log_variance / 2) z) scaling_factor with newly drawn z. */
static void sample(struct noise_generator *generator, const struct draws_options *o,
    const struct draws_batch *b, const float *mean, const float *log_variance, float *out) {
    noise_draw(generator, b->work, elements(&b->shape));
    FOR_EACH(b, row, channel, i, drawn) {
        const float deviation = expf(0.5f * fminf(fmaxf(log_variance[i], -30), 20));
        out[i] = (mean[i] + deviation * b->work[drawn]) * o->scaling_factor;
    }
}

static void draw_noise(struct noise_generator *generator, const struct draws_options *o,
    const struct draws_batch *b, float *noise) {
    noise_draw(generator, b->work, elements(&b->shape));
    FOR_EACH(b, row, channel, i, drawn) {
        noise[i] = b->work[drawn];
    }
    if (o->noise_offset == 0)
        return;
    noise_draw(generator, b->work, b->shape.rows * b->shape.channels);
    FOR_EACH(b, row, channel, i, drawn) {
        noise[i] += o->noise_offset * b->work[row * b->shape.channels + channel];
    }
}

/* On entry noisy has the latents, target the noise and work the perturbation. On return noisy has
 * the noisy latents and target the training target. */
static void mix(const struct draws_options *o, const struct draws_batch *b) {
    FOR_EACH(b, row, channel, i, drawn) {
        const float a = o->alphas_cumprod[b->timesteps[row]];
        const float signal = sqrtf(a), rest = sqrtf(1 - a);
        const float latent = b->noisy[i], noise = b->target[i];
        const float used = o->input_perturbation == 0
                               ? noise
                               : noise + o->input_perturbation * b->work[drawn];
        b->noisy[i] = signal * latent + rest * used;
        if (o->v_prediction)
            b->target[i] = signal * noise - rest * latent;
    }
}

void draws_take(
    struct noise_generator *generator, const struct draws_options *o, const struct draws_batch *b) {
    const int64_t rows = b->shape.rows;
    sample(generator, o, b, b->mean, b->log_variance, b->noisy);
    if (b->masked_mean)
        sample(generator, o, b, b->masked_mean, b->masked_log_variance, b->masked);
    draw_noise(generator, o, b, b->target);
    if (o->input_perturbation != 0)
        noise_draw(generator, b->work, elements(&b->shape));
    for (int64_t row = 0; row < rows; row++)
        b->timesteps[row] = (int32_t)(mt19937_next(&generator->mt) %
                                      (uint32_t)o->num_train_timesteps);
    for (int64_t row = 0; row < rows; row++)
        b->dropped[row] = o->caption_dropout > 0 &&
                          draws_uniform(&generator->mt) < o->caption_dropout;
    mix(o, b);
}

void draws_skip(struct noise_generator *generator, const struct draws_options *o,
    const struct draws_shape *shape, bool masked) {
    const int64_t all = elements(shape);
    noise_skip(generator, all);
    if (masked)
        noise_skip(generator, all);
    noise_skip(generator, all);
    if (o->noise_offset != 0)
        noise_skip(generator, shape->rows * shape->channels);
    if (o->input_perturbation != 0)
        noise_skip(generator, all);
    mt19937_skip(&generator->mt, o->caption_dropout > 0 ? 2 * shape->rows : shape->rows);
}
