/* POST /generate: negotiates the answer's form, parses, and hands over to a pending answer. */
#include "server/http/accept.h"
#include "server/dialect/generate_answer.h"
#include "server/dialect/generate_json.h"
#include "server/pending.h"
#include "server/http/respond.h"
#include "server/http/route.h"

#include <string.h>

static bool early(struct exchange *exchange, enum MHD_Result *answered) {
    struct error err = { 0 }, why = { 0 };
    enum engine_state state = server_state(exchange->server, &why);
    const char *query = strchr(exchange->target, '?');
    const char *key = exchange_header(exchange, "Idempotency-Key");
    bool ok = engine_state_takes(state, &why, &err);
    if (ok && query)
        ok = error_field(&err, "query", query, "POST /generate takes no query");
    if (ok && key)
        ok = error_field(&err, "Idempotency-Key", key,
            "this version does not support it; X-Request-Id names a request");
    if (ok)
        return false;
    *answered = respond_error(exchange, &err);
    return true;
}

/* What form the client wants; false if neither. JSON where both are as good. */
static bool negotiate(struct exchange *exchange, enum pending_format *format) {
    const char *accept = exchange_header(exchange, "Accept");
    int json = accept_quality(accept, "application/json");
    int png = accept_quality(accept, "image/png");
    *format = png > json ? PENDING_PNG : PENDING_JSON;
    return json > 0 || png > 0;
}

static enum MHD_Result handle(struct exchange *exchange) {
    enum pending_format format;
    if (!negotiate(exchange, &format))
        return respond_refusal(exchange, 406, "not_acceptable",
            "this route answers with application/json or image/png", NULL, false);
    struct error err = { 0 };
    struct generate_request request;
    return generate_json_parse(exchange->body, exchange->body_size, &request, &err)
               ? pending_generate(exchange, &request, format)
               : respond_error(exchange, &err);
}

const struct route route_generate = { .path = "/generate",
    .methods = { { "POST", content_types_json, early, handle } } };
