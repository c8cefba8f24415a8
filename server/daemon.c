#include "server/daemon.h"

#include "base/condition.h"
#include "base/log.h"
#include "base/monotonic.h"
#include "base/random.h"
#include "engine/loop/switch.h"
#include "server/access/access_log.h"
#include "server/access/cors.h"
#include "server/access/gate.h"
#include "server/generation/generations.h"
#include "server/generation/jobs.h"
#include "server/generation/repeats.h"
#include "server/http/acceptor.h"
#include "server/http/bodies.h"
#include "server/http/caller.h"
#include "server/http/connections.h"
#include "server/http/exchange.h"
#include "server/http/guard/guard_head.h"
#include "server/http/library/refusal.h"
#include "server/http/library/threads.h"
#include "server/http/respond.h"
#include "server/later/deferred.h"
#include "server/later/job_watch.h"
#include "server/later/workers.h"
#include "server/openai/picture_urls.h"
#include "server/routes/answers.h"
#include "server/routes/routes.h"
#include "server/sdapi/settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

const char *exchange_header(const struct exchange *exchange, const char *name) {
    return MHD_lookup_connection_value(exchange->http, MHD_HEADER_KIND, name);
}

static struct connection *connection_of(struct MHD_Connection *http) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        http, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* --- Connections and exchanges, as libmicrohttpd reports them --- */

static struct exchange *exchange_create(
    struct http_thread *thread, const char *target, struct MHD_Connection *http) {
    struct exchange *exchange = calloc(1, sizeof(*exchange));
    if (!exchange)
        return NULL;
    exchange->server = thread->server;
    exchange->thread = thread;
    exchange->http = http;
    exchange->raw_target = target;
    exchange->begun_ms = monotonic_ms();
    exchange->method_name = "";
    exchange->target = strdup(target ? target : "");
    exchange->connection = connection_of(http);
    if (!exchange->target) {
        free(exchange);
        return NULL;
    }
    return exchange;
}

/* Frees the body. Called as soon as a handler has read it, because large bodies hold pictures and
 * other requests need the memory. */
static void drop_body(struct exchange *exchange) {
    bodies_drop(exchange->server->bodies, exchange->held);
    exchange->held = NULL;
    exchange->body = NULL;
    exchange->body_size = 0;
}

static void exchange_destroy(struct exchange *exchange) {
    struct http_server *server = exchange->server;
    refusal_note(exchange);
    refusal_head_has_come(exchange->thread, exchange);
    if (server->options.access_log && (exchange->headers_seen || exchange->status))
        access_log_write(server->options.access_log, exchange);
    answers_count(exchange->route, exchange->status);
    deferred_unref(exchange->deferred);
    drop_body(exchange);
    free(exchange->target);
    if (exchange->uploading)
        exchange->method->sink->give_up(exchange);
    pthread_mutex_lock(&server->mutex);
    if (exchange->owed && --server->owed == 0)
        pthread_cond_broadcast(&server->idle);
    pthread_mutex_unlock(&server->mutex);
    free(exchange);
}

/* Makes a drain wait until this exchange's answer is sent. */
static void owe_answer(struct exchange *exchange) {
    if (exchange->owed)
        return;
    exchange->owed = true;
    pthread_mutex_lock(&exchange->server->mutex);
    exchange->server->owed++;
    pthread_mutex_unlock(&exchange->server->mutex);
}

/* Ends the connection's previous exchange: libmicrohttpd does not report the end of a request if it
 * ran out of memory for the request's head. */
static void end_forgotten(struct connection *connection) {
    struct exchange *exchange = connection_request(connection);
    connection_set_request(connection, NULL);
    if (exchange)
        exchange_destroy(exchange);
}

static void on_connection(void *user, struct MHD_Connection *http, void **context,
    enum MHD_ConnectionNotificationCode code) {
    struct http_thread *thread = user;
    struct http_server *server = thread->server;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(
            http, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = info ? connections_add(server->connections, info->connect_fd) : NULL;
        return;
    }
    http_thread_let_go(thread); /* before a new client can take the place */
    if (*context) {
        end_forgotten(*context);
        connections_remove(server->connections, *context);
        *context = NULL;
    } else {
        connections_give_place(server->connections);
    }
}

static const char no_cookies[] = "";

/* Keeps libmicrohttpd from splitting the query into arguments and the Cookie header into cookies,
 * because nothing here reads them. The library needs memory for each piece, and never answers if it
 * runs out of memory. */
