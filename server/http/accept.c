#include "server/http/accept.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

static const char *skip_spaces(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    return p;
}

/* Parses "1", "0.5" or "0.333" into thousandths. */
static int parse_quality(const char *p, const char *end) {
    if (p >= end || (*p != '0' && *p != '1'))
        return 0;
    int value = (*p++ - '0') * 1000;
    if (p < end && *p == '.') {
        p++;
        for (int unit = 100; unit > 0 && p < end && *p >= '0' && *p <= '9'; unit /= 10)
            value += (*p++ - '0') * unit;
    }
    return skip_spaces(p, end) == end && value <= 1000 ? value : 0;
}

/* Returns the first character at or after `p` that is in `stop` and not in a quoted string, or the
 * end. */
static const char *find(const char *p, const char *stop) {
    bool quoted = false;
    for (; *p && (quoted || !strchr(stop, *p)); p++) {
        if (*p == '"')
            quoted = !quoted;
        else if (quoted && *p == '\\' && p[1])
            p++;
    }
    return p;
}

/* Returns how closely the range [p, end) matches the media type. 0: no match, 1: any type, 2: type
 * with any subtype, 3: exact. */
static int match(const char *p, const char *end, const char *media_type) {
    size_t length = (size_t)(end - p), type_length = (size_t)(strchr(media_type, '/') - media_type);
    if (length == strlen(media_type) && strncasecmp(p, media_type, length) == 0)
        return 3;
    if (length == type_length + 2 && strncasecmp(p, media_type, type_length + 1) == 0 &&
        p[type_length + 1] == '*')
        return 2;
    return length == 3 && memcmp(p, "*/*", 3) == 0 ? 1 : 0;
}

/* Parses the parameters at `p`, ";name=value;..." up to a comma or the end. Returns the quality (q)
 * and counts the other parameters. */
static int quality_of(const char *p, int *others) {
    int quality = 1000;
    *others = 0;
    while (*p == ';') {
        p++;
        p += strspn(p, " \t");
        const char *end = find(p, ";,");
        if ((*p == 'q' || *p == 'Q') && p[1] == '=')
            quality = parse_quality(p + 2, end);
        else if (end > p)
            ++*others;
        p = end;
    }
    return quality;
}

int accept_quality(const char *header, const char *media_type) {
    if (!header || !*header)
        return 1000;
    int best_match = 0, best_quality = 0;
    for (const char *p = header; *p;) {
        p += strspn(p, " \t,");
        size_t length = strcspn(p, ";,");
        const char *parameters = p + length;
        while (length > 0 && (p[length - 1] == ' ' || p[length - 1] == '\t'))
            length--;
        int others, quality = quality_of(parameters, &others);
        /* Our types have no parameters. A client that accepts "application/json; charset=utf-8"
         * still gets application/json, unless the header also names the type without parameters. */
        int matched = 2 * match(p, p + length, media_type);
        if (matched && others)
            matched--;
        if (matched > best_match) {
            best_match = matched;
            best_quality = quality;
        }
        p = find(parameters, ",");
    }
    return best_quality;
}
