#include "server/openai/openai.h"

#include "base/json.h"

/* The words that OpenAI uses; its clients choose by the status, people read this. */
static const char *type_of(int status) {
    return status == 401   ? "authentication_error"
           : status == 403 ? "permission_error"
           : status == 429 ? "rate_limit_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

static json_t *error_json(const struct error *err, const char *code, int *status) {
    json_t *param = err->param[0] ? json_lenient_string(err->param) : json_null();
    return json_pack("{s:{s:o, s:s, s:o, s:s}}", "error", "message",
        json_lenient_string(err->message), "type", type_of(*status), "param", param, "code", code);
}

const struct dialect dialect_openai = { "openai", error_json };
