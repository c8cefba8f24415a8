/* Each caller's share of the engine's queue, and how long its requests will take. Only counts; no
 * threads.
 *
 * While only one caller has waiting requests, it may use all `max` places of the queue. When n
 * callers have some, each may have max / (n + 1) places, and at least one. A caller that already
 * has more gets no further place until it has fewer. A caller below its share gets its place even
 * if others have filled the queue: the queue may then exceed `max`, but never 2 * max. So a caller
 * that floods the queue, or resends what was refused, keeps nobody else out.
 *
 * Callers are numbers that have no meaning here. The owner does the locking. */
#ifndef ENGINE_LOOP_QUEUE_SHARE_H
#define ENGINE_LOOP_QUEUE_SHARE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct queue_caller {
    uint64_t caller;
    int waiting; /* in the queue */
    int there;   /* all of its requests: waiting, begun, or queued elsewhere before */
    /* The work these requests had left at the latest look, in seconds, and how many were
     * counted. */
    double left_s;
    int looked_at;
};

/* Zeroed: there is no caller. */
struct queue_share {
    struct queue_caller *callers; /* owned, [count]: those with requests */
    int count;
    int waiting;
    double request_s; /* mean work of a request, in seconds */
};

void queue_share_finish(struct queue_share *share); /* zeroed is fine */

/* Returns true if the queue accepts one more request of the caller, else fails with ERROR_BUSY. */
bool queue_share_takes(const struct queue_share *share, uint64_t caller, int max, struct error *err)
    __attribute__((warn_unused_result));
/* Adds a request; `waits`: it waits in the queue. ERROR_NO_MEMORY. */
bool queue_share_enter(struct queue_share *share, uint64_t caller, bool waits, struct error *err)
    __attribute__((warn_unused_result));
/* A waiting request begins. It still counts as there. */
void queue_share_begin(struct queue_share *share, uint64_t caller);
/* Removes a request; `waits`: it was still waiting. */
void queue_share_leave(struct queue_share *share, uint64_t caller, bool waits);

/* Begins a new look: queue_share_look follows for each request that is or may be drawn. */
void queue_share_begin_look(struct queue_share *share);
void queue_share_look(struct queue_share *share, uint64_t caller, double left_s);
/* Seconds until everything that the caller has asked for is done: its own work, plus each other
 * caller's, but of each at most as much as its own. 0: there is nothing, or nothing is known. */
double queue_share_wait_s(const struct queue_share *share, uint64_t caller);

#endif