static void leave_whole(const char *target, struct MHD_Connection *http) {
    char *query = target ? strchr(target, '?') : NULL; /* in the library's own buffer */
    for (char *p = query; p && *p; p++)
        if (*p == '&')
            *p = ';';
    /* The library finds this header before the client's. */
    MHD_set_connection_value(http, MHD_HEADER_KIND, "Cookie", no_cookies);
}

/* Called when the request line has arrived. The result becomes the context of on_request. `target`
 * is NULL if the request has none. It ends at its first NUL, although a request may contain a NUL:
 * guard_head.c detects that. */
static void *on_target(void *user, const char *target, struct MHD_Connection *http) {
    struct http_thread *thread = user;
    struct connection *connection = connection_of(http);
    if (connection) {
        end_forgotten(connection);
        connections_enter(thread->server->connections, connection, CONNECTION_HEADERS);
    }
    struct exchange *exchange = exchange_create(thread, target, http);
    if (exchange)
        refusal_expect_head(thread, exchange);
    if (connection)
        connection_set_request(connection, exchange);
    leave_whole(target, http);
    return exchange;
}

static void on_completed(
    void *user, struct MHD_Connection *http, void **context, enum MHD_RequestTerminationCode code) {
    struct http_server *server = ((struct http_thread *)user)->server;
    struct exchange *exchange = *context;
    (void)http;
    (void)code;
    if (!exchange)
        return;
    *context = NULL;
    if (exchange->connection) {
        /* The watch must end before the deferred answer is freed. */
        connections_enter(server->connections, exchange->connection, CONNECTION_IDLE);
        connection_set_request(exchange->connection, NULL);
    }
    exchange_destroy(exchange);
}

/* --- A request --- */

struct head {
    struct guard_head form;
    struct guard_headers headers;
};

static enum MHD_Result add_header(void *user, enum MHD_ValueKind kind, const char *name,
    size_t name_size, const char *value, size_t value_size) {
    struct head *head = user;
    (void)kind;
    if (value == no_cookies)
        return MHD_YES;
    guard_head_add(&head->form, name, name_size, value ? value : "", value ? value_size : 0);
    guard_add_header(&head->headers, name, value, value_size);
    return MHD_YES;
}

/* Returns whether libmicrohttpd splits heads as guard_head.c expects. Later versions split them
 * differently, but are strict themselves. */
static bool cuts_as_known(void) {
    const char *library = MHD_get_version();
    return strncmp(library, "0.9.7", 5) == 0 && library[5] <= '6';
}

/* Reads the head's fields as libmicrohttpd has split them. */
static void read_head(
    struct exchange *exchange, const char *method, const char *version, struct head *head) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        exchange->http, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (info && cuts_as_known())
        guard_head_begin(&head->form, method, info->header_size, exchange->raw_target,
            strlen(exchange->target), version);
    else
        guard_head_begin_pieces(&head->form);
    MHD_get_connection_values_n(exchange->http, MHD_HEADER_KIND, add_header, head);
}

static void choose_id(struct exchange *exchange, const struct guard_headers *headers) {
    const struct guard_header *given = &headers->request_id;
    if (given->count == 1 && guard_id_is_valid(given->value, given->length)) {
        memcpy(exchange->id, given->value, given->length);
        return;
    }
    (void)random_text(exchange->id, 12, NULL); /* if this fails, the answer has no id */
}

/* Returns the largest body that the request may have. Call it when the route is known, because a
 * route may have its own limit. */
static uint64_t body_max_bytes(const struct exchange *exchange) {
    const struct route_method *method = exchange->method;
    if (method && method->sink)
        return method->sink->max_bytes(exchange);
    return !method || method->large ? HTTP_BODY_MAX_BYTES : HTTP_READ_AT_ONCE_BYTES;
}

static void find_route(struct exchange *exchange, const char *method) {
    char *query = strchr(exchange->target, '?');
    if (query)
        *query = 0;
    exchange->route = route_find(exchange->target);
    exchange->dialect = route_dialect(exchange->route, exchange->target);
    if (query)
        *query = '?';
    if (exchange->route)
        exchange->method = route_find_method(exchange->route, method);
}

/* Answers a request whose complete head was refused by libmicrohttpd, for its length or for lack of
 * memory. */
