/* Parses the body of POST /sdapi/v1/txt2img and /img2img into a request. No HTTP and no waiting
 * here.
 *
 * Fields have AUTOMATIC1111's names and defaults. A field of AUTOMATIC1111 that latentd does not
 * support is refused by name if it would certainly change the picture (hires fix, scripts). Where
 * AUTOMATIC1111 itself goes on with something else (a size that is no multiple of 8, a style that
 * is not there), so does this, and a comment says so in the answer. docs/sdapi.md lists these
 * fields. Unknown fields are ignored, as AUTOMATIC1111 does. */
#ifndef SERVER_SDAPI_REQUEST_H
#define SERVER_SDAPI_REQUEST_H

#include "engine/request/request.h"
#include "server/sdapi/inpaint.h"
#include "server/sdapi/samplers.h"
#include "server/sdapi/settings.h"
#include "server/sdapi/styles.h"

#include <jansson.h>

#define SDAPI_TASK_ID_MAX_BYTES 128
#define SDAPI_MASK_BLUR_MAX_PX 64 /* the limit of AUTOMATIC1111's page */

enum sdapi_kind { SDAPI_TXT2IMG, SDAPI_IMG2IMG };

/* Zero-initialise, or fill with sdapi_request_parse. */
struct sdapi_request {
    enum sdapi_kind kind;
    struct generate_request generate; /* owned */
    struct sdapi_sampling sampling;
    struct sdapi_settings settings; /* including override_settings */
    struct sdapi_inpainting inpainting;
    struct sdapi_canvas canvas; /* filled by sdapi_inpaint_prepare */
    int batch_size, n_iter;
    double denoising_strength; /* only for SDAPI_IMG2IMG */
    double eta;
    bool eta_given;
    int resize_mode;
    bool send_images;
    char task_id[SDAPI_TASK_ID_MAX_BYTES + 1]; /* "": none */
    char *checkpoint;                          /* owned; from override_settings; NULL: none */
    json_t *comments; /* owned: a list of texts, what of the request had no effect or another one */
    json_t *parameters; /* owned: the answer's "parameters", with pictures only if wanted */
};

/* Parses `length` bytes of JSON into *out, which needs no initialisation; the caller finishes it on
 * success. `styles` may be NULL. Errors have AUTOMATIC1111's form: ERROR_INVALID with a field
 * becomes FastAPI's 422. ERROR_INVALID without a field is a 400, and ERROR_NOT_FOUND a 404, both
 * with AUTOMATIC1111's message. */
bool sdapi_request_parse(enum sdapi_kind kind, const char *text, size_t length,
    const struct sdapi_settings *settings, const struct sdapi_styles *styles,
    struct sdapi_request *out, struct error *err) __attribute__((warn_unused_result));
void sdapi_request_finish(struct sdapi_request *request);

/* Decodes base64, or a data URL of any media type. ERROR_INVALID has AUTOMATIC1111's message. */
bool sdapi_decode_picture(const char *text, struct picture_file *out, struct error *err)
    __attribute__((warn_unused_result));

/* Returns AUTOMATIC1111's name for a native field, such as "steps" for "num_inference_steps". */
const char *sdapi_field_name(const char *param);

#endif
