/* Worker threads for work that the libmicrohttpd threads and the engine thread must not wait for,
 * such as encoding pictures and reading adapters. */
#ifndef SERVER_LATER_WORKERS_H
#define SERVER_LATER_WORKERS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct workers;

/* One piece of work, embedded in the struct that it works on. Belongs to the workers from
 * workers_give until they call `run`, which happens once. */
struct work {
    void (*run)(struct work *work);
    uint64_t caller; /* a caller_number (server/http/caller.h); 0: the daemon itself */

    /* The rest is used by the workers only. */
    uint64_t round;
    struct work *next;
};

/* How the system shares processors between these threads and the threads that draw. WORKERS_PLAIN
 * have the same share. If both want a processor, WORKERS_YIELDING (nice 10) get a tenth of it.
 * WORKERS_BACKGROUND (nice 19) get only what the others leave. */
enum workers_kind { WORKERS_PLAIN, WORKERS_YIELDING, WORKERS_BACKGROUND };

/* Starts `threads` threads that are named `name` (base/thread.h). */
bool workers_create(const char *name, int threads, enum workers_kind kind, struct workers **out,
    struct error *err) __attribute__((warn_unused_result));
/* Finishes the work that was given before, then ends the threads. NULL is fine. */
void workers_destroy(struct workers *workers);

/* Adds work. The callers take turns: each round begins one piece of work of every caller that has
 * any. So a caller with much work delays others by one piece of it. Work of one caller is begun in
 * the order in which it was given. Any thread; never waits for work. */
void workers_give(struct workers *workers, struct work *work);

#endif
