#include "engine/loop/queue_share.h"

#include "base/list.h"

#include <stdlib.h>
#include <string.h>

void queue_share_finish(struct queue_share *share) {
    free(share->callers);
    memset(share, 0, sizeof(*share));
}

static struct queue_caller *find(const struct queue_share *share, uint64_t caller) {
    for (int i = 0; i < share->count; i++)
        if (share->callers[i].caller == caller)
            return &share->callers[i];
    return NULL;
}

/* Returns the number of places that the caller may have. *alone: no other caller has waiting
 * requests. */
static int places_of(const struct queue_share *share, uint64_t caller, int max, bool *alone) {
    int waiting = 1; /* callers with waiting requests, and this one */
    for (int i = 0; i < share->count; i++)
        waiting += share->callers[i].waiting > 0 && share->callers[i].caller != caller;
    *alone = waiting == 1;
    const int places = *alone ? max : max / (waiting + 1);
    return places > 0 ? places : 1;
}

bool queue_share_takes(
    const struct queue_share *share, uint64_t caller, int max, struct error *err) {
    const struct queue_caller *known = find(share, caller);
    const int own = known ? known->waiting : 0;
    bool alone;
    const int places = places_of(share, caller, max, &alone);
    if (own < places && share->waiting < 2 * max)
        return true;
    if (alone || own < places)
        return error_set(
            err, ERROR_BUSY, "the queue is full: %d requests wait, %d may", share->waiting, max);
    return error_set(err, ERROR_BUSY,
        "your part of the queue is full: %d of your requests wait, %d may while others wait too",
        own, places);
}

bool queue_share_enter(struct queue_share *share, uint64_t caller, bool waits, struct error *err) {
    struct queue_caller *known = find(share, caller);
    if (!known) {
        if (!LIST_ROOM(share->callers, share->count, "a request", err))
            return false;
        known = &share->callers[share->count++];
        *known = (struct queue_caller){ .caller = caller };
    }
    known->there++;
    known->waiting += waits;
    share->waiting += waits;
    return true;
}

void queue_share_begin(struct queue_share *share, uint64_t caller) {
    struct queue_caller *known = find(share, caller);
    if (known) {
        known->waiting--;
        share->waiting--;
    }
}

void queue_share_leave(struct queue_share *share, uint64_t caller, bool waits) {
    struct queue_caller *known = find(share, caller);
    if (!known)
        return;
    if (waits)
        queue_share_begin(share, caller);
    if (--known->there == 0)
        *known = share->callers[--share->count];
}

void queue_share_begin_look(struct queue_share *share) {
    for (int i = 0; i < share->count; i++) {
        share->callers[i].left_s = 0;
        share->callers[i].looked_at = 0;
    }
}

void queue_share_look(struct queue_share *share, uint64_t caller, double left_s) {
    struct queue_caller *known = find(share, caller);
    if (known) {
        known->left_s += left_s;
        known->looked_at++;
    }
}

/* Each request that arrived after the last look counts as the mean work of a request. */
static double left_s(const struct queue_share *share, const struct queue_caller *of) {
    const int since = of->there - of->looked_at;
    return of->left_s + (since > 0 ? since * share->request_s : 0);
}

double queue_share_wait_s(const struct queue_share *share, uint64_t caller) {
    const struct queue_caller *own = find(share, caller);
    const double own_s = own ? left_s(share, own) : 0;
    double all_s = 0;
    for (int i = 0; i < share->count; i++) {
        const double other_s = left_s(share, &share->callers[i]);
        all_s += other_s < own_s ? other_s : own_s;
    }
    return all_s;
}