static void refuse_head(struct exchange *exchange, int status) {
    struct head head = { .form = { .verdict = { 0 } } };
    struct error err;
    const char *length = exchange_header(exchange, "Content-Length");
    MHD_get_connection_values_n(exchange->http, MHD_HEADER_KIND, add_header, &head);
    choose_id(exchange, &head.headers);
    find_route(exchange, "");
    if (length && status != 431)
        error_field(&err, "Content-Length", length, "one number of bytes, in digits");
    else
        error_set(
            &err, ERROR_TOO_LARGE, "the head of the request is larger than this server takes");
    if (status == 413)
        err.code = ERROR_TOO_LARGE;
    refusal_answer(exchange, status, &err);
}

static bool is_any_address(const char *host) {
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "[::]") == 0;
}

static struct guard_verdict guard(
    struct exchange *exchange, const char *method, const char *version) {
    const struct http_options *options = &exchange->server->options;
    const struct route_method *route = exchange->method;
    struct head head = { 0 };
    read_head(exchange, method, version, &head);
    if (head.headers.origin.count == 1)
        exchange->cors_origin = cors_find(
            options->origins, head.headers.origin.value, head.headers.origin.length);
    const struct guard_request request = {
        .method = method,
        .target = exchange->target,
        .target_length = strlen(exchange->target),
        .headers = head.headers,
        .own_host = options->own_host,
        .hosts = options->hosts,
        .any_address = options->own_host && is_any_address(options->own_host),
        .listed_origin = exchange->cors_origin != NULL,
        .body_max_bytes = body_max_bytes(exchange),
        .takes_chunks = route && route->sink,
        .no_body = route && (!route->content_types || (!route->sink && route_takes(route, NULL))),
    };
    choose_id(exchange, &head.headers);
    exchange->body_bytes = head.headers.transfer_encoding.count > 0
                               ? BODY_BYTES_UNKNOWN
                               : guard_body_bytes(&head.headers);
    const struct guard_verdict form = guard_head_end(&head.form);
    return form.status ? form : guard_check(&request);
}

static enum MHD_Result refuse_size(struct exchange *exchange) {
    struct error err;
    char bytes[32];
    snprintf(bytes, sizeof(bytes), "%" PRIu64, exchange->body_bytes);
    error_field(&err, "Content-Length", bytes, "at most %" PRIu64, body_max_bytes(exchange));
    err.code = ERROR_TOO_LARGE;
    return respond_error(exchange, &err);
}

static enum MHD_Result refuse_type(struct exchange *exchange) {
    char message[128];
    size_t used = (size_t)snprintf(message, sizeof(message), "send Content-Type: ");
    const char *const *types = exchange->method->content_types;
    for (int i = 0; types[i] && types[i][0] && used < sizeof(message); i++)
        used += (size_t)snprintf(
            message + used, sizeof(message) - used, "%s%s", i ? " or " : "", types[i]);
    return respond_refusal(exchange, 415, "unsupported_media_type", message, NULL, false);
}

/* Answers a browser's preflight request for a page of a listed origin. A listed origin is trusted,
 * so every header that the browser names is allowed. */
static enum MHD_Result allow_page(struct exchange *exchange, const char *methods) {
    const struct answer_header headers[] = {
        { "Access-Control-Allow-Methods", methods },
        { "Access-Control-Allow-Headers",
            exchange_header(exchange, "Access-Control-Request-Headers") },
        { "Access-Control-Max-Age", CORS_MAX_AGE_S },
        { NULL, NULL },
    };
    return respond_bytes(exchange, 204, NULL, NULL, 0, headers, false);
}

/* Answers a request that has passed the guard, but only if the answer does not depend on the body.
 * Most of these answers are refusals. Returns false if it answered nothing. */
