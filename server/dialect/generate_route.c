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

/* One picture fits into an image/png answer: no list, no second image, no latents. */
static bool check_format(
    const struct resolved_request *request, enum pending_format format, struct error *err) {
    if (format == PENDING_JSON)
        return true;
    if (request->asked.latent_output)
        return error_field(err, "output", "\"latent\"",
            "\"png\" with Accept: image/png; latents come with Accept: application/json");
    if (request->images > 1)
        return error_field(err, request->asked.num_images > 1 ? "num_images" : "prompt",
            "more than one image",
            "one image with Accept: image/png; several come with Accept: application/json");
    return true;
}

/* From the body to what is drawn: all that can be wrong with it is said here, whoever waits. */
static bool admit(struct exchange *exchange, enum pending_format format,
    struct resolved_request *out, struct error *err) {
    struct generate_request request;
    if (!generate_json_parse(exchange->body, exchange->body_size, &request, err))
        return false;
    bool ok = engine_resolve(exchange->server->options.engine, &request, out, err);
    generate_request_finish(&request);
    if (ok && !check_format(out, format, err)) {
        resolved_request_finish(out);
        return false;
    }
    return ok;
}

static enum MHD_Result handle(struct exchange *exchange) {
    enum pending_format format;
    if (!negotiate(exchange, &format))
        return respond_refusal(exchange, 406, "not_acceptable",
            "this route answers with application/json or image/png", NULL, false);
    struct error err = { 0 };
    struct resolved_request request;
    bool suspended = false;
    if (!admit(exchange, format, &request, &err))
        return respond_error(exchange, &err);
    if (!pending_start(exchange, &request, format, &suspended, &err)) {
        resolved_request_finish(&request);
        return respond_error(exchange, &err);
    }
    return suspended ? MHD_YES : pending_answer(exchange);
}

const struct route route_generate = { .path = "/generate",
    .methods = { { "POST", content_types_json, early, handle } } };
