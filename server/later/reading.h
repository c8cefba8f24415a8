/* Parses request bodies before their requests are handled: small ones at once, those above
 * HTTP_READ_AT_ONCE_BYTES on a reader thread while the connection is suspended. So a large body
 * does not keep an HTTP thread from other clients. */
#ifndef SERVER_LATER_READING_H
#define SERVER_LATER_READING_H

#include "server/http/exchange.h"

#include <stdbool.h>
#include <stddef.h>

struct reading_kind {
    size_t size; /* of the parsed body */
    /* Parses exchange->body (exchange->body_size bytes) into *out, `size` zeroed bytes. Any thread;
     * may read the exchange, but neither change nor answer it. On failure *out needs no finish. */
    bool (*read)(const struct exchange *exchange, void *out, struct error *err);
    /* A route's handler, on the connection's thread. Takes over the contents of *read. */
    enum MHD_Result (*handle)(struct exchange *exchange, void *read);
    /* Frees the contents of *read if it is never handled, because the client has left. */
    void (*finish)(void *read);
};

/* Parses the body, then calls `handle` or answers the parse error. A route's handler, for a method
 * marked `large`. `kind` is static. */
enum MHD_Result reading_start(struct exchange *exchange, const struct reading_kind *kind);

#endif
