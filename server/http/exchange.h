/* One HTTP request and its answer, shared by the files that handle it (daemon.c, respond.c, the
 * routes). Belongs to one libmicrohttpd thread. Only `deferred` is shared with other threads; it
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
    struct http_thread *thread;        /* borrowed: the thread of the exchange */
    const struct route *route;         /* NULL if the path is unknown */
    const struct route_method *method; /* NULL if the path does not have this method */
    const struct dialect *dialect;     /* form of its errors; NULL: native */
    const char *raw_target;            /* the target in libmicrohttpd's memory */
    const char *method_name; /* as sent, in libmicrohttpd's memory; "" until the head has come */
    char *target;            /* owned: the request target as sent */
    char id[REQUEST_ID_MAX_BYTES + 1];
    /* The name of the request's API key, which owns what the request makes; "" if no key is
     * needed. */
    char caller[KEY_NAME_MAX_BYTES + 1];
    unsigned rights;         /* of that key, enum key_right; all rights if there are no keys */
    const char *cors_origin; /* origin of the page that sent it, if listed; else NULL */
    int64_t begun_ms;
    bool headers_seen;
    bool admitted; /* passed the check of API keys (server/access/gate.h) */
    bool owed;     /* counted in http_server.owed: its answer is not completely sent */
    int status;    /* of the answer, when queued; 0: none */
    /* Body bytes announced by the client (BODY_BYTES_UNKNOWN if chunked), and received. */
    uint64_t body_bytes, body_received;
    struct body *held; /* owned: received bytes, unless a sink takes them (server/http/bodies.h) */
    const char *body;  /* borrowed from `held`; NULL: not complete */
    size_t body_size;
    bool reads;              /* a reader has to parse the body, so keep it (later/reading.h) */
    bool body_refused;       /* it was refused; the rest was discarded */
    struct error body_error; /* why the body was refused */
    bool uploading;          /* a sink is receiving the body */
    void *upload;            /* the sink's */
    int64_t body_begun_ms;
    bool head_is_coming; /* in its thread's list of incomplete heads (refusal.h) */
    struct exchange *previous_head, *next_head;
    struct deferred *deferred; /* owned reference */
    bool accepted;             /* the engine has it: a later error is not a refusal */
};

/* Returns a request header's value, or NULL. */
const char *exchange_header(const struct exchange *exchange, const char *name);

#endif
