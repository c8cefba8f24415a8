/* The bodies of OpenAI's image routes: JSON (POST /v1/images/generations, and edits that bring
 * nothing but fields) or a form. No HTTP here, so that it can be fuzzed.
 *
 * A field is OpenAI's, with its name, or one of POST /generate, which clients send as extra_body;
 * of the latter those that OpenAI has a word of its own for are left out. null stands for the
 * default, since the openai package sends None as null. What is asked and cannot be done is
 * refused by its name. */
#ifndef SERVER_OPENAI_IMAGE_ORDER_H
#define SERVER_OPENAI_IMAGE_ORDER_H

#include "engine/request.h"
#include "server/openai/openai.h"

#include <jansson.h>
#include <stddef.h>

enum image_route { IMAGE_GENERATION, IMAGE_EDIT, IMAGE_VARIATION };

struct image_order {
    enum image_route route;
    struct generate_request request;
    char model[256]; /* as it was asked for; "": whatever is loaded */
    bool as_url;     /* the pictures as data URLs instead of their base64 */
    bool stream;
    int partial_images;                    /* at most so many before the picture */
    char quality[12];                      /* as asked, for the answer; "" */
    bool compression_given, high_fidelity; /* while it is read */
};

/* What a form has brought. Zeroed to begin with. */
struct image_form {
    json_t *texts; /* owned: names to strings; NULL: none */
    struct picture_file image, mask;
};
void image_form_finish(struct image_form *form); /* zeroed is fine */

/* A form's parts, one after the other: as a struct multipart_receiver's `begin` and `write`, with a
 * struct image_form_reader. At the end image_form_end. */
struct image_form_reader {
    enum image_route route;
    struct image_form *form;
    char name[64];             /* of the text that is coming; "": none */
    struct picture_file *file; /* that is coming; NULL: a text */
    char *text;                /* owned */
    size_t size;               /* of the text */
    size_t capacity;           /* of the file */
};
bool image_form_begin(void *reader, const char *name, const char *file_name, struct error *err)
    __attribute__((warn_unused_result));
bool image_form_write(void *reader, const void *bytes, size_t size, struct error *err)
    __attribute__((warn_unused_result));
/* The reader is finished either way. */
bool image_form_end(struct image_form_reader *reader, struct error *err)
    __attribute__((warn_unused_result));
void image_form_reader_finish(struct image_form_reader *reader);

/* *out is the caller's to finish on success. Every field is checked, ranges included; ERROR_INVALID
 * names it as OpenAI does. ERROR_NOT_FOUND for a model that is not
 * among them.
 * A form's pictures become the request's. */
bool image_order_from_json(const char *text, size_t length, const struct openai_models *models,
    struct image_order *out, struct error *err) __attribute__((warn_unused_result));
bool image_order_from_form(struct image_form *form, enum image_route route,
    const struct openai_models *models, struct image_order *out, struct error *err)
    __attribute__((warn_unused_result));
void image_order_finish(struct image_order *order); /* zeroed is fine */

/* The JSON schema of a body for generations. A new reference; NULL when memory is short. */
json_t *image_order_schema(void);

/* The names of the fields that a route takes, pictures included; NULL after the last. */
const char *image_order_field(enum image_route route, size_t index);

#endif
