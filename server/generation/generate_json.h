/* Parses the body of POST /generate (the native dialect) into a request. No HTTP here, so that it
 * can be fuzzed and can parse text from other sources. */
#ifndef SERVER_GENERATION_GENERATE_JSON_H
#define SERVER_GENERATION_GENERATE_JSON_H

#include "engine/request/request.h"
#include "server/generation/preview.h"

#include <jansson.h>
#include <stddef.h>

/* How to send the answer. These fields are in the same body, but have no effect on the pictures. */
struct generate_delivery {
    bool stream;
    int preview_every; /* UNet evaluations between two previews; 0: no previews */
    enum preview_kind preview;
};

/* Parses `length` bytes of JSON into *out and *delivery, which need no initialisation; the caller
 * finishes *out on success. Every field is checked, ranges included (generate_request_check).
 * ERROR_INVALID names the field, the value as sent, and what is allowed. null stands for a field's
 * default. Unknown fields are errors, even if later versions know them. */
bool generate_json_parse(const char *text, size_t length, struct generate_request *out,
    struct generate_delivery *delivery, struct error *err) __attribute__((warn_unused_result));

/* Does what generate_json_parse does, for a body that is already parsed as JSON. */
bool generate_json_read(const json_t *root, struct generate_request *out,
    struct generate_delivery *delivery, struct error *err) __attribute__((warn_unused_result));

/* Reads one field into an initialised request, for dialects that share fields. Checks the field by
 * itself; generate_request_check checks fields against each other. */
bool generate_json_parse_field(const char *key, const json_t *value,
    struct generate_request *request, struct error *err) __attribute__((warn_unused_result));

/* Parses base64, or a data URL with base64, into a picture's file, which the caller frees. The
 * URL's media type is ignored: the format is detected from the bytes. */
bool generate_json_parse_picture(const char *name, const json_t *value, struct picture_file *out,
    struct error *err) __attribute__((warn_unused_result));

/* Returns the name of the known field `index`; NULL past the last. */
const char *generate_json_field(size_t index);

/* Returns the JSON schema of one field. A new reference; NULL when memory is short. */
json_t *generate_json_field_schema(enum generate_field_id id);

/* Returns the JSON schema of the body. A new reference; NULL when memory is short. */
json_t *generate_json_schema(void);

#endif
