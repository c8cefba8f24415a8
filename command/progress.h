/* A progress line on standard error: a bar that is redrawn on a terminal, plain lines elsewhere. */
#ifndef COMMAND_PROGRESS_H
#define COMMAND_PROGRESS_H

#include <stdbool.h>

struct progress {
    bool terminal;
    double begun_s;
    int shown; /* the last step shown, -1 before the first */
};

void progress_init(struct progress *progress);
/* `step` of `steps` are done. */
void progress_show(struct progress *progress, int step, int steps);
/* Ends the bar's line. */
void progress_finish(struct progress *progress);

#endif
