#include "command/progress.h"

#include "base/monotonic.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BAR_WIDTH 30
#define LINES_MAX 20 /* lines for all steps together, about */

void progress_init(struct progress *progress, bool quiet, bool lines) {
    progress->kind = quiet                        ? PROGRESS_NONE
                     : isatty(STDERR_FILENO) == 1 ? PROGRESS_BAR
                     : lines                      ? PROGRESS_LINES
                                                  : PROGRESS_NONE;
    progress->first = progress->shown = -1;
}

static void time_left(double seconds, char *out, size_t size) {
    const long s = (long)(seconds + 0.5);
    if (s < 100)
        snprintf(out, size, "%ld s", s);
    else if (s < 3600)
        snprintf(out, size, "%ld min %02ld s", s / 60, s % 60);
    else
        snprintf(out, size, "%ld h %02ld min", s / 3600, s % 3600 / 60);
}

void progress_show(struct progress *progress, int step, int steps, const char *note) {
    char bar[BAR_WIDTH + 1], pace[80] = "", left[32];
    if (progress->kind == PROGRESS_NONE || step == progress->shown || steps < 1)
        return;
    if (progress->first < 0) {
        progress->begun_s = monotonic_seconds();
        progress->first = step;
    }
    progress->shown = step;
    const int done = step - progress->first, every = (steps + LINES_MAX - 1) / LINES_MAX;
    if (done > 0) {
        const double per_step = (monotonic_seconds() - progress->begun_s) / done;
        time_left(per_step * (steps - step), left, sizeof(left));
        snprintf(pace, sizeof(pace), "  %.2f s/step  %s left", per_step, left);
    }
    const char *gap = note ? "  " : "";
    if (progress->kind == PROGRESS_BAR) {
        const int filled = (int)((long long)step * BAR_WIDTH / steps);
        memset(bar, '#', (size_t)filled);
        memset(bar + filled, '.', (size_t)(BAR_WIDTH - filled));
        bar[BAR_WIDTH] = 0;
        fprintf(stderr, "\r[%s] %d/%d%s%s%s \x1b[K", bar, step, steps, gap, note ? note : "", pace);
    } else if (done == 0 || step % every == 0 || step == steps) {
        fprintf(stderr, "%d/%d%s%s%s\n", step, steps, gap, note ? note : "", pace);
    }
    fflush(stderr);
}

void progress_finish(struct progress *progress) {
    if (progress->kind == PROGRESS_BAR && progress->shown >= 0)
        fputc('\n', stderr);
    progress->shown = -1;
}
