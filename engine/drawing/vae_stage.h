/* Converts a picture to latents and back, whole or in tiles.
 *
 * Tiles are those of diffusers (enable_vae_tiling). Their side is the VAE's sample_size. They
 * overlap their neighbours by a quarter of a side, and are blended there with weights from 0 to 1.
 * The memory needed is that of one tile. The result differs slightly from that of the whole
 * picture, because every norm uses the statistics of one tile. */
#ifndef ENGINE_DRAWING_VAE_STAGE_H
#define ENGINE_DRAWING_VAE_STAGE_H

#include "kernels/compute/compute.h"
#include "models/vae.h"

#include <stdint.h>

/* One picture of height x width px. Both sides are multiples of vae_scale. */
struct vae_stage {
    const struct vae *vae;
    int64_t height, width;
    bool tiled; /* ignored for a picture no larger than a tile */
};

/* Whether the picture is larger than a tile in either direction. */
bool vae_stage_has_tiles(const struct vae *vae, int64_t height, int64_t width);

/* Decodes latents, f32 [c][h][w], to image, f32 [height][width][3], about -1..1. Both are on the
 * host. A dry run reads and writes neither. */
void vae_stage_decode(
    struct compute *c, const struct vae_stage *stage, const float *latents, float *image);
/* Does what vae_stage_decode does, but writes 8-bit RGB, rounded as in diffusers. An error if a
 * value is not finite. */
void vae_stage_draw(
    struct compute *c, const struct vae_stage *stage, const float *latents, uint8_t *pixels);
/* Encodes image, f32 [height][width][3] in -1..1, to moments, f32 [h][w][2 c]. Both are on the
 * host. */
void vae_stage_encode(
    struct compute *c, const struct vae_stage *stage, const float *image, float *moments);

#endif