static bool answer_early(struct exchange *exchange, const char *method, enum MHD_Result *answered) {
    const struct route *route = exchange->route;
    char text[64];
    const struct answer_header allow[] = {
        { "Allow", route ? route_allow(route, text, sizeof(text)) : NULL }, { NULL, NULL }
    };
    const bool options = strcmp(method, "OPTIONS") == 0;
    struct error err = { 0 };
    if (cors_is_preflight(exchange) && route) {
        *answered = allow_page(exchange, allow[0].value);
        return true;
    }
    if (!gate_admit(exchange->server->gate, exchange, answered))
        return true;
    if (options && (route || strcmp(exchange->target, "*") == 0))
        *answered = respond_bytes(exchange, 204, NULL, NULL, 0, allow, false);
    else if (!route)
        *answered = respond_refusal(
            exchange, 404, "not_found", "there is no such path here", NULL, false);
    else if (!exchange->method)
        *answered = respond_refusal(exchange, 405, "method_not_allowed",
            "this path does not have this method; the header Allow lists those it has", allow,
            false);
    else if (exchange->method->content_types &&
             !route_takes(exchange->method, exchange_header(exchange, "Content-Type")))
        *answered = refuse_type(exchange);
    else if (!exchange->method->content_types && exchange->body_bytes > 0)
        *answered = respond_refusal(
            exchange, 400, "invalid_request", "this method takes no body here", NULL, false);
    else if (exchange->method->may_come && !exchange->method->may_come(exchange, &err))
        *answered = respond_error(exchange, &err);
    else
        return false;
    return true;
}

/* Called when the headers are complete. A request that the guard refuses is answered at once.
 * Other refusals wait for the body, so that the connection can be reused. They are also sent at
 * once if the body is large or goes to a sink, or if the client waits for permission to send it
 * (Expect). */
static enum MHD_Result begin(struct exchange *exchange, const char *method, const char *version) {
    find_route(exchange, method);
    struct guard_verdict verdict = guard(exchange, method, version);
    if (verdict.status) {
        owe_answer(exchange);
        if (verdict.status == 413)
            return refuse_size(exchange);
        return respond_refusal(exchange, verdict.status, verdict.code, verdict.message, NULL, true);
    }
    if (exchange->connection)
        connections_enter(exchange->server->connections, exchange->connection, CONNECTION_BODY);
    exchange->body_begun_ms = monotonic_ms();
    const bool streams = exchange->method && exchange->method->sink;
    enum MHD_Result result = MHD_YES;
    if ((streams || exchange->body_bytes > HTTP_DISCARD_MAX_BYTES ||
            exchange_header(exchange, "Expect")) &&
        answer_early(exchange, method, &result)) {
        owe_answer(exchange);
    } else if (streams) {
        exchange->uploading = exchange->method->sink->begin(exchange, &exchange->body_error);
        if (!exchange->uploading) {
            owe_answer(exchange);
            result = respond_error(exchange, &exchange->body_error);
        }
    }
    return result;
}

/* Appends to the body in memory. The body's length is known, because only sinks accept chunked
 * bodies. */
static bool append_body(
    struct exchange *exchange, const char *data, size_t size, struct error *err) {
    struct bodies *bodies = exchange->server->bodies;
    const int64_t now_ms = monotonic_ms();
    if (!exchange->held) {
        const struct caller caller = caller_of(exchange);
        exchange->held = bodies_add(bodies, (size_t)exchange->body_bytes, &caller, now_ms);
    }
    if (!exchange->held)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the body of this request");
    return bodies_append(bodies, exchange->held, data, size, now_ms, err);
}

/* Called for each piece of the body that arrives. */
static void take_body(struct exchange *exchange, const char *data, size_t size) {
    const struct body_sink *sink = exchange->method ? exchange->method->sink : NULL;
    const bool wanted = exchange->method && exchange->method->content_types &&
                        !exchange->body_refused;
    struct error *err = &exchange->body_error;
    if (wanted && sink)
        exchange->body_refused = !sink->write(exchange, data, size, err);
    else if (wanted)
        exchange->body_refused = !append_body(exchange, data, size, err);
    if (exchange->body_refused && exchange->uploading) {
        exchange->uploading = false;
        sink->give_up(exchange);
    }
    exchange->body_received += size;
    if (!exchange->connection)
        return;
    struct connections *connections = exchange->server->connections;
    connections_touch(connections, exchange->connection);
    if (exchange->uploading) /* large files get more time */
        connections_set_deadline(connections, exchange->connection,
            exchange->body_begun_ms + HTTP_BODY_TIMEOUT_MS +
                (int64_t)(exchange->body_received / HTTP_UPLOAD_BYTES_PER_MS));
}

