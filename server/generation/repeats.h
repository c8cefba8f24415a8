/* Requests with an Idempotency-Key, which may be sent again. If a request comes again with its key,
 * it shares the drawing and the answer of the first one, also for a while after the answer. The
 * same key with another request is a 409. A failed or cancelled request is forgotten, so that it
 * can be sent again. Keys are kept in memory, so a restarted daemon knows no earlier ones. */
#ifndef SERVER_GENERATION_REPEATS_H
#define SERVER_GENERATION_REPEATS_H

#include "base/sha256.h"
#include "server/generation/generation.h"

struct repeats;
struct repeat;

bool repeats_create(struct repeats **out, struct error *err) __attribute__((warn_unused_result));
/* No request may be under way. NULL is fine. */
void repeats_destroy(struct repeats *repeats);

/* Finds or adds the entry for the caller's key and returns a reference. *known: the entry existed.
 * If it did not, the caller must end it with repeat_end. ERROR_CONFLICT if the key was sent with
 * another request. Any thread. */
bool repeats_begin(struct repeats *repeats, const char *caller, const char *key,
    const struct digest *request, struct repeat **out, bool *known, struct error *err)
    __attribute__((warn_unused_result));

/* Ends a new entry. The answer in `body` is copied. A NULL `body` means there is no answer; `why`
 * is then the reason. */
void repeat_end(struct repeat *repeat, const struct generation_body *body, const struct error *why);
/* Call it when the client that sent the first request has left. Returns true, and forgets the
 * entry, if no other client waits for it. */
bool repeat_abandon(struct repeat *repeat);
void repeat_unref(struct repeat *repeat); /* NULL is fine */

/* Answers with the result of a known entry, at once or when the entry has ended. Takes over the
 * reference. Call it as a route's handler. */
enum MHD_Result repeat_answer(struct exchange *exchange, struct repeat *repeat);

#endif
