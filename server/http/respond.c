#include "server/http/respond.h"

#include "base/json.h"
#include "server/http/connections.h"

#include <stdlib.h>
#include <string.h>

static enum MHD_Result queue(struct exchange *exchange, int status, struct MHD_Response *response,
    const char *content_type, const struct answer_header *headers, bool close) {
    static const struct answer_header always[] = {
        { "X-Content-Type-Options", "nosniff" },
        { "Cache-Control", "no-store" },
        { "Content-Security-Policy", "default-src 'none'" },
        { NULL, NULL },
    };
    bool ok = true;
    for (const struct answer_header *h = always; h->name; h++)
        ok = ok && MHD_add_response_header(response, h->name, h->value) == MHD_YES;
    for (const struct answer_header *h = headers; ok && h && h->name; h++)
        ok = !h->value || MHD_add_response_header(response, h->name, h->value) == MHD_YES;
    if (content_type)
        ok = ok && MHD_add_response_header(response, "Content-Type", content_type) == MHD_YES;
    if (exchange->id[0])
        ok = ok && MHD_add_response_header(response, "X-Request-Id", exchange->id) == MHD_YES;
    if (close)
        ok = ok && MHD_add_response_header(response, "Connection", "close") == MHD_YES;
    exchange->status = status;
    if (exchange->connection)
        connections_enter(exchange->server->connections, exchange->connection, CONNECTION_SEND);
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
        return MHD_NO; /* no memory for even the answer: the connection is closed */
    }
    return queue(exchange, status, response, content_type, headers, close);
}

static enum MHD_Result respond_dump(struct exchange *exchange, int status, json_t *json,
    const struct answer_header *headers, bool close) {
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(json);
    if (!text)
        return MHD_NO;
    return respond_bytes(exchange, status, "application/json", text, strlen(text), headers, close);
}

enum MHD_Result respond_json(struct exchange *exchange, int status, json_t *json) {
    return respond_dump(exchange, status, json, NULL, false);
}

/* An empty text is left out: it is not known, rather than empty. */
static void set_text(json_t *object, const char *key, const char *text) {
    if (text[0])
        json_object_set_new(object, key, json_lenient_string(text));
}

enum MHD_Result respond_error(struct exchange *exchange, const struct error *err) {
    int status = error_http_status(err->code);
    char seconds[16];
    snprintf(seconds, sizeof(seconds), "%d", server_retry_after_s(exchange->server));
    const struct answer_header headers[] = {
        { "Retry-After", status == 429 || status == 503 ? seconds : NULL },
        { NULL, NULL },
    };
    json_t *inner = json_object();
    set_text(inner, "code", error_code_name(err->code));
    set_text(inner, "message", err->message);
    set_text(inner, "param", err->param);
    set_text(inner, "value", err->value);
    set_text(inner, "allowed", err->allowed);
    return respond_dump(exchange, status, json_pack("{s:o}", "error", inner), headers, false);
}

enum MHD_Result respond_refusal(struct exchange *exchange, int status, const char *code,
    const char *message, const struct answer_header *headers, bool close) {
    json_t *json = json_pack("{s:{s:s, s:s}}", "error", "code", code, "message", message);
    return respond_dump(exchange, status, json, headers, close);
}