static enum MHD_Result finish(struct exchange *exchange, const char *method) {
    enum MHD_Result result;
    owe_answer(exchange);
    if (exchange->deferred) { /* was suspended; the answer is ready now */
        result = exchange->deferred->kind->answer(exchange->deferred, exchange);
        drop_body(exchange);
        return result;
    }
    if (!exchange->uploading && answer_early(exchange, method, &result))
        return result;
    if (exchange->held && !exchange->body_refused)
        exchange->body_refused = !bodies_complete(exchange->server->bodies, exchange->held,
            &exchange->body, &exchange->body_size, &exchange->body_error);
    if (exchange->body_refused)
        return respond_error(exchange, &exchange->body_error);
    exchange->uploading = false; /* the handler owns the upload now */
    result = exchange->method->handle(exchange);
    if (!exchange->reads)
        drop_body(exchange);
    return result;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *http, const char *url,
    const char *method, const char *version, const char *upload_data, size_t *upload_data_size,
    void **context) {
    struct exchange *exchange = *context;
    (void)user;
    (void)http;
    (void)url;
    if (!exchange)
        return MHD_NO; /* no memory: the connection is closed */
    if (!exchange->headers_seen) {
        exchange->headers_seen = true;
        refusal_head_has_come(exchange->thread, exchange);
        exchange->method_name = method;
        return begin(exchange, method, version);
    }
    if (*upload_data_size > 0) {
        take_body(exchange, upload_data, *upload_data_size);
        *upload_data_size = 0;
        return MHD_YES;
    }
    return finish(exchange, method);
}

/* --- The daemon --- */

/* Receives libmicrohttpd's log. If a line reports a refused request, that request is answered here
 * with the status of the line. */
