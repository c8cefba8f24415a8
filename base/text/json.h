/* JSON from outside: jansson with the checks that it leaves to its caller (nesting depth, number of
 * values, repeated keys), and exact integers. */
#ifndef BASE_TEXT_JSON_H
#define BASE_TEXT_JSON_H

#include "base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Parses one JSON value (any type) of `size` bytes, nested at most JSON_MAX_DEPTH deep and with at
 * most JSON_MAX_VALUES values; `text` may be NULL for none. Repeated keys, invalid UTF-8, NUL
 * characters and bytes after the value are errors that say where. Returns a new reference, or NULL
 * after filling err. */
json_t *json_parse(const char *text, size_t size, struct error *err)
    __attribute__((warn_unused_result));

/* As json_parse for what a client sends: at most JSON_REQUEST_MAX_VALUES, counted before anything
 * is allocated for them. */
json_t *json_parse_request(const char *text, size_t size, struct error *err)
    __attribute__((warn_unused_result));

/* As json_parse for a file of at most `max_bytes`; errors begin with the path. */
json_t *json_parse_file(const char *path, size_t max_bytes, struct error *err)
    __attribute__((warn_unused_result));

/* As json_parse_file, but every number becomes a real: for files with integers of more than 64 bits
 * (transformers writes 10^30 as a tokenizer's model_max_length). */
json_t *json_parse_file_as_reals(const char *path, size_t max_bytes, struct error *err)
    __attribute__((warn_unused_result));

/* As json_parse_file, but Infinity and -Infinity become null. Python's json writes them although
 * JSON has no such numbers: diffusers saves DPMSolverMultistepScheduler with "lambda_min_clipped":
 * -Infinity. */
json_t *json_parse_python_file(const char *path, size_t max_bytes, struct error *err)
    __attribute__((warn_unused_result));

/* Reads a number without a fraction (4, 4.0, 4e0), since JSON writers spell it differently. */
bool json_exact_integer(const json_t *value, int64_t *out) __attribute__((warn_unused_result));

/* Writes the value as JSON text for error messages, cut to fit; NULL gives "(missing)". The cost
 * depends on what fits, not on the size of the value. Returns `text`. */
const char *json_describe(const json_t *value, char *text, size_t size);

/* As error_field, for a value that is not allowed under this name. Always returns false. */
bool json_bad_field(const char *name, const json_t *value, const char *allowed, struct error *err);

/* Makes a JSON string of a text that was cut or is not UTF-8: drops a character cut off at its end,
 * and replaces every other invalid byte by U+FFFD. Returns NULL only when memory is short. */
json_t *json_lenient_string(const char *text);

/* Writes FOLDER/NAME, indented, as file_write does. If `json` is NULL, fails for lack of memory. */
bool json_write_file(const char *folder, const char *name, const json_t *json, struct error *err)
    __attribute__((warn_unused_result));

#endif
