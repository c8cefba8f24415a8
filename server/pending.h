/* A picture on its way: admitted, drawn, encoded, answered.
 *
 * Its threads work one after the other: the libmicrohttpd thread resolves and submits it, or a
 * loader's does where an adapter has to be read first; the engine's thread brings the result and
 * passes it on without waiting; an encoder's thread makes the answer's bytes and lets the
 * connection go on (server/deferred.h).
 */
#ifndef SERVER_PENDING_H
#define SERVER_PENDING_H

#include "server/http/exchange.h"

enum pending_format { PENDING_JSON, PENDING_PNG };

/* Takes over what is in `asked`, and answers when it is drawn or refused. As a route's handler. */
enum MHD_Result pending_generate(
    struct exchange *exchange, struct generate_request *asked, enum pending_format format);

#endif
