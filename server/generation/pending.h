/* A picture on its way: admitted, drawn, encoded, answered.
 *
 * Its threads work one after the other: the libmicrohttpd thread resolves and submits it, or a
 * loader's does where an adapter has to be read first; the engine's thread brings the result and
 * passes it on without waiting; an encoder's thread makes the answer's bytes and lets the
 * connection go on (server/deferred.h).
 */
#ifndef SERVER_GENERATION_PENDING_H
#define SERVER_GENERATION_PENDING_H

#include "engine/request.h"
#include "server/http/exchange.h"

/* What the client takes: JSON with all that there is, or one picture's bytes. */
struct pending_form {
    bool json;
    bool accepts[PICTURE_FORMATS]; /* unless it is JSON: at least one */
    enum picture_format preferred; /* of these, where the request names none */
};

/* Takes over what is in `asked`, and answers when it is drawn or refused. As a route's handler. */
enum MHD_Result pending_generate(
    struct exchange *exchange, struct generate_request *asked, const struct pending_form *form);

#endif
