/* Latents to colours by a linear map, one pixel a latent: what previews are made by where a decode
 * would take too long. The map is the checkpoint's own: least squares over what its VAE's encoder
 * makes of a picture of coloured squares. */
#ifndef ENGINE_LATENT_COLOURS_H
#define ENGINE_LATENT_COLOURS_H

#include "base/error.h"

#include <stdint.h>

#define LATENT_COLOURS_CHANNELS_MAX 32
#define LATENT_COLOURS_PX 128 /* a side of the picture */

struct latent_colours {
    int channels;
    /* red, green, blue in -1..1: the latents' weights, then a constant */
    float weights[3][LATENT_COLOURS_CHANNELS_MAX + 1];
};

/* The picture: [LATENT_COLOURS_PX][LATENT_COLOURS_PX][3] in -1..1. */
void latent_colours_fill(float *picture);

/* latents: [side][side][stride], of which the first `channels` count, times `scale`: what the
 * picture is encoded to. ERROR_UNSUPPORTED for more channels than LATENT_COLOURS_CHANNELS_MAX. */
bool latent_colours_fit(const float *latents, int side, int stride, int channels, float scale,
    struct latent_colours *out, struct error *err) __attribute__((warn_unused_result));

/* latents: [channels][pixels]; out: [pixels][3]. */
void latent_colours_apply(
    const struct latent_colours *colours, const float *latents, int64_t pixels, uint8_t *out);

#endif
