#include "server/http/query.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool query_unescape(const char *text, size_t length, bool plus, char *out, size_t size) {
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        int c = (unsigned char)text[i];
        if (c == '%') {
            const int high = i + 2 < length ? hex_digit(text[i + 1]) : -1;
            const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
            if (low < 0)
                return false;
            c = 16 * high + low;
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        if (c == 0 || used + 1 >= size)
            return false;
        out[used++] = (char)c;
    }
    out[used] = 0;
    return true;
}

static bool refuse_name(const char *name, size_t length, const struct query_field *fields,
    int count, struct error *err) {
    char shown[64], allowed[256] = "no query here";
    size_t used = 0;
    snprintf(shown, sizeof(shown), "%.*s", (int)(length < 60 ? length : 60), name);
    for (int i = 0; i < count && used < sizeof(allowed); i++)
        used += (size_t)snprintf(
            allowed + used, sizeof(allowed) - used, "%s%s", i ? ", " : "one of ", fields[i].name);
    return error_field(err, "query", shown, "%s", allowed);
}

static bool take(
    const char *pair, size_t length, struct query_field *fields, int count, struct error *err) {
    const char *equals = memchr(pair, '=', length);
    const size_t name_length = equals ? (size_t)(equals - pair) : length;
    for (int i = 0; i < count; i++) {
        struct query_field *field = &fields[i];
        if (strlen(field->name) != name_length || memcmp(field->name, pair, name_length) != 0)
            continue;
        if (field->given)
            return error_field(err, field->name, "given twice", "at most one");
        field->given = true;
        const char *value = equals ? equals + 1 : "";
        const size_t value_length = equals ? length - name_length - 1 : 0;
        char shown[64];
        snprintf(shown, sizeof(shown), "%.*s", (int)(value_length < 60 ? value_length : 60), value);
        return query_unescape(value, value_length, true, field->value, sizeof(field->value)) ||
               error_field(err, field->name, shown, "at most %d bytes, rightly escaped",
                   QUERY_VALUE_BYTES - 1);
    }
    return refuse_name(pair, name_length, fields, count, err);
}

bool query_parse(const char *target, struct query_field *fields, int count, struct error *err) {
    const char *at = strchr(target, '?');
    while (at && *++at) {
        const size_t length = strcspn(at, "&");
        if (length > 0 && !take(at, length, fields, count, err))
            return false;
        at = at[length] ? at + length : NULL;
    }
    return true;
}

bool query_none(const char *target, struct error *err) {
    return query_parse(target, NULL, 0, err);
}

bool query_integer(const struct query_field *field, long long min, long long max, long long *out,
    struct error *err) {
    if (!field->given)
        return true;
    char *end;
    errno = 0;
    const long long value = strtoll(field->value, &end, 10);
    if (strspn(field->value, "0123456789") != strlen(field->value) || !field->value[0] || errno ||
        value < min || value > max)
        return error_field(
            err, field->name, field->value, "an integer from %lld to %lld", min, max);
    *out = value;
    return true;
}
