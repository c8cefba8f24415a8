#include "models/adapter/adapter_file_name.h"

#include "base/limits.h"
#include "base/text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* No adapter may have this name: /loras/rescan is a route. */
static const char reserved[] = "rescan";

/* Whether a terminal, a log or a page might show something other than the text: control
 * characters, line separators, and the controls that reverse the direction of writing. */
static bool is_control(utf8proc_int32_t c) {
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069);
}

static bool has_only_text(const char *name, size_t length) {
    utf8proc_int32_t c;
    if (utf8_valid_bytes(name, length) != length)
        return false;
    for (size_t at = 0; at < length;) {
        at += (size_t)utf8proc_iterate(
            (const utf8proc_uint8_t *)name + at, (utf8proc_ssize_t)(length - at), &c);
        if (is_control(c) || c == '\\')
            return false;
    }
    return true;
}

static bool has_valid_parts(const char *name, size_t length) {
    int parts = 1;
    for (size_t i = 0; i < length; i++) {
        if ((i == 0 || name[i - 1] == '/') && (name[i] == '.' || name[i] == '/'))
            return false;
        parts += name[i] == '/';
    }
    return name[length - 1] != '/' && parts <= ADAPTER_NAME_PARTS_MAX;
}

/* Returns the length of the name before "@STEP"; 0 if it does not end like that. */
static size_t length_before_step(const char *name, size_t length) {
    size_t at = length;
    while (at > 0 && name[at - 1] >= '0' && name[at - 1] <= '9')
        at--;
    return at < length && at > 1 && name[at - 1] == '@' ? at - 1 : 0;
}

static bool is_name(const char *name, size_t length) {
    const bool is_reserved = length == strlen(reserved) && memcmp(name, reserved, length) == 0;
    return length > 0 && length <= ADAPTER_NAME_MAX_BYTES && !is_reserved &&
           has_only_text(name, length) && has_valid_parts(name, length) &&
           length_before_step(name, length) == 0;
}

bool adapter_name_check(const char *param, const char *name, struct error *err) {
    return is_name(name, strlen(name)) ||
           error_field(err, param, name,
               "NAME or FOLDER/NAME: 1 to %d bytes of UTF-8 in at most %d parts, without control "
               "characters and '\\', no part empty or beginning with '.', no end like \"@12\"; not "
               "\"%s\"",
               ADAPTER_NAME_MAX_BYTES, ADAPTER_NAME_PARTS_MAX, reserved);
}

bool adapter_reference_check(const char *param, const char *name, struct error *err) {
    const size_t length = strlen(name), before = length_before_step(name, length);
    return (before > 0 && length <= ADAPTER_NAME_MAX_BYTES && is_name(name, before)) ||
           adapter_name_check(param, name, err);
}

const char *adapter_name_stem(const char *name) {
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

char *adapter_name_fold(const char *name) {
    utf8proc_uint8_t *out = NULL;
    const utf8proc_option_t options = UTF8PROC_NULLTERM | UTF8PROC_STABLE | UTF8PROC_COMPOSE |
                                      UTF8PROC_CASEFOLD;
    return utf8proc_map((const utf8proc_uint8_t *)name, 0, &out, options) < 0 ? NULL : (char *)out;
}
