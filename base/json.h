/* JSON from outside: jansson behind the checks that it leaves to its caller (nesting depth,
 * number of values, repeated keys), and exact integers. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Parses one JSON value (any type) of `size` bytes, nested at most JSON_MAX_DEPTH deep and with at
 * most JSON_MAX_VALUES in all; `text` may be NULL for none. Repeated keys, bad UTF-8, NUL
 * characters and bytes after the value are errors that say where. NULL after filling err; otherwise
 * a new reference. */
json_t *json_parse(const char *text, size_t size, struct error *err)
    __attribute__((warn_unused_result));

/* As json_parse for what a client sends: at most JSON_REQUEST_MAX_VALUES, which are counted before
 * anything is made of them. */
json_t *json_parse_request(const char *text, size_t size, struct error *err)
    __attribute__((warn_unused_result));

/* As json_parse for a file of at most `max_bytes`; errors begin with the path. */
json_t *json_parse_file(const char *path, size_t max_bytes, struct error *err)
    __attribute__((warn_unused_result));

/* As json_parse_file, but every number becomes a real: for files with integers of more than 64 bits
 * (transformers writes 10^30 as a tokenizer's model_max_length). */
json_t *json_parse_file_as_reals(const char *path, size_t max_bytes, struct error *err)
    __attribute__((warn_unused_result));

/* As json_parse_file, but Infinity and -Infinity, which Python's json writes though JSON has no
 * such numbers, are null: diffusers saves DPMSolverMultistepScheduler with "lambda_min_clipped":
 * -Infinity. */
json_t *json_parse_python_file(const char *path, size_t max_bytes, struct error *err)
    __attribute__((warn_unused_result));

/* A number without a fraction (4, 4.0, 4e0), as JSON writers differ in how they spell it. */
bool json_exact_integer(const json_t *value, int64_t *out) __attribute__((warn_unused_result));

/* The value as JSON text, for error messages: cut to fit, NULL says "(missing)". Costs as much as
 * what fits, however large the value is. Returns `text`. */
const char *json_describe(const json_t *value, char *text, size_t size);

/* error_field for a value that is not allowed under this name. Always returns false. */
bool json_bad_field(const char *name, const json_t *value, const char *allowed, struct error *err);

/* A JSON string of a text that was cut or never was UTF-8: a character cut off at its end is left
 * out, every other stray byte becomes U+FFFD. NULL only when memory is short. */
json_t *json_lenient_string(const char *text);

/* Writes FOLDER/NAME as file_write does, indented; NULL stands for no memory. */
bool json_write_file(const char *folder, const char *name, const json_t *json, struct error *err)
    __attribute__((warn_unused_result));

#endif
