/* Decides whose turn it is if several callers have requests, as arithmetic over work (flops).
 *
 * Each caller has an account of the work done for it. policy_rank orders the requests of one
 * caller. The turn of a request is what its caller's account will be when the request, and all
 * requests of the same caller before it, are done; the lowest turn goes first. So callers that
 * always have requests get the same amount of work each, however many requests they have. A caller
 * that asks for one picture at a time beside n others waits about n times as long as that picture's
 * work takes.
 *
 * The account of a caller without requests starts at the clock when it comes back, unless the
 * account is ahead of the clock: unused time is not saved up, and work done while the others had no
 * requests is not held against it. The clock is at least the lowest account of the callers with
 * requests. It also advances by POLICY_AGEING of all work, so that new callers with short requests
 * do not pass a long request for ever. If each caller has one request, the order is roughly that of
 * policy_rank; if there is only one caller, it is exactly that order.
 *
 * Callers are numbers that have no meaning here. One thread at a time. */
#ifndef ENGINE_DRAWING_TURNS_H
#define ENGINE_DRAWING_TURNS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct turns_account {
    uint64_t caller;
    int requests;
    double served; /* work of its requests that have ended */
};

/* Zeroed: no caller is known. */
struct turns {
    struct turns_account *accounts; /* owned, [count] */
    int count;
    double clock;
};

void turns_finish(struct turns *turns); /* zeroed is fine */

/* Adds a request of the caller, until turns_leave. ERROR_NO_MEMORY. */
bool turns_enter(struct turns *turns, uint64_t caller, struct error *err)
    __attribute__((warn_unused_result));
/* Removes a request; `served` is the work that was done for it. */
void turns_leave(struct turns *turns, uint64_t caller, double served);
/* Advances the clock for `work` done for anybody. */
void turns_move_clock(struct turns *turns, double work);

/* A request that was entered with turns_enter. */
struct turns_request {
    uint64_t caller;
    double rank;         /* within its caller's requests: the lowest goes first */
    double left, served; /* work */
    int index;           /* breaks ties of equal ranks: the lowest goes first */
    void *of;            /* the caller's pointer to the request */
    double turn;         /* set by turns_take */
};

/* Fills in `turn` of all requests and sorts them by caller and rank. `requests` must hold every
 * request there is. */
void turns_take(const struct turns *turns, struct turns_request *requests, int count);

#endif
