/* The files that `latentd generate` writes. They are named before a model is loaded, and checked to
 * be distinct and writable. So a missing folder is found before minutes of drawing. */
#ifndef COMMAND_OUTPUTS_H
#define COMMAND_OUTPUTS_H

#include "base/error.h"

#include <stdio.h>

struct outputs {
    char **pictures;     /* owned; NULL: none */
    int picture_count;   /* one: "out.png"; several: "out-0.png", "out-1.png", ... */
    const char *latents; /* borrowed; NULL: none */
    FILE *report;        /* for messages: stdout, or stderr if a file is written to stdout */
};

/* Names and checks the files. `pictures` and `latents` are the paths of -o and --save-latents, or
 * NULL; "-" is standard output. ERROR_INVALID if two outputs would be written to the same place,
 * ERROR_IO if one cannot be written. */
bool outputs_init(struct outputs *out, const char *pictures, int count, const char *latents,
    struct error *err) __attribute__((warn_unused_result));
void outputs_finish(struct outputs *out);

#endif
