/* A bar on standard error that is redrawn at every step. Only on a terminal: a log file has no use
 * for it. */
#ifndef COMMAND_PROGRESS_H
#define COMMAND_PROGRESS_H

#include <stdbool.h>

struct progress {
    bool is_on;
    double begun_s;
    int shown; /* the last step shown, -1 before the first */
};

void progress_init(struct progress *progress, bool quiet);
/* `step` of `steps` are done. */
void progress_show(struct progress *progress, int step, int steps);
/* Ends the bar's line. */
void progress_finish(struct progress *progress);

#endif
