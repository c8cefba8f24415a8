/* Parses request bodies before their requests are handled. Small bodies are parsed at once. Bodies
 * above HTTP_READ_AT_ONCE_BYTES are parsed on a reader thread while the connection is suspended, so
 * that they do not delay the other clients of an HTTP thread. */
#ifndef SERVER_LATER_READING_H
#define SERVER_LATER_READING_H

#include "server/http/exchange.h"

#include <stdbool.h>
#include <stddef.h>

struct reading_kind {
    size_t size; /* sizeof the parsed form */
    /* Parses exchange->body (exchange->body_size bytes) into *out, which has `size` zeroed bytes.
     * Any thread. It may read the exchange, but must not change or answer it. After a failure *out
     * is not finished. */
    bool (*read)(const struct exchange *exchange, void *out, struct error *err);
    /* Handles the parsed request on the connection's thread, as a route's handler does. Takes over
     * the contents of *read. */
    enum MHD_Result (*handle)(struct exchange *exchange, void *read);
    /* Frees the contents of *read if `handle` is not called, because the client has left. */
    void (*finish)(void *read);
};

/* Parses the body, then calls `handle` or answers the parse error. Call it as the handler of a
 * method that is marked `large`. `kind` is static. */
enum MHD_Result reading_start(struct exchange *exchange, const struct reading_kind *kind);

#endif
