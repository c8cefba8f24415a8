#include "base/error.h"

#include "base/text/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int http_status;
} codes[] = {
    [ERROR_NONE] = { "ok", 200 },
    [ERROR_INVALID] = { "invalid_request", 400 },
    [ERROR_FORBIDDEN] = { "forbidden", 403 },
    [ERROR_NOT_FOUND] = { "not_found", 404 },
    [ERROR_CONFLICT] = { "conflict", 409 },
    [ERROR_TOO_LARGE] = { "too_large", 413 },
    [ERROR_BUSY] = { "queue_full", 429 },
    [ERROR_UNSUPPORTED] = { "unsupported", 501 },
    [ERROR_UNAVAILABLE] = { "unavailable", 503 },
    [ERROR_CANCELLED] = { "cancelled", 499 },
    [ERROR_TIMEOUT] = { "timeout", 504 },
    [ERROR_NO_MEMORY] = { "out_of_memory", 507 },
    [ERROR_NO_SPACE] = { "disk_full", 507 },
    [ERROR_IO] = { "io_error", 500 },
    [ERROR_DEVICE] = { "device_error", 500 },
    [ERROR_DEVICE_LOST] = { "device_lost", 500 },
    [ERROR_PEER_LOST] = { "peer_lost", 500 },
    [ERROR_INTERNAL] = { "internal_error", 500 },
};

bool error_set(struct error *err, enum error_code code, const char *format, ...) {
    if (!err)
        return false;
    memset(err, 0, sizeof(*err));
    err->code = code;
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof(err->message), format, args);
    va_end(args);
    return false;
}

bool error_field(
    struct error *err, const char *param, const char *value, const char *allowed, ...) {
    if (!err)
        return false;
    memset(err, 0, sizeof(*err));
    err->code = ERROR_INVALID;
    snprintf(err->param, sizeof(err->param), "%s", param);
    snprintf(err->value, sizeof(err->value), "%s", value);
    utf8_drop_cut_character(err->param);
    utf8_drop_cut_character(err->value);
    va_list args;
    va_start(args, allowed);
    vsnprintf(err->allowed, sizeof(err->allowed), allowed, args);
    va_end(args);
    snprintf(err->message, sizeof(err->message), "%s: %s is not allowed; %s", err->param,
        err->value[0] ? err->value : "(empty)", err->allowed);
    return false;
}

bool error_prefix(struct error *err, const char *format, ...) {
    if (!err)
        return false;
    char prefix[256], rest[sizeof(err->message)];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof(prefix), format, args);
    va_end(args);
    memcpy(rest, err->message, sizeof(rest));
    snprintf(err->message, sizeof(err->message), "%.*s: %.*s", (int)(sizeof(prefix) - 1), prefix,
        (int)(sizeof(err->message) - sizeof(prefix) - 2), rest);
    return false;
}

const char *error_code_name(enum error_code code) {
    return codes[code].name;
}

int error_http_status(enum error_code code) {
    return codes[code].http_status;
}

enum error_code error_code_of_write(int reason) {
    return reason == ENOSPC || reason == EDQUOT || reason == EFBIG ? ERROR_NO_SPACE : ERROR_IO;
}
