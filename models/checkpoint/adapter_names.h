/* What a LoRA file is made of, told from its tensors' names. */
#ifndef MODELS_CHECKPOINT_ADAPTER_NAMES_H
#define MODELS_CHECKPOINT_ADAPTER_NAMES_H

#include "models/checkpoint/safetensors.h"

#include <stdio.h>

/* Prints format, kinds, ranks, alphas and targets and returns true, or prints nothing and returns
 * false if the file holds no adapter. */
bool inspect_adapter(FILE *out, struct safetensors *file);

#endif
