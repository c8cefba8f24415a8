/* Bodies that are taken apart before their requests are handled: small ones at once, larger ones
 * (HTTP_READ_AT_ONCE_BYTES) on a reader's thread, while the connection is suspended. So a large
 * body keeps no thread of the HTTP library from other clients. */
#ifndef SERVER_READING_H
#define SERVER_READING_H

#include "server/http/exchange.h"

#include <stdbool.h>
#include <stddef.h>

struct reading_kind {
    size_t size; /* of what is read */
    /* Fills *out, `size` zeroed bytes, from exchange->body, of exchange->body_size bytes. Any
     * thread; it may look at the exchange and neither change nor answer it. False with why: then
     * there is nothing to finish. */
    bool (*read)(const struct exchange *exchange, void *out, struct error *err);
    /* As a route's handler, on the connection's thread. Takes over what *read owns. */
    enum MHD_Result (*handle)(struct exchange *exchange, void *read);
    /* Frees what *read owns, where it is not handled because the client has left. */
    void (*finish)(void *read);
};

/* As a route's handler, whose method is marked `large`. `kind` is static. Reads, and then handles
 * or answers why it cannot be read. */
enum MHD_Result reading_start(struct exchange *exchange, const struct reading_kind *kind);

#endif
