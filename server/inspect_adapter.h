/* What a LoRA file is made of, told from its tensors' names. */
#ifndef SERVER_INSPECT_ADAPTER_H
#define SERVER_INSPECT_ADAPTER_H

#include "models/safetensors.h"

#include <stdio.h>

/* Prints format, kinds, ranks, alphas and targets and returns true, or prints nothing and returns
 * false if the file holds no adapter. */
bool inspect_adapter(FILE *out, struct safetensors *file);

#endif
