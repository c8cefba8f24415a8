/* Condition variables whose time-outs use the clock of base/monotonic.h, which never jumps. */
#ifndef BASE_CONDITION_H
#define BASE_CONDITION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Does what pthread_cond_init does, for use with condition_wait_until. Free it with
 * pthread_cond_destroy. */
static inline void condition_init(pthread_cond_t *condition) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* Does what pthread_cond_timedwait does. Call it with the mutex held. Returns false when
 * monotonic_ms() has reached due_ms (INT64_MAX: never). Returns true after a signal, and sometimes
 * without one. */
static inline bool condition_wait_until(
    pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t due_ms) {
    if (due_ms == INT64_MAX)
        return pthread_cond_wait(condition, mutex) == 0;
    const struct timespec due = { due_ms / 1000, due_ms % 1000 * 1000000L };
    return pthread_cond_timedwait(condition, mutex, &due) == 0;
}

#endif
