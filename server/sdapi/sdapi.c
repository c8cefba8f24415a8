#include "server/sdapi/sdapi.h"

#include "base/text/json.h"
#include "server/http/respond.h"
#include "server/sdapi/request.h"

#include <stdlib.h>
#include <string.h>

const char *const sdapi_json_or_none[] = { "application/json", "", NULL };

/* Returns {"detail": [{"type", "loc": ["body", FIELD], "msg", "input"}]}. */
static json_t *field_json(const struct error *err) {
    const char *field = sdapi_field_name(err->param);
    const char *where = strcmp(field, "Idempotency-Key") == 0 ? "header" : "body";
    json_t *loc = strcmp(field, "body") == 0
                      ? json_pack("[s]", "body")
                      : json_pack("[s, o]", where, json_lenient_string(field));
    char message[sizeof(err->value) + sizeof(err->allowed) + 32];
    snprintf(message, sizeof(message), "%s is not allowed; %s", err->value, err->allowed);
    return json_pack("{s:[{s:s, s:o, s:o, s:o}]}", "detail", "type", "value_error", "loc", loc,
        "msg", json_lenient_string(message), "input", json_lenient_string(err->value));
}

static json_t *error_json(const struct error *err, const char *code, int *status) {
    (void)code;
    if (*status != 400 || !err->param[0])
        return json_pack("{s:o}", "detail", json_lenient_string(err->message));
    *status = 422;
    return field_json(err);
}

const struct dialect dialect_sdapi = { "a1111", error_json, "SdapiError" };

const char *sdapi_model_name(struct http_server *server) {
    struct pipeline_info info;
    const bool known = engine_get_info(server->options.engine, &info);
    return known && info.model_name ? info.model_name : "";
}

/* Returns the length of a checkpoint's name without the hash and the ending of its file. */
static size_t bare_length(const char *name) {
    static const char *const endings[] = { ".safetensors", ".ckpt" };
    size_t length = strlen(name);
    const char *bracket = strrchr(name, '[');
    if (bracket && name[length - 1] == ']' && bracket > name + 1 && bracket[-1] == ' ')
        length = (size_t)(bracket - 1 - name);
    for (int i = 0; i < 2; i++) {
        const size_t ending = strlen(endings[i]);
        if (length > ending && memcmp(name + length - ending, endings[i], ending) == 0)
            return length - ending;
    }
    return length;
}

int sdapi_model_fit(const char *asked, const char *name) {
    const char *slash = strrchr(name, '/'), *last = slash ? slash + 1 : name;
    const size_t length = bare_length(asked);
    if (strcmp(asked, name) == 0)
        return 3;
    if (length == strlen(name) && memcmp(asked, name, length) == 0)
        return 2;
    return length == strlen(last) && memcmp(asked, last, length) == 0;
}

enum MHD_Result sdapi_respond_null(struct exchange *exchange) {
    char *text = strdup("null");
    return text ? respond_bytes(exchange, 200, "application/json", text, strlen(text), NULL, false)
                : MHD_NO;
}
