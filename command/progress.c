#include "command/progress.h"

#include "base/monotonic.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BAR_WIDTH 30

void progress_init(struct progress *progress, bool quiet) {
    progress->is_on = !quiet && isatty(STDERR_FILENO) == 1;
    progress->begun_s = 0;
    progress->shown = -1;
}

void progress_show(struct progress *progress, int step, int steps) {
    if (!progress->is_on || step == progress->shown || steps < 1)
        return;
    if (progress->shown < 0)
        progress->begun_s = monotonic_seconds();
    progress->shown = step;
    double elapsed = monotonic_seconds() - progress->begun_s;
    double per_step = step > 0 ? elapsed / step : 0;
    char bar[BAR_WIDTH + 1];
    int filled = step * BAR_WIDTH / steps;
    memset(bar, '#', (size_t)filled);
    memset(bar + filled, '.', (size_t)(BAR_WIDTH - filled));
    bar[BAR_WIDTH] = 0;
    fprintf(stderr, "\r[%s] %d/%d  %.2f s/step  %.0f s left \x1b[K", bar, step, steps, per_step,
        per_step * (steps - step));
    fflush(stderr);
}

void progress_finish(struct progress *progress) {
    if (progress->is_on && progress->shown >= 0)
        fputc('\n', stderr);
}
