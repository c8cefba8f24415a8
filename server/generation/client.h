/* The client of a generation: its connection is suspended until the answer is ready, or receives
 * events as they come.
 *
 * A dialect's handler parses the body into a struct generate_request and calls generation_start
 * with a struct generation_kind that says how the answer looks. Everything else happens here:
 * waiting for adapters, the engine, errors, cancelling when the client leaves, streaming. Errors
 * are answered by respond_error, so the route's dialect decides how they look; once a stream has
 * begun, the kind's `event` writes them.
 *
 *     static const struct generation_kind kind = {
 *         .dialect = "native", .check = check, .answer = answer, .event = event, .finish = free
 *     };
 *     ...
 *     return generation_start(exchange, &request, &kind, own, &(struct generation_options){ 0 });
 *
 * A stream buffers only what is being sent. Its next events, with the latest progress and previews,
 * are written when the client has taken all earlier ones. */
#ifndef SERVER_GENERATION_CLIENT_H
#define SERVER_GENERATION_CLIENT_H

#include "server/generation/generation.h"

/* Creates a generation; the answer follows when it is drawn or refused. Takes over the contents of
 * `asked`, and `user`, also on failure. Call it as a route's handler. */
enum MHD_Result generation_start(struct exchange *exchange, struct generate_request *asked,
    const struct generation_kind *kind, void *user, const struct generation_options *options);

/* Returns true if the server takes requests now. Refuses an Idempotency-Key: use it for routes
 * whose requests cannot be repeated. */
bool generation_takes(const struct exchange *exchange, struct error *err)
    __attribute__((warn_unused_result));
/* Does what generation_takes does, and also refuses a query. Use it as a route's `may_come`. */
bool generation_may_come(const struct exchange *exchange, struct error *err)
    __attribute__((warn_unused_result));

#endif
