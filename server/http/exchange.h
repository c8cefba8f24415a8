/* One HTTP request and its answer, between the files that handle it (http.c, respond.c, the
 * routes). Belongs to one libmicrohttpd thread; only `pending` is shared with others, and locks
 * itself.
 */
#ifndef SERVER_HTTP_EXCHANGE_H
#define SERVER_HTTP_EXCHANGE_H

#include "base/limits.h"
#include "engine/engine.h"
#include "server/http/http.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct connection;
struct connections;
struct pending;
struct pending_worker;

struct exchange {
    struct http_server *server;
    struct connection *connection; /* borrowed, NULL if memory was short */
    struct MHD_Connection *http;   /* borrowed */
    const struct route *route;
    const char *raw_target; /* where the target lies in the HTTP library's memory */
    char *target;           /* owned: the request target as it came */
    char id[REQUEST_ID_MAX_BYTES + 1];
    bool headers_seen;
    int status; /* of the answer, once it is queued */
    char *body; /* owned */
    size_t body_size, body_capacity;
    bool body_refused;       /* there was no room for it; the rest was thrown away */
    struct pending *pending; /* owned reference */
};

struct http_server {
    struct http_options options;
    struct MHD_Daemon *daemon;
    int quiesced_fd; /* ours to close once the daemon has stopped; -1 for none */
    struct connections *connections;
    struct pending_worker *worker;
    pthread_mutex_t mutex;
    pthread_cond_t idle; /* signalled when pending or exchanges fall to 0 */
    bool stopping;
    int pending, exchanges; /* answers the engine works on; requests not yet answered in full */
    size_t body_bytes;      /* of all request bodies held */
    double last_total_s;    /* how long the last picture took, for Retry-After */
};

/* ENGINE_STOPPING once the server drains, otherwise the engine's. */
enum engine_state server_state(struct http_server *server, struct error *why_failed);

/* Whole seconds that a client should wait before it tries again. */
int server_retry_after_s(struct http_server *server);

/* A request header's value, or NULL. */
const char *exchange_header(const struct exchange *exchange, const char *name);

#endif
