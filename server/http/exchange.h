/* One HTTP request and its answer, shared by the files that handle it (http.c, respond.c, the
 * routes). Belongs to one libmicrohttpd thread; only `deferred` is shared with other threads, and
 * has its own lock. */
#ifndef SERVER_HTTP_EXCHANGE_H
#define SERVER_HTTP_EXCHANGE_H

#include "base/limits.h"
#include "server/http/server.h"

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
    struct connection *connection;     /* borrowed; NULL if memory was short */
    struct MHD_Connection *http;       /* borrowed */
    struct http_thread *thread;        /* borrowed: the thread it belongs to */
    const struct route *route;         /* NULL if the path is unknown */
    const struct route_method *method; /* NULL if the path does not have this method */
    const struct dialect *dialect;     /* of its errors; NULL: the native one */
    const char *raw_target;            /* the target in libmicrohttpd's memory */
    const char *method_name; /* as sent, "" until the headers are in; in libmicrohttpd's memory */
    char *target;            /* owned: the request target as sent */
    char id[REQUEST_ID_MAX_BYTES + 1];
    /* The name of its API key, "" if it needs none: the owner of what it makes. */
    char caller[KEY_NAME_MAX_BYTES + 1];
    unsigned rights;         /* of that key, enum key_right; all rights if there are no keys */
    const char *cors_origin; /* the origin of the page that sends it if that is listed; else NULL */
    int64_t begun_ms;
    bool headers_seen;
    bool admitted; /* by the gate, which need not check again */
    bool owed;     /* counted in the server's `owed` */
    int status;    /* of the answer, once queued */
    /* Body bytes announced by the client (BODY_BYTES_UNKNOWN if chunked), and received. */
    uint64_t body_bytes, body_received;
    struct body *held; /* owned: what has come of a body without a sink (server/http/bodies.h) */
    const char *body;  /* borrowed from `held` once it is complete; NULL: none */
    size_t body_size;
    bool reads;        /* a reader parses the body, so it must stay (server/later/reading.h) */
    bool body_refused; /* it was not accepted, and the rest was discarded */
    struct error body_error; /* why it was refused */
    bool uploading;          /* a sink has begun the body and not ended it */
    void *upload;            /* the sink's */
    int64_t body_begun_ms;
    bool head_is_coming; /* it is in its thread's list of coming heads
                            (server/http/library/refusal.h) */
    struct exchange *previous_head, *next_head;
    struct deferred *deferred; /* owned reference */
    bool accepted;             /* by the engine: an error from here on is not a refusal */
};

/* Returns a request header's value, or NULL. */
const char *exchange_header(const struct exchange *exchange, const char *name);

#endif
