/* Reads TOML, as far as files of settings use it: comments, tables, arrays of tables, keys (bare,
 * quoted, dotted), strings of one line, decimal numbers, true and false, arrays and inline tables
 * (toml.io, version 1.0). Refused, because no file of settings that is read here has them: strings
 * of several lines, dates, inf and nan, numbers in other bases. */
#ifndef BASE_TEXT_TOML_H
#define BASE_TEXT_TOML_H

#include "base/error.h"

#include <jansson.h>
#include <stddef.h>

/* Parses `size` bytes as a JSON object: tables become objects, numbers integers or reals. Tables
 * may be nested JSON_MAX_DEPTH deep, and so may values. Repeated keys and tables, empty keys,
 * invalid UTF-8 and NUL characters are errors, which say the line. Returns a new reference, or NULL
 * and sets err. */
json_t *toml_parse(const char *text, size_t size, struct error *err)
    __attribute__((warn_unused_result));

/* Parses a file of at most `max_bytes`. Errors begin with the path. */
json_t *toml_parse_file(const char *path, size_t max_bytes, struct error *err)
    __attribute__((warn_unused_result));

#endif
