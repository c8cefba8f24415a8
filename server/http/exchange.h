/* One HTTP request and its answer, between the files that handle it (http.c, respond.c, the
 * routes). Belongs to one libmicrohttpd thread; only `deferred` is shared with others, and locks
 * itself.
 */
#ifndef SERVER_HTTP_EXCHANGE_H
#define SERVER_HTTP_EXCHANGE_H

#include "base/limits.h"
#include "server/server.h"

#include <microhttpd.h>
#include <stddef.h>
#include <stdint.h>

struct body;
struct connection;
struct deferred;
struct dialect;
struct http_thread;

#define BODY_BYTES_UNKNOWN UINT64_MAX

struct exchange {
    struct http_server *server;
    struct connection *connection;     /* borrowed, NULL if memory was short */
    struct MHD_Connection *http;       /* borrowed */
    struct http_thread *thread;        /* borrowed: the one that it belongs to */
    const struct route *route;         /* NULL if the path is not known */
    const struct route_method *method; /* NULL if the path does not answer it */
    const struct dialect *dialect;     /* whose errors it gets; NULL: ours */
    const char *raw_target;            /* where the target lies in the HTTP library's memory */
    const char *method_name;           /* as it came, "" until the headers are in; the library's */
    char *target;                      /* owned: the request target as it came */
    char id[REQUEST_ID_MAX_BYTES + 1];
    /* The name of the API key that it carries, "" where it needs none: who may see what it makes.
     */
    char caller[KEY_NAME_MAX_BYTES + 1];
    unsigned rights; /* of that key, enum key_right; all of them where there are no keys */
    const char *cors_origin; /* that of the page that sends it, where it is listed; or NULL */
    int64_t begun_ms;
    bool headers_seen;
    bool admitted; /* by the gate, which need not look again */
    bool owed;     /* counted in the server's `owed` */
    int status;    /* of the answer, once it is queued */
    /* How much the client says it sends, BODY_BYTES_UNKNOWN in chunks, and how much it has sent. */
    uint64_t body_bytes, body_received;
    struct body
        *held;        /* owned: what has come of a body that no sink takes (server/http/bodies.h) */
    const char *body; /* borrowed from that once it is whole, NULL for none */
    size_t body_size;
    bool reads;        /* a reader takes the body apart, which therefore stays (server/reading.h) */
    bool body_refused; /* it was not taken, and the rest was thrown away */
    struct error body_error; /* why */
    bool uploading;          /* a sink has begun with the body and not ended */
    void *upload;            /* the sink's */
    int64_t body_begun_ms;
    bool head_is_coming; /* in its thread's list of those (server/http/library/refusal.h) */
    struct exchange *previous_head, *next_head;
    struct deferred *deferred; /* owned reference */
    bool accepted;             /* by the engine: whatever comes is no refusal */
};

/* A request header's value, or NULL. */
const char *exchange_header(const struct exchange *exchange, const char *name);

#endif
