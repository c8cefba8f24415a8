/* Why the system gives no thread, in words that help. */
#ifndef BASE_THREAD_ERROR_H
#define BASE_THREAD_ERROR_H

#include "base/error.h"

#include <string.h>

/* ERROR_NO_MEMORY, false. `reason`: what pthread_create returned. EAGAIN alone, "Resource
 * temporarily unavailable", says nothing to who has set a limit. */
static inline bool error_set_thread(struct error *err, int reason) {
    return error_set(err, ERROR_NO_MEMORY,
        "cannot start a thread: %s. Its stack needs address space (ulimit -v), and the number of "
        "threads may be limited (ulimit -u, pids.max of a cgroup)",
        strerror(reason));
}

#endif
