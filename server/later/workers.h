/* Worker threads for work that the libmicrohttpd threads and the engine thread must not wait for,
 * such as encoding pictures and reading adapters. */
#ifndef SERVER_LATER_WORKERS_H
#define SERVER_LATER_WORKERS_H

#include "base/error.h"

#include <stdbool.h>

struct workers;

/* One piece of work, embedded in whatever it is about. Belongs to the workers from workers_give
 * until they call `run`, once. */
struct work {
    void (*run)(struct work *work);
    struct work *next;
};

/* How the system shares processors between these threads and those that draw. WORKERS_YIELDING
 * (nice 10) get a tenth of a processor that both want, WORKERS_BACKGROUND (nice 19) what others
 * leave. */
enum workers_kind { WORKERS_PLAIN, WORKERS_YIELDING, WORKERS_BACKGROUND };

/* Starts `threads` threads of that name (base/thread.h). */
bool workers_create(const char *name, int threads, enum workers_kind kind, struct workers **out,
    struct error *err) __attribute__((warn_unused_result));
/* Finishes the work that was given before, then ends the threads. NULL is fine. */
void workers_destroy(struct workers *workers);

/* Appends work; it is begun in the order given. Any thread; never waits. */
void workers_give(struct workers *workers, struct work *work);

#endif
