/* Explains why the system refused a thread. */
#ifndef BASE_THREAD_ERROR_H
#define BASE_THREAD_ERROR_H

#include "base/error.h"

#include <string.h>

/* Sets ERROR_NO_MEMORY and returns false. `reason` is the result of pthread_create. The text of
 * EAGAIN alone, "Resource temporarily unavailable", does not help a user who has set a limit. */
static inline bool error_set_thread(struct error *err, int reason) {
    return error_set(err, ERROR_NO_MEMORY,
        "cannot start a thread: %s. Its stack needs address space (ulimit -v), and the number of "
        "threads may be limited (ulimit -u, pids.max of a cgroup)",
        strerror(reason));
}

#endif
