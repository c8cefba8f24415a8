/* The files that `latentd generate` writes. They are named, checked to be distinct and checked to
 * be writable before a model is loaded, so that nobody draws for minutes into a missing folder. */
#ifndef COMMAND_OUTPUTS_H
#define COMMAND_OUTPUTS_H

#include "base/error.h"

#include <stdio.h>

struct outputs {
    char **pictures;     /* owned; NULL: none */
    int picture_count;   /* one is "out.png", several are "out-0.png", "out-1.png", ... */
    const char *latents; /* borrowed; NULL: none */
    FILE *report; /* for messages: standard output, or standard error if a file goes to standard
                     output */
};

/* `pictures` and `latents` are the paths of -o and --save-latents, or NULL; "-" is standard output.
 * ERROR_INVALID if two outputs would go to the same place, ERROR_IO if one cannot be written. */
bool outputs_init(struct outputs *out, const char *pictures, int count, const char *latents,
    struct error *err) __attribute__((warn_unused_result));
void outputs_finish(struct outputs *out);

#endif
