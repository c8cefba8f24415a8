/* Progress on standard error. On a terminal it is a bar that is redrawn at every step. Elsewhere
 * nothing is printed, or for long work a line from time to time. */
#ifndef COMMAND_PROGRESS_H
#define COMMAND_PROGRESS_H

#include <stdbool.h>

enum progress_kind { PROGRESS_NONE, PROGRESS_BAR, PROGRESS_LINES };

struct progress {
    enum progress_kind kind;
    double begun_s;
    int first, shown; /* the first and the last step shown; -1: none yet */
};

/* `lines`: print lines if standard error is not a terminal. */
void progress_init(struct progress *progress, bool quiet, bool lines);
/* Shows that `step` of `steps` are done, with `note` (NULL: none). */
void progress_show(struct progress *progress, int step, int steps, const char *note);
/* Ends the line of the bar. Also call it before anything else is printed. */
void progress_finish(struct progress *progress);

#endif
