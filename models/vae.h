/* AutoencoderKL: pixels to latents and back. */
#ifndef MODELS_VAE_H
#define MODELS_VAE_H

#include "kernels/compute/compute.h"
#include "models/config.h"
#include "models/weights.h"

struct vae;

enum vae_parts { VAE_DECODER = 1, VAE_ENCODER = 2, VAE_BOTH = 3 };

/* Copies the config and packs the weights; neither is needed afterwards. Requests the tensors of
 * both parts, and keeps those of `parts`. Errors begin with "vae: ". */
bool vae_create(const struct vae_config *config, const struct weights *w, enum vae_parts parts,
    struct vae **out, struct error *err) __attribute__((warn_unused_result));
/* Frees the memory of the weights. Afterwards the model still has its config, but cannot
 * compute. */
void vae_drop_weights(struct vae *vae);
/* Exchanges the contents of two models, so that a model that dropped its weights gets the weights
 * of another one wherever it is borrowed. */
void vae_swap(struct vae *a, struct vae *b);
void vae_destroy(struct vae *vae); /* NULL is fine */

const struct vae_config *vae_get_config(const struct vae *vae);
/* Returns the pixels per latent: 2^(blocks - 1), 8 for SD-1.5. */
int vae_scale(const struct vae *vae);

/* Returns the list that says which packed weight holds the tensors of each layer; NULL for tensors
 * of a part that is not kept. Borrowed. */
const struct weight_list *vae_weights(const struct vae *vae);

/* latents f32 [n][h][w][latent_channels] as the UNet uses them (vae_decode divides them by
 * scaling_factor); image f32 [n][h*scale][w*scale][3], about -1..1, not clamped. */
void vae_decode(
    const struct vae *vae, struct compute *c, const struct tensor *latents, struct tensor *image);

/* image f32 [n][H][W][3] in -1..1; moments f32 [n][H/scale][W/scale][2*latent_channels]: mean then
 * log-variance, unscaled (the caller clamps, samples and multiplies by scaling_factor). */
void vae_encode(
    const struct vae *vae, struct compute *c, const struct tensor *image, struct tensor *moments);

#endif
