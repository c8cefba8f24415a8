/* Starts threads with names, and explains why the system refuses one. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include "base/error.h"

#include <pthread.h>
#include <string.h>

/* Does what pthread_create does. `name` has at most 15 bytes and is shown by `top -H`
 * (docs/architecture.md lists all names). If the name cannot be set, the thread runs without it. */
static inline int thread_start(
    pthread_t *thread, const char *name, void *(*run)(void *user), void *user) {
    const int failed = pthread_create(thread, NULL, run, user);
    if (!failed)
        (void)pthread_setname_np(*thread, name);
    return failed;
}

/* Sets ERROR_NO_MEMORY and returns false. `reason` is the result of thread_start. The message says
 * more than the text of EAGAIN, "Resource temporarily unavailable", which does not help a user who
 * has set a limit. */
static inline bool error_set_thread(struct error *err, int reason) {
    return error_set(err, ERROR_NO_MEMORY,
        "cannot start a thread: %s. Its stack needs address space (ulimit -v), and the number of "
        "threads may be limited (ulimit -u, pids.max of a cgroup)",
        strerror(reason));
}

#endif
