/* POST /sdapi/v1/txt2img and /img2img: parses the request, and starts a generation that answers in
 * this dialect. */
#include "server/generation/client.h"
#include "server/later/reading.h"
#include "server/sdapi/answer.h"
#include "server/sdapi/sdapi.h"

#include <stdlib.h>
#include <string.h>

/* A request of this dialect, and how much its canvas takes of the memory that all canvases
 * share. */
struct asked {
    struct sdapi_request request; /* the first member */
    struct http_server *server;
    size_t canvas_bytes;
};

/* --- the canvases --- */

static void give_room(struct asked *a, size_t bytes) {
    pthread_mutex_lock(&a->server->mutex);
    a->server->canvas_bytes -= bytes;
    pthread_mutex_unlock(&a->server->mutex);
    a->canvas_bytes -= bytes;
}

static bool take_room(struct asked *a, size_t bytes, struct error *err) {
    struct http_server *server = a->server;
    pthread_mutex_lock(&server->mutex);
    const size_t taken = server->canvas_bytes;
    const bool fits = taken <= SDAPI_CANVASES_MAX_BYTES &&
                      bytes <= SDAPI_CANVASES_MAX_BYTES - taken;
    if (fits)
        server->canvas_bytes += bytes;
    pthread_mutex_unlock(&server->mutex);
    if (!fits)
        return error_set(err, ERROR_BUSY,
            "the picture to inpaint takes %zu MiB, and those of other requests %zu of %u MiB; try "
            "again later",
            bytes >> 20, taken >> 20, SDAPI_CANVASES_MAX_BYTES >> 20);
    a->canvas_bytes = bytes;
    return true;
}

/* Prepares inpainting. A request with a mask has pictures to decode, so this runs on a reader
 * thread. */
static bool prepare(struct generation *g, struct generate_request *asked, struct error *err) {
    struct asked *a = g->user;
    struct sdapi_request *request = &a->request;
    size_t bytes;
    if (!request->inpainting.given)
        return true;
    if (!sdapi_canvas_measure(&request->inpainting, asked, &bytes, err) ||
        !take_room(a, bytes, err) ||
        !sdapi_inpaint_prepare(&request->inpainting, asked,
            (struct cancel){ generation_is_cancelled, g }, &request->canvas, err))
        return false;
    free(request->inpainting.mask.bytes); /* its pixels are in the canvas now */
    request->inpainting.mask = (struct picture_file){ 0 };
    give_room(a, a->canvas_bytes - sdapi_canvas_bytes(&request->canvas));
    return true;
}

/* Makes the answer, which is the last use of the canvas. The canvas's memory is given back here,
 * before the client has read the answer. */
static bool answer(const struct generation *g, struct generation_body *out, struct error *err) {
    struct asked *a = g->user;
    const struct generate_answer drawn = generation_answer_of(g);
    const struct sdapi_answer answer = { &a->request, &drawn };
    out->content_type = "application/json";
    out->bytes = sdapi_answer_json(&answer, &out->size, err);
    sdapi_canvas_finish(&a->request.canvas);
    give_room(a, a->canvas_bytes);
    return out->bytes;
}

static void finish(void *user) {
    struct asked *a = user;
    sdapi_request_finish(&a->request);
    give_room(a, a->canvas_bytes);
    free(a);
}

static const struct generation_kind kind = {
    .dialect = "a1111", .prepare = prepare, .answer = answer, .finish = finish
};

/* Refuses a request that names another checkpoint: one request must not change the model for
 * all. */
static bool check_checkpoint(
    struct http_server *server, const struct sdapi_request *request, struct error *err) {
    const char *current = sdapi_model_name(server);
    return !request->checkpoint || sdapi_model_fit(request->checkpoint, current) >= 2 ||
           error_field(err, "override_settings.sd_model_checkpoint", request->checkpoint,
               "\"%.200s\", which is loaded; POST /sdapi/v1/options loads another", current);
}

/* A request body, parsed. */
struct read_request {
    struct asked *asked; /* owned */
    struct sdapi_settings settings;
};

