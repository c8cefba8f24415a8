/* POST /hf: text to image and image to image as in Hugging Face's inference API. The body is
 * {"inputs": TEXT, "parameters": {...}}, where the parameters are the fields of POST /generate.
 * With a prompt among the parameters, the inputs are a picture in base64 to begin with. The answer
 * is the bytes of one picture. */
#include "server/dialect/huggingface.h"

#include "base/text/json.h"
#include "server/generation/client.h"
#include "server/generation/generate_json.h"
#include "server/http/accept.h"
#include "server/http/dialect.h"
#include "server/http/respond.h"
#include "server/later/reading.h"

#include <stdlib.h>
#include <string.h>

/* --- The answer --- */

static json_t *error_json(const struct error *err, const char *code, int *status) {
    (void)code;
    (void)status;
    return json_pack("{s:o}", "error", json_lenient_string(err->message));
}

static const struct dialect dialect_huggingface = { "huggingface", error_json, "HuggingfaceError" };

static bool check(const struct generation *g, struct error *err) {
    return g->request.images == 1 || error_field(err, "num_images", "more than one image", "1");
}

/* The client calls its picture "inputs". */
static void name_inputs(struct error *err) {
    const struct error found = *err;
    if (strcmp(found.param, "init_image") == 0)
        error_field(err, "inputs", found.value, "%s", found.allowed);
}

static const struct generation_kind of_text = {
    .dialect = "huggingface", .check = check, .answer = generation_answer_picture
};
static const struct generation_kind of_picture = { .dialect = "huggingface",
    .explain = name_inputs,
    .check = check,
    .answer = generation_answer_picture };

/* --- The request --- */

/* Parses {"width", "height"}, another name of the two fields. */
static bool parse_target_size(
    const json_t *value, struct generate_request *request, struct error *err) {
    static const char allowed[] = "{\"width\": 512, \"height\": 512}, without width and height";
    const json_t *width = json_object_get(value, "width"),
                 *height = json_object_get(value, "height");
    if (json_object_size(value) != 2 || !width || !height || request->width_given ||
        request->height_given)
        return json_bad_field("target_size", value, allowed, err);
    return generate_json_parse_field("width", width, request, err) &&
           generate_json_parse_field("height", height, request, err);
}

/* Parses all parameters but the prompt and target_size. */
static bool parse_parameters(const json_t *parameters, bool has_picture,
    struct generate_request *request, struct error *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)parameters, key, value) {
        if (json_is_null(value) || strcmp(key, "prompt") == 0 || strcmp(key, "target_size") == 0)
            continue;
        if (strcmp(key, "output") == 0)
            return json_bad_field(
                key, value, "leave it out: the Accept header chooses the format", err);
        if (has_picture && strcmp(key, "init_image") == 0)
            return json_bad_field(
                key, value, "leave it out: with a prompt, \"inputs\" is the picture", err);
        if (!generate_json_parse_field(key, value, request, err))
            return false;
    }
    return true;
}

/* Parses the prompt, and the picture if there is one. */
static bool parse_inputs(const json_t *inputs, const json_t *prompt,
    struct generate_request *request, struct error *err) {
    if (!prompt)
        return (json_is_string(inputs) || json_bad_field("inputs", inputs, "a text", err)) &&
               generate_json_parse_field("prompt", inputs, request, err);
    if (!json_is_string(prompt))
        return json_bad_field("prompt", prompt, "a text", err);
    request->resize_mode = RESIZE_MODE_CROP; /* unless the parameters say otherwise */
    return generate_json_parse_field("prompt", prompt, request, err) &&
           generate_json_parse_picture("inputs", inputs, &request->init_image, err);
}

static bool parse_body(
    const json_t *body, struct generate_request *request, bool *has_picture, struct error *err) {
    const json_t *parameters = json_object_get(body, "parameters");
    const json_t *prompt = json_object_get(parameters, "prompt");
    const json_t *target = json_object_get(parameters, "target_size");
    if (json_is_null(prompt))
        prompt = NULL;
    if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
        return json_bad_field("parameters", parameters, "an object", err);
    *has_picture = prompt != NULL;
    return parse_inputs(json_object_get(body, "inputs"), prompt, request, err) &&
           parse_parameters(parameters, *has_picture, request, err) &&
           (!target || json_is_null(target) || parse_target_size(target, request, err)) &&
           generate_request_check(request, err);
}

bool huggingface_parse(const char *text, size_t length, struct generate_request *request,
    bool *has_picture, struct error *err) {
    json_t *body = json_parse_request(text, length, err);
    if (!body)
        return error_prefix(err, "the body");
    const char *key;
    json_t *value;
    bool ok = true;
    json_object_foreach(body, key, value) {
        if (ok && strcmp(key, "inputs") != 0 && strcmp(key, "parameters") != 0)
            ok = json_bad_field(key, value, "\"inputs\" and \"parameters\"", err);
    }
    ok = ok && parse_body(body, request, has_picture, err);
    json_decref(body);
    return ok;
}

/* Chooses the picture format that the client prefers; among equals, the first in enum
 * picture_format. Returns false if the client accepts none. */
static bool choose_format(const struct exchange *exchange, struct generate_request *request) {
    const char *accept = exchange_header(exchange, "Accept");
    int best = 0;
    for (int i = 0; i < PICTURE_FORMATS; i++) {
        const int quality = accept_quality(accept, picture_media_type((enum picture_format)i));
        if (quality > best) {
            best = quality;
            request->format = (enum picture_format)i;
        }
    }
    return best > 0;
}

struct read_request {
    struct generate_request request; /* owned */
    bool has_picture;                /* the inputs are a picture */
};

static bool read_request(const struct exchange *exchange, void *out, struct error *err) {
    struct read_request *read = out;
    generate_request_init(&read->request);
    (void)choose_format(exchange, &read->request); /* never fails: handle() has checked it */
    if (huggingface_parse(
            exchange->body, exchange->body_size, &read->request, &read->has_picture, err))
        return true;
    generate_request_finish(&read->request);
    return false;
}

static enum MHD_Result start(struct exchange *exchange, void *read) {
    const struct generation_options options = { 0 };
    struct read_request *r = read;
    return generation_start(
        exchange, &r->request, r->has_picture ? &of_picture : &of_text, NULL, &options);
}

static void finish(void *read) {
    generate_request_finish(&((struct read_request *)read)->request);
}

static enum MHD_Result handle(struct exchange *exchange) {
    static const struct reading_kind reading = {
        .size = sizeof(struct read_request),
        .read = read_request,
        .handle = start,
        .finish = finish,
    };
    struct generate_request request = { 0 };
    if (!choose_format(exchange, &request))
        return respond_refusal(exchange, 406, "not_acceptable",
            "this route answers with image/png, image/jpeg or image/webp", NULL, false);
    return reading_start(exchange, &reading);
}

const struct route route_huggingface = { .path = "/hf",
    .dialect = &dialect_huggingface,
    .methods = { { "POST", content_types_json, generation_may_come, handle, .large = true,
        .about = "draws a picture from a text, or from a picture and a text",
        .takes = "{inputs: string, parameters?: object|null}",
        .answers = "image/png image/jpeg image/webp" } } };
