#include "server/openai/openai.h"

#include "base/text/json.h"

#include <string.h>

void openai_rename(struct error *err) {
    static const char *const names[][2] = { { "width", "size" }, { "height", "size" },
        { "num_images", "n" }, { "init_image", "image" }, { "mask_image", "mask" } };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(err->param, names[i][0]) != 0 || strcmp(err->allowed, OPENAI_NO_SUCH_FIELD) == 0)
            continue;
        struct error native = *err;
        error_field(err, names[i][1], native.value, "%s", native.allowed);
        err->code = native.code;
        return;
    }
}

/* Returns OpenAI's error type for a status. OpenAI's clients decide by the status; the type is for
 * people. */
static const char *type_of(int status) {
    return status == 401   ? "authentication_error"
           : status == 403 ? "permission_error"
           : status == 429 ? "rate_limit_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

/* Returns OpenAI's code for an error, which is sometimes more specific than the native one. */
static const char *code_of(const struct error *err, const char *code) {
    if (err->code == ERROR_BUSY)
        return "rate_limit_exceeded";
    if (err->code == ERROR_NOT_FOUND && strcmp(err->param, "model") == 0)
        return "model_not_found";
    if (err->code != ERROR_INVALID || !err->param[0])
        return code;
    return !err->value[0]                                    ? "missing_required_parameter"
           : strcmp(err->allowed, OPENAI_NO_SUCH_FIELD) == 0 ? "unknown_parameter"
                                                             : "invalid_value";
}

static json_t *error_json(const struct error *native, const char *code, int *status) {
    struct error err = *native;
    openai_rename(&err);
    json_t *param = err.param[0] ? json_lenient_string(err.param) : json_null();
    return json_pack("{s:{s:o, s:s, s:o, s:s}}", "error", "message",
        json_lenient_string(err.message), "type", type_of(*status), "param", param, "code",
        code_of(&err, code));
}

const struct dialect dialect_openai = { "openai", error_json, "OpenaiError" };