static bool read_request(const struct exchange *exchange, enum sdapi_kind which,
    struct read_request *out, struct error *err) {
    struct http_server *server = exchange->server;
    struct asked *a = calloc(1, sizeof(*a));
    if (!a)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the request");
    pthread_mutex_lock(&server->mutex);
    out->settings = *server->sdapi;
    pthread_mutex_unlock(&server->mutex);
    a->server = server;
    if (sdapi_request_parse(which, exchange->body, exchange->body_size, &out->settings,
            server->options.styles, &a->request, err) &&
        check_checkpoint(server, &a->request, err)) {
        out->asked = a;
        return true;
    }
    finish(a);
    return false;
}

static void finish_request(void *read) {
    finish(((struct read_request *)read)->asked);
}

static enum MHD_Result start(struct exchange *exchange, void *read) {
    struct asked *a = ((struct read_request *)read)->asked;
    const struct sdapi_settings settings = ((struct read_request *)read)->settings;
    struct sdapi_request *request = &a->request;
    struct generate_request asked = request->generate;
    memset(&request->generate, 0, sizeof(request->generate));
    const int every = settings.live_previews && settings.preview_every > 0 ? settings.preview_every
                                                                           : 0;
    const struct generation_options options = {
        .preview_every = request->sampling.sampler->two_calls ? 2 * every : every,
        .preview = PREVIEW_RGB,
        .task_id = request->task_id[0] ? request->task_id : NULL,
    };
    return generation_start(exchange, &asked, &kind, a, &options);
}

static bool read_txt2img(const struct exchange *exchange, void *out, struct error *err) {
    return read_request(exchange, SDAPI_TXT2IMG, out, err);
}

static bool read_img2img(const struct exchange *exchange, void *out, struct error *err) {
    return read_request(exchange, SDAPI_IMG2IMG, out, err);
}

#define HANDLER(name)                                                                              \
    static enum MHD_Result name(struct exchange *exchange) {                                       \
        static const struct reading_kind reading = {                                               \
            .size = sizeof(struct read_request),                                                   \
            .read = read_##name,                                                                   \
            .handle = start,                                                                       \
            .finish = finish_request,                                                              \
        };                                                                                         \
        return reading_start(exchange, &reading);                                                  \
    }
HANDLER(txt2img)
HANDLER(img2img)

/* The fields that the bodies of txt2img and img2img share. */
#define COMMON                                                                                     \
    "prompt?: string, negative_prompt?: string, styles?: [string], seed?: integer, "               \
    "subseed?: integer, subseed_strength?: number, seed_resize_from_w?: integer, "                 \
    "seed_resize_from_h?: integer, sampler_name?: string|null, "                                   \
    "sampler_index?: string, scheduler?: string|null, eta?: number|null, batch_size?: integer, "   \
    "n_iter?: integer, steps?: integer, cfg_scale?: number, width?: integer, height?: integer, "   \
    "override_settings?: SdapiOptions, force_task_id?: string|null, send_images?: boolean"

const struct route route_sdapi_txt2img = { .path = "/sdapi/v1/txt2img",
    .dialect = &dialect_sdapi,
    .methods = { { "POST", content_types_json, generation_takes, txt2img, .large = true,
        .about = "Draws pictures from a text, as AUTOMATIC1111", .takes = "{" COMMON ", ...}",
        .returns = "SdapiImages" } } };

const struct route route_sdapi_img2img = { .path = "/sdapi/v1/img2img",
    .dialect = &dialect_sdapi,
    .methods = { { "POST", content_types_json, generation_takes, img2img, .large = true,
        .about = "Draws pictures from a text and a picture, as AUTOMATIC1111",
        .takes = "{init_images: [string], denoising_strength?: number, "
                 "resize_mode?: integer, include_init_images?: boolean, "
                 "mask?: string|null, mask_blur?: integer|null, "
                 "mask_blur_x?: integer, mask_blur_y?: integer, "
                 "inpainting_fill?: integer, inpainting_mask_invert?: integer, "
                 "inpaint_full_res?: boolean, inpaint_full_res_padding?: integer, " COMMON ", ...}",
        .returns = "SdapiImages" } } };
