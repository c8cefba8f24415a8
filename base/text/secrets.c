#include "base/text/secrets.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

#define DIGITS_MIN 8 /* fewer reveal nothing, and words such as latentd_data have some digits */

static const char *const names[] = { "key", "api_key", "api-key", "apikey", "x-api-key", "token",
    "api_token", "access_token", "auth_token", "auth", "authorization", "bearer", "password",
    "passwd", "secret" };

static const char hex_digits[] = "0123456789abcdefABCDEF";

/* The length of KEY_PREFIX at `p`, or 0. */
static size_t prefix_length(const char *p) {
    const size_t word = sizeof(KEY_PREFIX) - 2; /* without its _ */
    if (strncasecmp(p, KEY_PREFIX, word) != 0)
        return 0;
    if (p[word] == '_')
        return word + 1;
    return strncasecmp(p + word, "%5f", 3) == 0 ? word + 3 : 0;
}

/* The length of "?name=" at `p` if a key may follow, or 0. */
static size_t name_length(const char *p) {
    if (*p != '?' && *p != '&' && *p != ';')
        return 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const size_t length = strlen(names[i]);
        if (strncasecmp(p + 1, names[i], length) == 0 && p[1 + length] == '=')
            return length + 2;
    }
    return 0;
}

void secrets_mask(char *text) {
    char *out = text;
    for (const char *p = text; *p;) {
        size_t kept = prefix_length(p), hidden = kept ? strspn(p + kept, hex_digits) : 0;
        if (hidden < DIGITS_MIN) {
            kept = name_length(p);
            hidden = kept ? strcspn(p + kept, "&;# \t\"'\\") : 0;
        }
        if (hidden == 0)
            kept = 1;
        memmove(out, p, kept);
        out += kept;
        if (hidden > 0)
            *out++ = '*';
        p += kept + hidden;
    }
    *out = 0;
}
