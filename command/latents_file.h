/* Latents as safetensors files: one float tensor "latents", [images][channels][height/8][width/8],
 * as diffusers takes and gives them (output_type="latent" before the VAE's scaling is undone). */
#ifndef COMMAND_LATENTS_FILE_H
#define COMMAND_LATENTS_FILE_H

#include "engine/request.h"

/* Writes the result's latents. */
bool latents_save(const char *path, const struct generate_result *result, struct error *err)
    __attribute__((warn_unused_result));

/* Reads starting noise into request->init_latents, which it owns from then on. A size that the
 * request leaves open is taken from the file; one that does not agree, or another number of images
 * than the request asks for, is an error. f32, f16 and bf16. */
bool latents_load(const char *path, struct generate_request *request, struct error *err)
    __attribute__((warn_unused_result));

#endif
