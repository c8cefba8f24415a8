/* A task: work that a worker thread does for a request while the connection is suspended, and the
 * result of the work. Embed it as the first member. */
#ifndef SERVER_LATER_TASK_H
#define SERVER_LATER_TASK_H

#include "server/later/deferred.h"

#include <jansson.h>
#include <stdint.h>

struct task {
    struct deferred deferred; /* the first member */
    /* Does the work. On failure fills err; if it leaves err->code ERROR_NONE, memory was short. */
    bool (*run)(struct task *task, struct error *err);
    void (*destroy)(struct task *task); /* frees the task and everything it owns */

    int status;   /* of an answer without an error; default 200 */
    json_t *json; /* owned: the answer; NULL: answer with `body` */
    struct task_body {
        const char *content_type; /* borrowed; NULL: the answer has no body */
        void *bytes;              /* owned; NULL: the body is a file */
        uint64_t size;
        int file; /* owned file descriptor if `bytes` is NULL */
    } body;
    struct error error;
};

/* Returns whether the result is not needed any more: the client has left, or the server cuts its
 * drain short. Any thread, while `run` runs; `task` is a struct task. */
bool task_is_cancelled(void *task);

/* Gives a zeroed task to the workers. Call it as a route's handler. Destroys the task in the end,
 * also on failure. If `task` is NULL, answers that memory is short. */
enum MHD_Result task_start(struct task *task, struct exchange *exchange, struct workers *workers,
    bool (*run)(struct task *task, struct error *err), void (*destroy)(struct task *task));

#endif
