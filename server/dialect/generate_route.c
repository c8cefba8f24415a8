/* POST /generate: negotiates the answer's form, parses, and hands over to a pending answer. */
#include "server/http/accept.h"
#include "server/dialect/generate_answer.h"
#include "server/dialect/generate_json.h"
#include "server/generation/pending.h"
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

/* What form the client wants; false if none. JSON where it is as good as a picture, and of these
 * the first in the order of enum picture_format. */
static bool negotiate(struct exchange *exchange, struct pending_form *form) {
    const char *accept = exchange_header(exchange, "Accept");
    const int json = accept_quality(accept, "application/json");
    int best = 0;
    for (int i = 0; i < PICTURE_FORMATS; i++) {
        const enum picture_format format = (enum picture_format)i;
        const int quality = accept_quality(accept, picture_media_type(format));
        form->accepts[i] = quality > 0;
        if (quality > best) {
            best = quality;
            form->preferred = format;
        }
    }
    form->json = json >= best;
    return json > 0 || best > 0;
}

static enum MHD_Result handle(struct exchange *exchange) {
    struct pending_form form = { 0 };
    if (!negotiate(exchange, &form))
        return respond_refusal(exchange, 406, "not_acceptable",
            "this route answers with application/json, image/png, image/jpeg or image/webp", NULL,
            false);
    struct error err = { 0 };
    struct generate_request request;
    return generate_json_parse(exchange->body, exchange->body_size, &request, &err)
               ? pending_generate(exchange, &request, &form)
               : respond_error(exchange, &err);
}

const struct route route_generate = { .path = "/generate",
    .methods = { { "POST", content_types_json, early, handle } } };
