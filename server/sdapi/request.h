/* The body of POST /sdapi/v1/txt2img and /img2img to a request. No HTTP and no waiting here.
 *
 * Fields have AUTOMATIC1111's names and defaults; what it knows and we do not do is refused by name
 * where it would change the picture for certain (hires fix, scripts), and passed over otherwise
 * (docs/sdapi.md lists both); unknown fields are passed over, as there. */
#ifndef SERVER_SDAPI_REQUEST_H
#define SERVER_SDAPI_REQUEST_H

#include "engine/request.h"
#include "server/sdapi/inpaint.h"
#include "server/sdapi/samplers.h"
#include "server/sdapi/settings.h"

#include <jansson.h>

#define SDAPI_TASK_ID_MAX_BYTES 128
#define SDAPI_MASK_BLUR_MAX_PX 64 /* as AUTOMATIC1111's page has it */

enum sdapi_kind { SDAPI_TXT2IMG, SDAPI_IMG2IMG };

/* Zeroed, or filled by sdapi_request_parse. */
struct sdapi_request {
    enum sdapi_kind kind;
    struct generate_request generate; /* owned */
    struct sdapi_sampling sampling;
    struct sdapi_settings settings; /* with override_settings */
    struct sdapi_inpainting inpainting;
    struct sdapi_canvas canvas; /* once its pictures were prepared */
    int batch_size, n_iter;
    double denoising_strength; /* of SDAPI_IMG2IMG */
    int resize_mode;
    bool send_images;
    char task_id[SDAPI_TASK_ID_MAX_BYTES + 1]; /* "": none */
    char *checkpoint;                          /* owned; of override_settings; NULL: none */
    json_t *parameters; /* owned: what the answer repeats, without the pictures unless they are
                           wanted */
};

/* On success the caller finishes *out, which needs no initialisation. ERROR_INVALID with the field
 * is what FastAPI answers 422 to; without one it is a 400, and ERROR_NOT_FOUND a 404, whose message
 * are AUTOMATIC1111's words. */
bool sdapi_request_parse(enum sdapi_kind kind, const char *text, size_t length,
    const struct sdapi_settings *settings, struct sdapi_request *out, struct error *err)
    __attribute__((warn_unused_result));
void sdapi_request_finish(struct sdapi_request *request);

/* Base64 or a data URL of it, whose type is not asked. ERROR_INVALID in AUTOMATIC1111's words. */
bool sdapi_decode_picture(const char *text, struct picture_file *out, struct error *err)
    __attribute__((warn_unused_result));

/* The field that AUTOMATIC1111 has for one of ours, by name: "steps" for "num_inference_steps". */
const char *sdapi_field_name(const char *param);

#endif
