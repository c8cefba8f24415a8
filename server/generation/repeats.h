/* Requests that may be sent again, with an Idempotency-Key: the same key and the same request get
 * one drawing and one answer, while it is made and for a while after it; the same key and another
 * request a 409. What failed is forgotten, so that it can be tried again, and so is what was
 * cancelled. In memory: a daemon that is started anew knows of none. */
#ifndef SERVER_GENERATION_REPEATS_H
#define SERVER_GENERATION_REPEATS_H

#include "base/sha256.h"
#include "server/generation/generation.h"

struct repeats;
struct repeat;

bool repeats_create(struct repeats **out, struct error *err) __attribute__((warn_unused_result));
/* None may be under way. NULL is fine. */
void repeats_destroy(struct repeats *repeats);

/* The one of the caller's key, a reference. *known: it was there already; if not, the caller ends
 * it. ERROR_CONFLICT if it is of another request. Any thread. */
bool repeats_begin(struct repeats *repeats, const char *caller, const char *key,
    const struct digest *request, struct repeat **out, bool *known, struct error *err)
    __attribute__((warn_unused_result));

/* The end of a new one: its answer, which is copied, or, with NULL, why there is none. */
void repeat_end(struct repeat *repeat, const struct generation_body *body, const struct error *why);
/* Whoever asked for it first has left: true if nobody else waits for it, and it is forgotten. */
bool repeat_abandon(struct repeat *repeat);
void repeat_unref(struct repeat *repeat); /* NULL is fine */

/* Answers with what a known one comes to, now or later. Takes over the reference. As a route's
 * handler. */
enum MHD_Result repeat_answer(struct exchange *exchange, struct repeat *repeat);

#endif
