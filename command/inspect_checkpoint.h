/* `latentd inspect PATH`: what is in a checkpoint, an adapter file or any safetensors file, for a
 * person to read. */
#ifndef COMMAND_INSPECT_CHECKPOINT_H
#define COMMAND_INSPECT_CHECKPOINT_H

#include "base/error.h"

#include <stdio.h>

/* Reads headers and configs, no weights. False after filling err if PATH cannot be read. */
bool inspect_print(FILE *out, const char *path, struct error *err)
    __attribute__((warn_unused_result));

#endif
