/* Parses JSON from outside. Adds to jansson the checks that it leaves to its caller (nesting depth,
 * number of values, repeated keys), and exact integers. */
#ifndef BASE_TEXT_JSON_H
#define BASE_TEXT_JSON_H

#include "base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Parses `size` bytes as one JSON value of any type. It may be nested JSON_MAX_DEPTH deep and have
 * JSON_MAX_VALUES values. `text` may be NULL if size is 0. Repeated keys, invalid UTF-8, NUL
 * characters and bytes after the value are errors that say where they are. Returns a new reference,
 * or NULL and sets err. */
json_t *json_parse(const char *text, size_t size, struct error *err)
    __attribute__((warn_unused_result));

/* Parses JSON that a client sent. Works like json_parse, with at most JSON_REQUEST_MAX_VALUES
 * values; they are counted before any memory is allocated for them. */
json_t *json_parse_request(const char *text, size_t size, struct error *err)
    __attribute__((warn_unused_result));

/* Parses a file of at most `max_bytes` like json_parse. Errors begin with the path. */
json_t *json_parse_file(const char *path, size_t max_bytes, struct error *err)
    __attribute__((warn_unused_result));

/* Parses a file like json_parse_file, but makes every number a real. For files with integers of
 * more than 64 bits: transformers writes 10^30 as a tokenizer's model_max_length. */
json_t *json_parse_file_as_reals(const char *path, size_t max_bytes, struct error *err)
    __attribute__((warn_unused_result));

/* Parses a file like json_parse_file, but reads Infinity and -Infinity as null. JSON has no such
 * numbers, but Python's json writes them: diffusers saves DPMSolverMultistepScheduler with
 * "lambda_min_clipped": -Infinity. */
json_t *json_parse_python_file(const char *path, size_t max_bytes, struct error *err)
    __attribute__((warn_unused_result));

/* Reads a number without a fraction. Accepts 4, 4.0 and 4e0, because JSON writers differ. */
bool json_exact_integer(const json_t *value, int64_t *out) __attribute__((warn_unused_result));

/* Writes the value as JSON text for an error message, cut to fit; "(missing)" if it is NULL. The
 * cost depends on `size`, not on the size of the value. Returns `text`. */
const char *json_describe(const json_t *value, char *text, size_t size);

/* Sets an error like error_field for a value that `name` does not allow. Always returns false. */
bool json_bad_field(const char *name, const json_t *value, const char *allowed, struct error *err);

/* Makes a JSON string of a text that was cut or is not UTF-8. Drops an incomplete character at its
 * end, and replaces every other invalid byte by U+FFFD. Returns NULL only if there is no memory. */
json_t *json_lenient_string(const char *text);

/* Writes `json`, indented, to FOLDER/NAME with file_write. If `json` is NULL, fails with
 * ERROR_NO_MEMORY. */
bool json_write_file(const char *folder, const char *name, const json_t *json, struct error *err)
    __attribute__((warn_unused_result));

#endif
