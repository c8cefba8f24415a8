/* The query of a target: the text after the question mark, with fields name=value separated by
 * ampersands. */
#ifndef SERVER_HTTP_QUERY_H
#define SERVER_HTTP_QUERY_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define QUERY_VALUE_BYTES 256

struct query_field {
    const char *name;
    bool given;
    char value[QUERY_VALUE_BYTES]; /* unescaped */
};

/* Fills in the fields that the target's query contains. Unknown names and repeated names are
 * errors, and so are values that are too long or wrongly escaped. */
bool query_parse(const char *target, struct query_field *fields, int count, struct error *err)
    __attribute__((warn_unused_result));

/* Returns true if the target has no query; an empty one counts as none. */
bool query_none(const char *target, struct error *err) __attribute__((warn_unused_result));

/* Decodes %XX into `out` of `size` bytes; if `plus` is set, also + as a space. Returns false for a
 * NUL, an incomplete escape, or a text that is too long. */
bool query_unescape(const char *text, size_t length, bool plus, char *out, size_t size)
    __attribute__((warn_unused_result));

/* Parses an integer from `min` to `max`. Leaves *out unchanged if the field was not given. */
bool query_integer(const struct query_field *field, long long min, long long max, long long *out,
    struct error *err) __attribute__((warn_unused_result));

#endif
