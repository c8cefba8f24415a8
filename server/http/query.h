/* What stands behind the question mark of a target: name=value, separated by ampersands. */
#ifndef SERVER_HTTP_QUERY_H
#define SERVER_HTTP_QUERY_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define QUERY_VALUE_BYTES 256

struct query_field {
    const char *name;
    bool given;
    char value[QUERY_VALUE_BYTES]; /* without percent signs */
};

/* Fills in the fields that the target has. A name that is none of them, one that comes twice, and a
 * value that is too long or wrongly escaped are errors. */
bool query_parse(const char *target, struct query_field *fields, int count, struct error *err)
    __attribute__((warn_unused_result));

/* True if the target has no query; an empty one is none. */
bool query_none(const char *target, struct error *err) __attribute__((warn_unused_result));

/* Undoes %XX, and where `plus` a + for a space, into `size` bytes. False if there is a NUL, a
 * lonely percent sign, or too much. */
bool query_unescape(const char *text, size_t length, bool plus, char *out, size_t size)
    __attribute__((warn_unused_result));

/* A whole number from `min` to `max`; *out stays as it is if the field was not given. */
bool query_integer(const struct query_field *field, long long min, long long max, long long *out,
    struct error *err) __attribute__((warn_unused_result));

#endif
