/* Makes a checkpoint with merged adapters, for tests. */
#ifndef TESTS_MODELS_MERGED_H
#define TESTS_MODELS_MERGED_H

#include <jansson.h>

/* Writes the diffusers folder `model` to `out` with merged adapters. `loras` is a list of {"name",
 * "weight", "text_encoder_weight"}; the files are NAME.safetensors in lora_folder. Ends the program
 * if it fails. */
void make_merged(const char *model, const char *lora_folder, const json_t *loras, const char *out);

#endif
