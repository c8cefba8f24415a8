/* A few threads for what libmicrohttpd's threads and the engine's must not wait for: pictures to
 * encode, adapters to read. */
#ifndef SERVER_WORKERS_H
#define SERVER_WORKERS_H

#include "base/error.h"

#include <stdbool.h>

struct workers;

/* One thing to do, a member of whatever it is about. It is the workers' from workers_give until
 * `run` is called, once. */
struct work {
    void (*run)(struct work *work);
    struct work *next;
};

/* In the background, they get the processors that nobody else wants. */
enum workers_kind { WORKERS_PLAIN, WORKERS_BACKGROUND };

bool workers_create(int threads, enum workers_kind kind, struct workers **out, struct error *err)
    __attribute__((warn_unused_result));
/* Does what was given before, then ends the threads. NULL is fine. */
void workers_destroy(struct workers *workers);

/* Begun in the order in which they were given. From any thread; never waits. */
void workers_give(struct workers *workers, struct work *work);

#endif
