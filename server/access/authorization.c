#include "server/access/authorization.h"

#include "base/limits.h"
#include "base/text/base64.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Returns whether the value begins with the scheme and at least one space. *at is then the position
 * after the spaces. */
static bool has_scheme(const char *value, size_t length, const char *scheme, size_t *at) {
    const size_t name = strlen(scheme);
    if (length <= name || strncasecmp(value, scheme, name) != 0 || value[name] != ' ')
        return false;
    for (*at = name; *at < length && value[*at] == ' ';)
        ++*at;
    return true;
}

/* Returns whether the text is a b64token (RFC 6750). */
static bool is_token(const char *text, size_t length) {
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/";
    while (length > 1 && text[length - 1] == '=')
        length--;
    for (size_t i = 0; i < length; i++)
        if (!text[i] || !strchr(allowed, text[i]))
            return false;
    return length > 0;
}

static bool take_basic(const char *text, size_t length, struct digest *out) {
    void *decoded;
    size_t size, wrong;
    if (!base64_decode(text, length, &decoded, &size, &wrong))
        return false;
    const char *key = decoded, *colon = memchr(decoded, ':', size);
    size_t key_size = size;
    if (colon) { /* a user's name has no colon, a password may */
        key = colon + 1;
        key_size = size - (size_t)(key - (const char *)decoded);
    }
    const bool ok = key_size > 0 && key_size <= KEY_MAX_BYTES && !memchr(key, 0, key_size);
    if (ok)
        *out = sha256_of(key, key_size);
    explicit_bzero(decoded, size);
    free(decoded);
    return ok;
}

bool authorization_digest(const char *value, size_t length, struct digest *out) {
    size_t at;
    if (has_scheme(value, length, "Bearer", &at)) {
        if (length - at > KEY_MAX_BYTES || !is_token(value + at, length - at))
            return false;
        *out = sha256_of(value + at, length - at);
        return true;
    }
    return has_scheme(value, length, "Basic", &at) &&
           length - at <= 2 * (KEY_NAME_MAX_BYTES + KEY_MAX_BYTES) &&
           take_basic(value + at, length - at, out);
}
