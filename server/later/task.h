/* A task: work that a worker thread does for a request while the connection is suspended, and its
 * result. Embed it as the first member. */
#ifndef SERVER_LATER_TASK_H
#define SERVER_LATER_TASK_H

#include "server/later/deferred.h"

#include <jansson.h>
#include <stdint.h>

struct task {
    struct deferred deferred; /* the first member */
    /* Does the work. On failure fills err, or leaves its code ERROR_NONE if memory was short. */
    bool (*run)(struct task *task, struct error *err);
    void (*destroy)(struct task *task); /* frees the task and everything it owns */

    int status;   /* of an answer below 400; default 200 */
    json_t *json; /* the answer, owned; NULL: `body` is the answer */
    struct task_body {
        const char *content_type; /* borrowed; NULL: the answer has no body */
        void *bytes;              /* owned; NULL: the body is a file */
        uint64_t size;
        int file; /* its descriptor, owned, if `bytes` is NULL */
    } body;
    struct error error;
};

/* Returns whether the client has left or the server cuts its drain short: the result is not needed.
 * Any thread while `run` runs; `task` is a struct task. */
bool task_is_cancelled(void *task);

/* Gives a zeroed task to the workers, as a route's handler. The task is destroyed in the end, also
 * on failure. If `task` is NULL, answers that memory is short. */
enum MHD_Result task_start(struct task *task, struct exchange *exchange, struct workers *workers,
    bool (*run)(struct task *task, struct error *err), void (*destroy)(struct task *task));

#endif