static void on_log(void *user, const char *format, va_list args) {
    struct http_thread *thread = user;
    char line[256];
    if (!format)
        return;
    va_list copy;
    va_copy(copy, args);
    vsnprintf(line, sizeof(line), format, copy);
    va_end(copy);
    line[strcspn(line, "\r\n")] = 0;
    if (strncmp(format, "Error processing request", 24) == 0) {
        struct exchange *exchange = refusal_find(thread);
        if (exchange)
            refuse_head(exchange, va_arg(args, int));
        else
            server_log_refusal(thread->server, "refused by the HTTP library: %s", line);
    }
    for (char *p = line; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?'; /* the line may quote the client */
    log_debug("http: %s", line);
}

static bool adopt(void *user, int fd, const struct sockaddr *address, socklen_t size) {
    struct http_server *server = user;
    return http_threads_adopt(server->threads, fd, address, size);
}

static const struct http_callbacks callbacks = {
    .on_request = on_request,
    .on_connection = on_connection,
    .on_completed = on_completed,
    .on_target = on_target,
    .on_log = on_log,
};

/* Returns a quarter of the processors, within limits. When many pictures end together, encoding
 * them must leave processors free to draw the next ones. */
static int encoder_threads(void) {
    const long quarter = sysconf(_SC_NPROCESSORS_ONLN) / 4;
    return quarter < HTTP_ENCODERS_MIN   ? HTTP_ENCODERS_MIN
           : quarter > HTTP_ENCODERS_MAX ? HTTP_ENCODERS_MAX
                                         : (int)quarter;
}

/* Each onlooker of a job occupies a connection, so onlookers may use only half of the
 * connections. */
static bool start_jobs(struct http_server *server, struct error *err) {
    const int half = server->options.connections_max / 2;
    struct queue *queue = server->options.queue; /* NULL: no jobs; the watch still serves streams */
    const struct picture_urls_limits pictures = { PICTURE_URLS_BYTES, PICTURE_URLS_MAX,
        PICTURE_URLS_AGE_S };
    return generations_create(&server->generations, err) && repeats_create(&server->repeats, err) &&
           picture_urls_create(&pictures, &server->picture_urls, err) &&
           (!queue || workers_create("clerks", 1, WORKERS_PLAIN, &server->clerks, err)) &&
           job_watch_create(queue, half > 1 ? half : 1, &server->job_watch, err) &&
           (!server->options.dispatcher ||
               generation_jobs_create(server, &server->generation_jobs, err));
}

bool http_server_create(
    const struct http_options *options, struct http_server **out, struct error *err) {
    struct http_server *server = calloc(1, sizeof(*server));
    if (server)
        server->sdapi = malloc(sizeof(*server->sdapi));
    if (!server || !server->sdapi) {
        free(server);
        return error_set(err, ERROR_NO_MEMORY, "no memory for the HTTP server");
    }
    server->options = *options;
    if (!cuts_as_known())
        log_warning(
            "libmicrohttpd %s is not one of 0.9.70 to 0.9.76: whether the heads of requests "
            "are well-formed to the byte is left to it",
            MHD_get_version());
    sdapi_settings_init(server->sdapi);
    server->started = time(NULL);
    pthread_mutex_init(&server->mutex, NULL);
    condition_init(&server->idle);
    if (gate_create(options->keys, &server->gate, err) &&
        bodies_create(HTTP_BODIES_MAX_BYTES, HTTP_SMALL_BODIES_MAX_BYTES, &server->bodies, err) &&
        connections_create(options->connections_max, deferred_cancel, &server->connections, err) &&
        workers_create("encoders", encoder_threads(), WORKERS_PLAIN, &server->encoders, err) &&
        workers_create("loaders", HTTP_LOADERS, WORKERS_PLAIN, &server->loaders, err) &&
        workers_create("readers", HTTP_READERS, WORKERS_YIELDING, &server->readers, err) &&
        workers_create("unpackers", HTTP_UNPACKERS, WORKERS_BACKGROUND, &server->unpackers, err) &&
        workers_create("walkers", HTTP_WALKERS, WORKERS_BACKGROUND, &server->walkers, err) &&
        start_jobs(server, err) &&
        http_threads_create(server, &callbacks, options->connections_max, &server->threads, err) &&
        acceptor_create(options->listen_fd, options->listen_is_inherited, server->connections,
            adopt, server, &server->acceptor, err)) {
        *out = server;
        return true;
    }
    http_server_destroy(server);
    return false;
}

/* Waits until *count is 0. Returns false if it is not 0 by the deadline; INT64_MAX is no deadline.
 * Call with the lock held. */
static bool wait_for_none(struct http_server *server, const int *count, int64_t deadline_ms) {
    while (*count > 0 && condition_wait_until(&server->idle, &server->mutex, deadline_ms))
        ;
    return *count == 0;
}

void http_server_drain(struct http_server *server) {
    const int limit_s = server->options.drain_timeout_s;
    const int64_t deadline_ms = limit_s ? monotonic_ms() + limit_s * INT64_C(1000) : INT64_MAX;
    pthread_mutex_lock(&server->mutex);
    server->stopping = true;
    pthread_mutex_unlock(&server->mutex);
    engine_orders_changed(server->options.engine); /* a switch that waits for orders fails now */
    acceptor_destroy(server->acceptor);
    server->acceptor = NULL;
    job_watch_stop(server->job_watch);
    pthread_mutex_lock(&server->mutex);
    if (!wait_for_none(server, &server->pending, deadline_ms)) {
        log_warning("%d accepted requests are not done after %d s and are cancelled",
            server->pending, limit_s);
        pthread_mutex_unlock(&server->mutex);
        connections_cancel_all(server->connections);
        pthread_mutex_lock(&server->mutex);
        (void)wait_for_none(server, &server->pending, INT64_MAX);
    }
    /* Cancelled requests may have ended long after the deadline. Their clients still get
     * HTTP_LAST_WORDS_MS to read the error. */
    const int64_t now_ms = monotonic_ms();
    int64_t sent_by_ms = now_ms + HTTP_DRAIN_TIMEOUT_S * INT64_C(1000);
    if (deadline_ms < sent_by_ms)
        sent_by_ms = (deadline_ms > now_ms ? deadline_ms : now_ms) + HTTP_LAST_WORDS_MS;
    if (!wait_for_none(server, &server->owed, sent_by_ms))
        log_warning("%d clients do not take their answers", server->owed);
    pthread_mutex_unlock(&server->mutex);
}

void http_server_destroy(struct http_server *server) {
    if (!server)
        return;
    acceptor_destroy(server->acceptor);
    http_threads_destroy(server->threads);
    generation_jobs_stop(server->generation_jobs);
    job_watch_destroy(server->job_watch);
    workers_destroy(server->clerks);
    workers_destroy(server->unpackers);
    workers_destroy(server->walkers);
    workers_destroy(server->loaders);
    workers_destroy(server->readers); /* after the pools that give it work */
    workers_destroy(server->encoders);
    generation_jobs_destroy(server->generation_jobs);
    generations_destroy(server->generations);
    repeats_destroy(server->repeats);
    picture_urls_destroy(server->picture_urls);
    connections_destroy(server->connections);
    bodies_destroy(server->bodies);
    gate_destroy(server->gate);
    pthread_cond_destroy(&server->idle);
    pthread_mutex_destroy(&server->mutex);
    free(server->sdapi);
    free(server);
}
