/* Parses the bodies of OpenAI's image routes: JSON (generations and edits) or a form (edits and
 * variations). No HTTP here, so that it can be fuzzed.
 *
 * Fields are those of OpenAI, and those of POST /generate, which clients send as extra_body. If
 * OpenAI has its own name for a native field, only OpenAI's name is accepted. null means the
 * default, because the openai package sends None as null. A field that asks for something
 * unsupported is refused by name. */
#ifndef SERVER_OPENAI_IMAGE_ORDER_H
#define SERVER_OPENAI_IMAGE_ORDER_H

#include "engine/request/request.h"
#include "server/openai/openai.h"

#include <jansson.h>
#include <stddef.h>

enum image_route { IMAGE_GENERATION, IMAGE_EDIT, IMAGE_VARIATION };

/* How pictures are sent: in base64, as addresses to fetch them from, or both, for a client that
 * does not say what it reads. */
enum { IMAGE_AS_BASE64, IMAGE_AS_URL, IMAGE_AS_BOTH };

struct image_order {
    enum image_route route;
    struct generate_request request;
    char model[256];     /* as sent; "": the loaded model */
    int response_format; /* IMAGE_AS_ */
    bool stream;
    int partial_images; /* most previews to send before the picture */
    int quality;        /* index of OpenAI's word, for image_order_quality */
    int input_fidelity; /* 1: high */
    int ignored;        /* words that are checked and have no effect */
    double true_cfg_scale;
    bool leaves_true_cfg_scale; /* it differs from guidance_scale, which is used */
};

/* The parts of a form. Zero-initialise. */
struct image_form {
    json_t *texts; /* owned: maps names to strings; NULL: none */
    struct picture_file image, mask;
};
void image_form_finish(struct image_form *form); /* zeroed is fine */

/* Reads a form's parts in order. Its functions are the `begin` and `write` of a struct
 * multipart_receiver, with the reader as `user`. Call image_form_end after the last part. */
struct image_form_reader {
    enum image_route route;
    struct image_form *form;
    char name[64];             /* name of the text being read; "": none */
    struct picture_file *file; /* picture being read; NULL: a text */
    char *text;                /* owned */
    size_t size;               /* of the text */
    size_t capacity;           /* of the file */
};
bool image_form_begin(void *reader, const char *name, const char *file_name, struct error *err)
    __attribute__((warn_unused_result));
bool image_form_write(void *reader, const void *bytes, size_t size, struct error *err)
    __attribute__((warn_unused_result));
/* Adds the last text to the form. Finishes the reader, also on failure. */
bool image_form_end(struct image_form_reader *reader, struct error *err)
    __attribute__((warn_unused_result));
void image_form_reader_finish(struct image_form_reader *reader);

/* Parse "images" and "mask" of a JSON body (image_json.c). */
bool image_order_parse_images(const json_t *value, struct image_order *order, struct error *err)
    __attribute__((warn_unused_result));
bool image_order_parse_mask(const json_t *value, struct image_order *order, struct error *err)
    __attribute__((warn_unused_result));

/* Parse a body; the caller finishes *out on success. Every field is checked, ranges included.
 * ERROR_INVALID names the field as OpenAI does. ERROR_NOT_FOUND means that the model is not in
 * `models`. image_order_from_form moves the form's pictures to the request. */
bool image_order_from_json(const char *text, size_t length, enum image_route route,
    const struct openai_models *models, struct image_order *out, struct error *err)
    __attribute__((warn_unused_result));
bool image_order_from_form(struct image_form *form, enum image_route route,
    const struct openai_models *models, struct image_order *out, struct error *err)
    __attribute__((warn_unused_result));
void image_order_finish(struct image_order *order); /* zeroed is fine */

/* Returns the word for `quality`, which the answer repeats. */
const char *image_order_quality(const struct image_order *order);

/* An edit whose picture has fully transparent pixels, and that brings no mask, draws these pixels
 * anew, as OpenAI's dall-e-2 does: the picture becomes the mask too. Decodes the picture, so call
 * it on a thread that may wait. `request` is the order's. */
bool image_order_mask_by_alpha(const struct image_order *order, struct generate_request *request,
    struct error *err) __attribute__((warn_unused_result));

/* Return the JSON schema of a body. A new reference; NULL when memory is short. */
json_t *image_order_schema(void);
json_t *image_order_edit_schema(void);
json_t *image_order_edit_form_schema(void);
json_t *image_order_variation_form_schema(void);

/* Returns the name of field `index` of a route, pictures included; NULL past the last. */
const char *image_order_field(enum image_route route, size_t index);

#endif
