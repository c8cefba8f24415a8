/* Decides which caller is served next if several callers have requests. Work is counted in flops.
 *
 * Each caller has an account of the work done for it. policy_rank orders the requests of one
 * caller. The turn of a request is the value that its caller's account will have when the request
 * and all earlier requests of that caller are done. The lowest turn is served first. So callers
 * that always have requests get the same amount of work each, however many requests they have. A
 * caller that asks for one picture at a time beside n others waits about n times as long as that
 * picture's work takes.
 *
 * When a caller without requests comes back, its account is raised to the clock, unless it is ahead
 * of the clock. So unused time is not saved up, and a caller is not punished for work that was done
 * while the others had no requests. The clock is at least the lowest account of the callers with
 * requests. It also advances by POLICY_AGEING of all work, so that new callers with short requests
 * cannot overtake a long request for ever. If each caller has one request, the order is roughly
 * that of policy_rank; if there is only one caller, it is exactly that order.
 *
 * Callers are numbers that are only compared for equality. Used by one thread at a time. */
#ifndef ENGINE_DRAWING_TURNS_H
#define ENGINE_DRAWING_TURNS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct turns_account {
    uint64_t caller;
    int requests;
    double served; /* work of its ended requests */
};

/* A zeroed struct knows no callers. */
struct turns {
    struct turns_account *accounts; /* owned, [count] */
    int count;
    double clock;
};

void turns_finish(struct turns *turns); /* zeroed is fine */

/* Adds a request of the caller. It stays until turns_leave. ERROR_NO_MEMORY. */
bool turns_enter(struct turns *turns, uint64_t caller, struct error *err)
    __attribute__((warn_unused_result));
/* Removes a request. `served` is the work that was done for it. */
void turns_leave(struct turns *turns, uint64_t caller, double served);
/* Advances the clock after `work` was done for any caller. */
void turns_move_clock(struct turns *turns, double work);

/* A request that was entered with turns_enter. */
struct turns_request {
    uint64_t caller;
    double rank;         /* among its caller's requests: lowest first */
    double left, served; /* work */
    int index;           /* decides between equal ranks: lowest first */
    void *of;            /* the request, for the owner's use */
    double turn;         /* set by turns_take */
};

/* Fills in `turn` of all requests, and sorts them by caller and rank. `requests` must hold all
 * requests that were entered and have not left. */
void turns_take(const struct turns *turns, struct turns_request *requests, int count);

#endif
