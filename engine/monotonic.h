/* Seconds of a clock that never jumps, for durations and deadlines. */
#ifndef ENGINE_MONOTONIC_H
#define ENGINE_MONOTONIC_H

#include <time.h>

static inline double monotonic_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif
