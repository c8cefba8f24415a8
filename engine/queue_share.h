/* How much of the engine's queue each caller has, and how long it takes: counting, without threads.
 *
 * A queue of `max` places is all a caller's as long as no other has a request that waits. When n
 * callers have some, each may have max / (n + 1) of the places, and one at least; who has more
 * since it came before the others gets no further one until it has less. A caller below its share
 * has its place even if others have filled the queue, which then has more than `max` requests, but
 * never more than twice as many. So nobody who floods the queue, or sends again what was refused,
 * keeps another from it.
 *
 * Callers are numbers that mean nothing here. Whoever owns it locks it. */
#ifndef ENGINE_QUEUE_SHARE_H
#define ENGINE_QUEUE_SHARE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct queue_caller {
    uint64_t caller;
    int waiting; /* in the queue */
    int there;   /* those, those that have begun, and those that have waited elsewhere */
    /* The work that all of them had before them when somebody last looked, and how many they were
     * then. */
    double left_s;
    int looked_at;
};

/* Zeroed: nobody is there. */
struct queue_share {
    struct queue_caller *callers; /* owned, [capacity], `count` of them used: those with requests */
    int count, capacity;
    int waiting;
    double request_s; /* the work of a request, on the average */
};

void queue_share_finish(struct queue_share *share); /* zeroed is fine */

/* Whether the queue takes one more request of the caller; else ERROR_BUSY. */
bool queue_share_takes(const struct queue_share *share, uint64_t caller, int max, struct error *err)
    __attribute__((warn_unused_result));
/* One more request is there; `waits`: in the queue. ERROR_NO_MEMORY. */
bool queue_share_enter(struct queue_share *share, uint64_t caller, bool waits, struct error *err)
    __attribute__((warn_unused_result));
/* One that waited does so no more, though it is there. */
void queue_share_begin(struct queue_share *share, uint64_t caller);
/* One is gone; `waits`: it did so until now. */
void queue_share_leave(struct queue_share *share, uint64_t caller, bool waits);

/* Somebody looks anew: queue_share_look follows for each request that is being drawn or may be. */
void queue_share_begin_look(struct queue_share *share);
void queue_share_look(struct queue_share *share, uint64_t caller, double left_s);
/* How long, in seconds, until all that the caller has asked for is done: beside its own work each
 * other caller's, as much as the caller's own at most. 0: nothing is there, or nothing is known. */
double queue_share_wait_s(const struct queue_share *share, uint64_t caller);

#endif
