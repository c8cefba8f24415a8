/* `latentd inspect PATH`: prints the contents of a checkpoint, an adapter file or any other
 * safetensors file. */
#ifndef COMMAND_INSPECT_CHECKPOINT_H
#define COMMAND_INSPECT_CHECKPOINT_H

#include "base/error.h"

#include <stdio.h>

/* Reads headers and configs, but no weights. Returns false after filling err if PATH cannot be
 * read. */
bool inspect_print(FILE *out, const char *path, struct error *err)
    __attribute__((warn_unused_result));

#endif
