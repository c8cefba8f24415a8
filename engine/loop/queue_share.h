/* Each caller's share of the engine's queue, and how long its requests will take. It only counts,
 * and has no lock: the owner does the locking.
 *
 * While only one caller has waiting requests, it may use all `max` places of the queue. When n
 * callers have waiting requests, each may have max / (n + 1) places, but at least one. A caller
 * that already has more gets no place until it has fewer. A caller below its share gets a place
 * even if others have filled the queue. The queue may then exceed `max`, but never 2 * max. So a
 * caller that floods the queue, or repeats refused requests, does not keep others out.
 *
 * Callers are numbers that are only compared for equality. */
#ifndef ENGINE_LOOP_QUEUE_SHARE_H
#define ENGINE_LOOP_QUEUE_SHARE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct queue_caller {
    uint64_t caller;
    int waiting; /* requests in the queue */
    int there;   /* all requests: waiting, begun, or from another queue */
    /* From the last look: the work left of these requests in seconds, and how many were counted. */
    double left_s;
    int looked_at;
};

/* A zeroed struct has no callers. */
struct queue_share {
    struct queue_caller *callers; /* owned, [count]: those with requests */
    int count;
    int waiting;
    double request_s; /* mean work of a request, in seconds */
};

void queue_share_finish(struct queue_share *share); /* zeroed is fine */

/* Returns true if the queue accepts one more request of the caller, otherwise fails with
 * ERROR_BUSY. */
bool queue_share_takes(const struct queue_share *share, uint64_t caller, int max, struct error *err)
    __attribute__((warn_unused_result));
/* Adds a request. `waits`: it waits in the queue. ERROR_NO_MEMORY. */
bool queue_share_enter(struct queue_share *share, uint64_t caller, bool waits, struct error *err)
    __attribute__((warn_unused_result));
/* Call when a waiting request begins. It stops waiting but stays in `there`. */
void queue_share_begin(struct queue_share *share, uint64_t caller);
/* Removes a request. `waits`: it was still waiting. */
void queue_share_leave(struct queue_share *share, uint64_t caller, bool waits);

/* Begins a new look at the work left. Call queue_share_look then for each request in the studio. */
void queue_share_begin_look(struct queue_share *share);
void queue_share_look(struct queue_share *share, uint64_t caller, double left_s);
/* Returns the seconds until everything that the caller has asked for is done: its own work, plus
 * the work of every other caller, counting at most as much of each as the caller's own. 0: the
 * caller has no requests, or their work is unknown. */
double queue_share_wait_s(const struct queue_share *share, uint64_t caller);

#endif
