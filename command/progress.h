/* How far something is, on standard error: on a terminal a bar that is redrawn at every step;
 * elsewhere nothing, or, for what takes long, now and then a line. */
#ifndef COMMAND_PROGRESS_H
#define COMMAND_PROGRESS_H

#include <stdbool.h>

enum progress_kind { PROGRESS_NONE, PROGRESS_BAR, PROGRESS_LINES };

struct progress {
    enum progress_kind kind;
    double begun_s;
    int first, shown; /* the first and the last step shown, -1 before there is one */
};

/* lines: also where there is no terminal. */
void progress_init(struct progress *progress, bool quiet, bool lines);
/* `step` of `steps` are done; `note` is shown with it, NULL for none. */
void progress_show(struct progress *progress, int step, int steps, const char *note);
/* Ends the bar's line; before anything else is said, too. */
void progress_finish(struct progress *progress);

#endif
