/* Models from any source of weights. The *_create functions of the models' own headers call these
 * with a checkpoint behind `w`; tests call them with weights of their own. The config is copied,
 * the weights are packed, and nothing of either is needed afterwards. */
#ifndef MODELS_BUILD_H
#define MODELS_BUILD_H

#include "models/layers.h"
#include "models/text_encoder.h"
#include "models/unet.h"
#include "models/vae.h"

bool text_encoder_build(const struct text_encoder_config *config, const struct weights *w,
    struct text_encoder **out, struct error *err) __attribute__((warn_unused_result));
bool unet_build(const struct unet_config *config, const struct weights *w, struct unet **out,
    struct error *err) __attribute__((warn_unused_result));
/* Asks for the tensors of both parts, and keeps those of `parts`. */
bool vae_build(const struct vae_config *config, const struct weights *w, enum vae_parts parts,
    struct vae **out, struct error *err) __attribute__((warn_unused_result));

#endif
