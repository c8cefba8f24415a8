/* Something that a worker's thread does for a request, and what it came to, while the connection is
 * suspended: the first member of whatever it is about. */
#ifndef SERVER_TASK_H
#define SERVER_TASK_H

#include "server/deferred.h"
#include "server/workers.h"

#include <jansson.h>
#include <stdint.h>

struct task {
    struct deferred deferred; /* the first member */
    struct work work;
    /* False with why, or with an error of code ERROR_NONE when memory was short. */
    bool (*run)(struct task *task, struct error *err);
    void (*destroy)(struct task *task); /* frees it and all it owns */

    int status;   /* of the answer below 400; 200 to begin with */
    json_t *json; /* of the answer, owned; NULL: see below */
    struct task_body {
        const char *content_type; /* borrowed; NULL: the answer has no body */
        void *bytes;              /* owned; NULL: the body is a file */
        uint64_t size;
        int file; /* its descriptor, owned, if `bytes` is NULL */
    } body;
    struct error error;
};

/* Whether the client has left, or the server is in a hurry: what `run` does is for nobody. From any
 * thread while it runs; `task` is a struct task. */
bool task_is_cancelled(void *task);

/* Gives a zeroed task to the workers, who free it in the end, also on failure. NULL is answered as
 * a lack of memory. As a route's handler. */
enum MHD_Result task_start(struct task *task, struct exchange *exchange, struct workers *workers,
    bool (*run)(struct task *task, struct error *err), void (*destroy)(struct task *task));

#endif
