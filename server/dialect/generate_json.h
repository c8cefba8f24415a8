/* The body of POST /generate (the native dialect) to a request. No HTTP here, so that it can be
 * fuzzed and used by whoever has the text. */
#ifndef SERVER_DIALECT_GENERATE_JSON_H
#define SERVER_DIALECT_GENERATE_JSON_H

#include "engine/request.h"
#include "server/generation/preview.h"

#include <jansson.h>
#include <stddef.h>

/* How the answer is to come, which is in the same body and changes nothing of it. */
struct generate_delivery {
    bool stream;
    int preview_every; /* evaluations; 0: no previews */
    enum preview_kind preview;
};

/* Parses `length` bytes of JSON into *out and *delivery, which need no initialisation; *out is
 * finished by the caller on success. Every field is checked, ranges included
 * (generate_request_check). ERROR_INVALID names the field, the value as it came, and what is
 * allowed; unknown fields are errors, and so are fields that a later version will know. */
bool generate_json_parse(const char *text, size_t length, struct generate_request *out,
    struct generate_delivery *delivery, struct error *err) __attribute__((warn_unused_result));

/* The same of a body that was parsed already. */
bool generate_json_read(const json_t *root, struct generate_request *out,
    struct generate_delivery *delivery, struct error *err) __attribute__((warn_unused_result));

/* One field of it into a request that was initialised, for dialects whose bodies have some of the
 * same. Ranges are not checked. */
bool generate_json_parse_field(const char *key, const json_t *value,
    struct generate_request *request, struct error *err) __attribute__((warn_unused_result));

/* The names of the fields that this version knows, one after the other; NULL after the last. */
const char *generate_json_field(size_t index);

/* The same as a JSON schema of an object. A new reference; NULL when memory is short. */
json_t *generate_json_schema(void);

#endif
