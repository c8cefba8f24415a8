/* Progress on standard error: on a terminal a bar that is redrawn at every step; elsewhere nothing,
 * or, for long work, a line now and then. */
#ifndef COMMAND_PROGRESS_H
#define COMMAND_PROGRESS_H

#include <stdbool.h>

enum progress_kind { PROGRESS_NONE, PROGRESS_BAR, PROGRESS_LINES };

struct progress {
    enum progress_kind kind;
    double begun_s;
    int first, shown; /* the first and the last step shown; -1: none yet */
};

/* `lines`: prints lines if standard error is not a terminal. */
void progress_init(struct progress *progress, bool quiet, bool lines);
/* Shows that `step` of `steps` are done, with `note` (NULL: none). */
void progress_show(struct progress *progress, int step, int steps, const char *note);
/* Ends the bar's line. Call it also before printing anything else. */
void progress_finish(struct progress *progress);

#endif
