/* POST /sdapi/v1/txt2img and /img2img: parse, and start a generation that answers in this dialect.
 */
#include "server/generation/answer.h"
#include "server/http/respond.h"
#include "server/sdapi/answer.h"
#include "server/sdapi/sdapi.h"

#include <stdlib.h>
#include <string.h>

/* With a mask there are pictures to decode, so a loader's thread does this. */
static bool prepare(struct generation *g, struct generate_request *asked, struct error *err) {
    struct sdapi_request *request = g->user;
    return !request->inpainting.mask.bytes ||
           sdapi_inpaint_prepare(&request->inpainting, asked, &request->canvas, err);
}

static bool answer(const struct generation *g, struct generation_body *out, struct error *err) {
    const struct generate_answer drawn = generation_answer_of(g);
    const struct sdapi_answer answer = { g->user, &drawn };
    out->content_type = "application/json";
    out->bytes = sdapi_answer_json(&answer, &out->size, err);
    return out->bytes;
}

static void finish(void *user) {
    sdapi_request_finish(user);
    free(user);
}

static const struct generation_kind kind = {
    .dialect = "a1111", .prepare = prepare, .answer = answer, .finish = finish
};

/* One request does not change the model for all. */
static bool check_checkpoint(
    struct http_server *server, const struct sdapi_request *request, struct error *err) {
    const char *current = sdapi_model_name(server);
    return !request->checkpoint || strcmp(request->checkpoint, current) == 0 ||
           error_field(err, "override_settings.sd_model_checkpoint", request->checkpoint,
               "\"%.200s\", which is loaded; POST /sdapi/v1/options loads another", current);
}

static enum MHD_Result start(struct exchange *exchange, enum sdapi_kind which) {
    struct http_server *server = exchange->server;
    struct error err = { 0 };
    pthread_mutex_lock(&server->mutex);
    const struct sdapi_settings settings = server->sdapi;
    pthread_mutex_unlock(&server->mutex);
    struct sdapi_request *request = calloc(1, sizeof(*request));
    if (!request) {
        error_set(&err, ERROR_NO_MEMORY, "no memory for the request");
        return respond_error(exchange, &err);
    }
    if (!sdapi_request_parse(
            which, exchange->body, exchange->body_size, &settings, request, &err) ||
        !check_checkpoint(server, request, &err)) {
        finish(request);
        return respond_error(exchange, &err);
    }
    struct generate_request asked = request->generate;
    memset(&request->generate, 0, sizeof(request->generate));
    const int every = settings.live_previews && settings.preview_every > 0 ? settings.preview_every
                                                                           : 0;
    const struct generation_options options = {
        .preview_every = request->sampling.sampler->two_calls ? 2 * every : every,
        .preview = PREVIEW_RGB,
        .task_id = request->task_id[0] ? request->task_id : NULL,
    };
    return generation_start(exchange, &asked, &kind, request, &options);
}

static enum MHD_Result txt2img(struct exchange *exchange) {
    return start(exchange, SDAPI_TXT2IMG);
}

static enum MHD_Result img2img(struct exchange *exchange) {
    return start(exchange, SDAPI_IMG2IMG);
}

const struct route route_sdapi_txt2img = { .path = "/sdapi/v1/txt2img",
    .dialect = &dialect_sdapi,
    .methods = { { "POST", content_types_json, generation_takes, txt2img,
        .about = "Draws pictures from a text, as AUTOMATIC1111" } } };

const struct route route_sdapi_img2img = { .path = "/sdapi/v1/img2img",
    .dialect = &dialect_sdapi,
    .methods = { { "POST", content_types_json, generation_takes, img2img,
        .about = "Draws pictures from a text and a picture, as AUTOMATIC1111" } } };
