/* Parses the bodies of OpenAI's image routes: JSON (POST /v1/images/generations, and edits that
 * consist of fields only) or a form. No HTTP here, so that it can be fuzzed.
 *
 * A field is OpenAI's, or one of POST /generate, which clients send as extra_body; native fields
 * that OpenAI has a name of its own for are not accepted. null means the default, since the openai
 * package sends None as null. A field that asks for something unsupported is refused by name. */
#ifndef SERVER_OPENAI_IMAGE_ORDER_H
#define SERVER_OPENAI_IMAGE_ORDER_H

#include "engine/request/request.h"
#include "server/openai/openai.h"

#include <jansson.h>
#include <stddef.h>

enum image_route { IMAGE_GENERATION, IMAGE_EDIT, IMAGE_VARIATION };

struct image_order {
    enum image_route route;
    struct generate_request request;
    char model[256]; /* as sent; "": the loaded one */
    bool as_url;     /* the pictures as data URLs instead of base64 */
    bool stream;
    int partial_images;                    /* the maximum number before the picture */
    char quality[12];                      /* as sent, repeated in the answer; or "" */
    bool compression_given, high_fidelity; /* used during parsing */
};

/* The parts of a form. Zero-initialise. */
struct image_form {
    json_t *texts; /* owned: maps names to strings; NULL: none */
    struct picture_file image, mask;
};
void image_form_finish(struct image_form *form); /* zeroed is fine */

/* Reads a form's parts in order: `begin` and `write` of a struct multipart_receiver whose `user` is
 * a struct image_form_reader. Call image_form_end after the last part. */
struct image_form_reader {
    enum image_route route;
    struct image_form *form;
    char name[64];             /* of the text being read; "": none */
    struct picture_file *file; /* being read; NULL: a text */
    char *text;                /* owned */
    size_t size;               /* of the text */
    size_t capacity;           /* of the file */
};
bool image_form_begin(void *reader, const char *name, const char *file_name, struct error *err)
    __attribute__((warn_unused_result));
bool image_form_write(void *reader, const void *bytes, size_t size, struct error *err)
    __attribute__((warn_unused_result));
/* Finishes the reader in either case. */
bool image_form_end(struct image_form_reader *reader, struct error *err)
    __attribute__((warn_unused_result));
void image_form_reader_finish(struct image_form_reader *reader);

/* Parse a body; the caller finishes *out on success. Every field is checked, ranges included.
 * ERROR_INVALID names the field as OpenAI does; ERROR_NOT_FOUND for a model that is not in
 * `models`. image_order_from_form moves the form's pictures to the request. */
bool image_order_from_json(const char *text, size_t length, const struct openai_models *models,
    struct image_order *out, struct error *err) __attribute__((warn_unused_result));
bool image_order_from_form(struct image_form *form, enum image_route route,
    const struct openai_models *models, struct image_order *out, struct error *err)
    __attribute__((warn_unused_result));
void image_order_finish(struct image_order *order); /* zeroed is fine */

/* Return the JSON schema of a body: JSON for generations, forms for edits and variations. A new
 * reference; NULL when memory is short. */
json_t *image_order_schema(void);
json_t *image_order_edit_schema(void);
json_t *image_order_variation_schema(void);

/* Enumerates the names of the fields that a route accepts, pictures included; NULL past the
 * last. */
const char *image_order_field(enum image_route route, size_t index);

#endif
