/* A checkpoint with adapters merged into it, for tests. */
#ifndef TESTS_MODELS_MERGED_H
#define TESTS_MODELS_MERGED_H

#include <jansson.h>

/* Writes the diffusers folder `model` to `out` with `loras`, a list of {"name", "weight",
 * "text_encoder_weight"} of the files NAME.safetensors in lora_folder. Ends the program when it
 * fails. */
void make_merged(const char *model, const char *lora_folder, const json_t *loras, const char *out);

#endif
