/* Latents as safetensors files: one float tensor "latents", [images][channels][height][width], as
 * diffusers reads and writes them (output_type="latent", before the VAE's scaling is undone). */
#ifndef COMMAND_LATENTS_FILE_H
#define COMMAND_LATENTS_FILE_H

#include "engine/request/request.h"

/* Writes the latents of a result. */
bool latents_save(const char *path, const struct generate_result *result, struct error *err)
    __attribute__((warn_unused_result));

/* Reads starting noise in f32, f16 or bf16. Resolving the request checks that the noise fits the
 * request and the model. *out must be zeroed. The caller owns its values, also after a failure. */
bool latents_load(const char *path, struct init_latents *out, struct error *err)
    __attribute__((warn_unused_result));

/* Reads the tensor "prompt_embeds", [texts][tokens][width], or [tokens][width] for one text. Also
 * reads "negative_prompt_embeds" if present. */
bool embeds_load(const char *path, struct encoded_texts *prompt, struct encoded_texts *negative,
    struct error *err) __attribute__((warn_unused_result));

#endif
