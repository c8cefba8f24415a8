#include "server/http/respond.h"

#include "base/metrics.h"
#include "base/text/json.h"
#include "server/http/caller.h"
#include "server/http/connections.h"
#include "server/http/dialect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define STREAM_BLOCK_BYTES 4096

static const struct answer_header always[] = {
    { "X-Content-Type-Options", "nosniff" },
    { "Cache-Control", "no-store" },
    { "Content-Security-Policy", "default-src 'none'" },
    { NULL, NULL },
};

static bool contains(const struct answer_header *headers, const char *name) {
    for (const struct answer_header *h = headers; h && h->name; h++)
        if (strcasecmp(h->name, name) == 0)
            return true;
    return false;
}

/* Adds all of `headers` except those that are also in `but`. */
static bool add_headers(struct MHD_Response *response, const struct answer_header *headers,
    const struct answer_header *but) {
    bool ok = true;
    for (const struct answer_header *h = headers; ok && h && h->name; h++)
        if (h->value && !contains(but, h->name))
            ok = MHD_add_response_header(response, h->name, h->value) == MHD_YES;
    return ok;
}

static enum MHD_Result queue(struct exchange *exchange, int status, struct MHD_Response *response,
    const char *content_type, const struct answer_header *headers, bool close) {
    /* A proxy in front of the daemon may see the end of a chunked body somewhere else. So the
     * connection is closed, and no further request can follow. */
    close = close || exchange->body_bytes == BODY_BYTES_UNKNOWN;
    const struct answer_header *own = exchange->route && status < 400 ? exchange->route->headers
                                                                      : NULL;
    const struct answer_header these[] = {
        { "Content-Type", content_type },
        { "X-Request-Id", exchange->id[0] ? exchange->id : NULL },
        { "Connection", close ? "close" : NULL },
        { "Vary", exchange->server->options.origins ? "Origin" : NULL },
        { "Access-Control-Allow-Origin", exchange->cors_origin },
        { "Access-Control-Expose-Headers",
            exchange->cors_origin
                ? "Retry-After, WWW-Authenticate, X-NSFW, X-Request-Id, X-Seed, X-Should-Retry"
                : NULL },
        { NULL, NULL },
    };
    bool ok = add_headers(response, always, own) && add_headers(response, own, NULL) &&
              add_headers(response, headers, NULL) && add_headers(response, these, NULL);
    exchange->status = status;
    if (exchange->connection) {
        connections_enter(exchange->server->connections, exchange->connection, CONNECTION_SEND);
        if (exchange->body_received < exchange->body_bytes || close)
            connections_linger(exchange->server->connections, exchange->connection);
    }
    enum MHD_Result queued = ok ? MHD_queue_response(exchange->http, (unsigned)status, response)
                                : MHD_NO;
    MHD_destroy_response(response);
    return queued;
}

enum MHD_Result respond_bytes(struct exchange *exchange, int status, const char *content_type,
    void *body, size_t size, const struct answer_header *headers, bool close) {
    struct MHD_Response *response = MHD_create_response_from_buffer(
        size, body, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(body);
        return MHD_NO; /* no memory: the connection is closed */
    }
    return queue(exchange, status, response, content_type, headers, close);
}

enum MHD_Result respond_shared(
    struct exchange *exchange, const char *content_type, const struct shared_bytes *body) {
    struct MHD_Response *response = MHD_create_response_from_buffer_with_free_callback_cls(
        body->size, body->bytes, body->release, body->owner);
    if (response)
        return queue(exchange, 200, response, content_type, NULL, false);
    body->release(body->owner);
    return MHD_NO; /* no memory: the connection is closed */
}

enum MHD_Result respond_file(
    struct exchange *exchange, const char *content_type, int fd, uint64_t size) {
    struct MHD_Response *response = MHD_create_response_from_fd64(size, fd);
    if (response)
        return queue(exchange, 200, response, content_type, NULL, false);
    close(fd);
    return MHD_NO;
}

enum MHD_Result respond_stream(struct exchange *exchange, const char *content_type,
    MHD_ContentReaderCallback read, void (*end)(void *user), void *user,
    const struct answer_header *headers) {
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read, user, end);
    if (!response) {
        end(user);
        return MHD_NO;
    }
    const enum MHD_Result queued = queue(exchange, 200, response, content_type, headers, false);
    if (exchange->connection) /* no deadline for a stream */
        connections_watch(exchange->server->connections, exchange->connection, exchange->deferred);
    return queued;
}

static enum MHD_Result respond_dump(struct exchange *exchange, int status, json_t *json,
    const struct answer_header *headers, bool close) {
    static const char failure[] = "{\"error\":{\"code\":\"internal_error\","
                                  "\"message\":\"the answer could not be made\"}}";
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(json);
    if (!text) {
        text = strdup(failure);
        status = 500;
    }
    if (!text)
        return MHD_NO;
    return respond_bytes(exchange, status, "application/json", text, strlen(text), headers, close);
}

enum MHD_Result respond_json(struct exchange *exchange, int status, json_t *json) {
    return respond_dump(exchange, status, json, NULL, false);
}

