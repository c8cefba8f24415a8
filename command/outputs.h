/* The files that `latentd generate` writes. They are named, told apart and found writable before a
 * model is loaded: nobody draws for minutes into a folder that is not there. */
#ifndef COMMAND_OUTPUTS_H
#define COMMAND_OUTPUTS_H

#include "base/error.h"

#include <stdio.h>

struct outputs {
    char **pictures;     /* owned; NULL: none are written */
    int picture_count;   /* one is "out.png", several are "out-0.png", "out-1.png", ... */
    const char *latents; /* borrowed; NULL: they are not written */
    FILE *report;        /* for people: standard output, or standard error if a file goes there */
};

/* `pictures` and `latents`: the paths of -o and --save-latents, or NULL; "-" is standard output.
 * ERROR_INVALID for two things that would go to one place, ERROR_IO for what cannot be written. */
bool outputs_init(struct outputs *out, const char *pictures, int count, const char *latents,
    struct error *err) __attribute__((warn_unused_result));
void outputs_finish(struct outputs *out);

#endif
