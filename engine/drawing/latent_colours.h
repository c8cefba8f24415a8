/* Converts latents to colours by a linear map, one pixel per latent. Previews use it, where a
 * decode would take too long. Each checkpoint has its own map: a least-squares fit to the latents
 * that its VAE encodes from a picture of coloured squares. */
#ifndef ENGINE_DRAWING_LATENT_COLOURS_H
#define ENGINE_DRAWING_LATENT_COLOURS_H

#include "base/error.h"

#include <stdint.h>

#define LATENT_COLOURS_CHANNELS_MAX 32
#define LATENT_COLOURS_PX 128 /* side of the picture */

struct latent_colours {
    int channels;
    /* For red, green and blue in -1..1: a weight for each latent channel, then a constant. */
    float weights[3][LATENT_COLOURS_CHANNELS_MAX + 1];
};

/* Fills the picture of coloured squares: [LATENT_COLOURS_PX][LATENT_COLOURS_PX][3] in -1..1. */
void latent_colours_fill(float *picture);

/* Fits the map to the encoded picture. latents: [side][side][stride]. Uses the first `channels`
 * values of each latent, times `scale`. ERROR_UNSUPPORTED for more than LATENT_COLOURS_CHANNELS_MAX
 * channels. */
bool latent_colours_fit(const float *latents, int side, int stride, int channels, float scale,
    struct latent_colours *out, struct error *err) __attribute__((warn_unused_result));

/* latents: [channels][pixels]; out: [pixels][3]. */
void latent_colours_apply(
    const struct latent_colours *colours, const float *latents, int64_t pixels, uint8_t *out);

#endif