/* Sets a member, unless the text is empty: an empty text means unknown. */
static void set_text(json_t *object, const char *key, const char *text) {
    if (text[0])
        json_object_set_new(object, key, json_lenient_string(text));
}

/* Counts a refusal. Accepted requests are counted when they end (server/generation/run.c). */
static void count_refusal(const struct exchange *exchange, int status, const char *code) {
    static const struct {
        int status;
        enum metric metric;
    } reasons[] = {
        { 400, METRIC_rejected_total_invalid },
        { 401, METRIC_rejected_total_unauthorized },
        { 403, METRIC_rejected_total_forbidden },
        { 404, METRIC_rejected_total_not_found },
        { 409, METRIC_rejected_total_conflict },
        { 413, METRIC_rejected_total_too_large },
        { 429, METRIC_rejected_total_queue_full },
        { 503, METRIC_rejected_total_unavailable },
        { 507, METRIC_rejected_total_no_memory },
    };
    enum metric metric = METRIC_rejected_total_other;
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
        if (reasons[i].status == status)
            metric = reasons[i].metric;
    if (strcmp(code, error_code_name(ERROR_NO_SPACE)) == 0)
        metric = METRIC_rejected_total_disk_full;
    if (strcmp(code, RESPOND_TOO_MANY_FAILURES) == 0)
        metric = METRIC_rejected_total_too_many_failures;
    if (!exchange->accepted)
        metric_add(metric, 1);
}

/* Counts and logs a refusal. The target is cut short, because only people read the line. */
static void note_refusal(
    const struct exchange *exchange, int status, const char *code, const char *message) {
    count_refusal(exchange, status, code);
    server_log_refusal(exchange->server, "%s: %d to %.16s %.100s: %s",
        exchange->id[0] ? exchange->id : "-", status, exchange->method_name, exchange->target,
        message);
}

static json_t *native_json(const struct error *err, const char *code, int *status) {
    (void)status;
    json_t *inner = json_object();
    set_text(inner, "code", code);
    set_text(inner, "message", err->message);
    set_text(inner, "param", err->param);
    set_text(inner, "value", err->value);
    set_text(inner, "allowed", err->allowed);
    return json_pack("{s:o}", "error", inner);
}

json_t *respond_error_json(const struct error *err) {
    return native_json(err, error_code_name(err->code), NULL);
}

/* Answers with an error in the form of the path's dialect. */
static enum MHD_Result respond_failure(struct exchange *exchange, const struct error *err,
    const char *code, int status, const struct answer_header *headers, bool close) {
    const struct dialect *dialect = exchange->dialect;
    note_refusal(exchange, status, code, err->message);
    json_t *json = dialect ? dialect->error_json(err, code, &status)
                           : native_json(err, code, &status);
    return respond_dump(exchange, status, json, headers, close);
}

char *respond_error_text(
    struct exchange *exchange, int status, const struct error *err, size_t *size) {
    const struct dialect *dialect = exchange->dialect;
    const char *code = error_code_name(err->code);
    note_refusal(exchange, status, code, err->message);
    json_t *json = dialect ? dialect->error_json(err, code, &status)
                           : native_json(err, code, &status);
    char *body = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    char *text = NULL;
    FILE *out = body ? open_memstream(&text, size) : NULL;
    if (out) {
        fprintf(out, "HTTP/1.1 %d %s\r\n", status, MHD_get_reason_phrase_for((unsigned)status));
        for (const struct answer_header *h = always; h->name; h++)
            fprintf(out, "%s: %s\r\n", h->name, h->value);
        fprintf(out,
            "Content-Type: application/json\r\nX-Request-Id: %s\r\nConnection: close\r\n"
            "Content-Length: %zu\r\n\r\n%s",
            exchange->id, strlen(body), body);
        if (fclose(out) != 0) {
            free(text);
            text = NULL;
        }
    }
    free(body);
    exchange->status = status;
    return text;
}

/* Returns whether the same request would be refused again. Many clients retry after any error,
 * unless X-Should-Retry tells them not to. */
static bool is_final(int status) {
    return status == 409 || status == 499 || status == 501 || status == 504;
}

enum MHD_Result respond_error(struct exchange *exchange, const struct error *err) {
    const int status = error_http_status(err->code);
    char seconds[16];
    const bool again = status == 429 || status == 503;
    if (again) {
        const struct caller caller = caller_of(exchange);
        snprintf(seconds, sizeof(seconds), "%d",
            server_retry_after_s(exchange->server, caller_number(caller.text)));
    }
    const struct answer_header headers[] = {
        { "Retry-After", again ? seconds : NULL },
        { "X-Should-Retry", is_final(status) ? "false" : NULL },
        { NULL, NULL },
    };
    return respond_failure(exchange, err, error_code_name(err->code), status, headers, false);
}

enum MHD_Result respond_refusal(struct exchange *exchange, int status, const char *code,
    const char *message, const struct answer_header *headers, bool close) {
    struct error err;
    error_set(&err, ERROR_NONE, "%s", message);
    return respond_failure(exchange, &err, code, status, headers, close);
}
