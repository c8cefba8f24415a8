/* Converts a picture to latents and back, whole or in tiles.
 *
 * Tiles are those of diffusers (enable_vae_tiling): as large as the VAE's own pictures, overlapping
 * their neighbours by a quarter of a side, and blended there from 0 to 1. They bound the memory by
 * the tile. The result differs slightly from that of the whole picture, as each tile has its own
 * statistics in every norm. */
#ifndef ENGINE_DRAWING_VAE_STAGE_H
#define ENGINE_DRAWING_VAE_STAGE_H

#include "kernels/compute/compute.h"
#include "models/vae.h"

#include <stdint.h>

/* One picture of height x width px; sides are multiples of vae_scale. */
struct vae_stage {
    const struct vae *vae;
    int64_t height, width;
    bool tiled; /* no effect on pictures no larger than a tile */
};

/* Whether the picture is larger than a tile in either direction. */
bool vae_stage_has_tiles(const struct vae *vae, int64_t height, int64_t width);

/* latents f32 [c][h][w] to image f32 [height][width][3], about -1..1, both on the host; not read or
 * written in a dry run. */
void vae_stage_decode(
    struct compute *c, const struct vae_stage *stage, const float *latents, float *image);
/* The same to 8-bit RGB, rounded as in diffusers; an error if a value is not finite. */
void vae_stage_draw(
    struct compute *c, const struct vae_stage *stage, const float *latents, uint8_t *pixels);
/* image f32 [height][width][3] in -1..1 to moments f32 [h][w][2 c], both on the host. */
void vae_stage_encode(
    struct compute *c, const struct vae_stage *stage, const float *image, float *moments);

#endif
