/* Whose turn it is where several callers have requests, as arithmetic over work (flops).
 *
 * Each caller has an account of the work that was done for it. The requests of one caller have an
 * order of their own (policy_rank). The turn of a request is what its caller's account comes to
 * when the request, and all of the same caller that go before it, are done; the least turn goes
 * first. So callers who always have requests get the same work each, however many requests they
 * have, and a caller who asks for one picture at a time beside n others waits about n times as long
 * as that picture's work takes.
 *
 * A caller who has had no request begins at the clock, unless its account is ahead: time that it
 * did not use is not saved up, and work that it had before the others could have any is not held
 * against it. The clock is the least account of the callers with requests, and it moves by
 * POLICY_AGEING of all work, so that a long request is not passed for ever by new callers with
 * short ones. Where each caller has one request, the turns' order is that of policy_rank by and
 * large; where there is one caller, it is exactly that of its requests.
 *
 * Callers are numbers that mean nothing here. One thread at a time. */
#ifndef ENGINE_TURNS_H
#define ENGINE_TURNS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct turns_account {
    uint64_t caller;
    int requests;
    double served; /* work of its requests that have ended */
};

/* Zeroed: nobody is known. */
struct turns {
    struct turns_account *accounts; /* owned, [capacity], `count` of them used */
    int count, capacity;
    double clock;
};

void turns_finish(struct turns *turns); /* zeroed is fine */

/* A request of the caller is there, until turns_leave. ERROR_NO_MEMORY. */
bool turns_enter(struct turns *turns, uint64_t caller, struct error *err)
    __attribute__((warn_unused_result));
/* It has ended; `served` is the work that was done for it. */
void turns_leave(struct turns *turns, uint64_t caller, double served);
/* So much work was done, whoever it was for. */
void turns_move_clock(struct turns *turns, double work);

/* A request that has been entered. */
struct turns_request {
    uint64_t caller;
    double rank;         /* among its caller's requests: the least goes first */
    double left, served; /* work */
    int index;           /* the least goes first among equal ranks */
    void *of;            /* whose this is */
    double turn;         /* set by turns_take */
};

/* Fills in `turn` of all requests that are there, and sorts them by caller and rank. */
void turns_take(const struct turns *turns, struct turns_request *requests, int count);

#endif
