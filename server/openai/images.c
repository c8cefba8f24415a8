/* OpenAI's POST /v1/images/generations, /v1/images/edits and /v1/images/variations. */
#include "base/text/json.h"
#include "server/generation/client.h"
#include "server/http/caller.h"
#include "server/http/multipart.h"
#include "server/http/respond.h"
#include "server/later/reading.h"
#include "server/openai/image_answer.h"
#include "server/openai/openai.h"
#include "server/openai/picture_urls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A generation's own data: its order, without the request, which was handed over. */
struct client {
    struct image_order order;
    char *url_base;     /* owned: of the addresses of its pictures */
    uint64_t account;   /* the caller's number */
    int partial_images; /* sent so far; connection's thread only */
};

static struct client *client_of(const struct generation *g) {
    return g->user;
}

/* --- The answer --- */

static void destroy(void *user) {
    free(((struct client *)user)->url_base);
    free(user);
}

static bool answer(const struct generation *g, struct generation_body *out, struct error *err) {
    const struct generate_answer a = generation_answer_of(g);
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the answer");
    const struct image_answer_urls urls = { g->server->picture_urls, client_of(g)->url_base,
        client_of(g)->account };
    bool ok = image_answer_write(&a, &client_of(g)->order, &urls, file, err);
    if ((fclose(file) != 0 || !text) && ok)
        ok = error_set(err, ERROR_NO_MEMORY, "no memory for the answer");
    if (!ok) {
        free(text);
        return false;
    }
    out->content_type = "application/json";
    out->bytes = text;
    out->size = size;
    return true;
}

/* Writes the error event. OpenAI's clients recognise an error by the key "error" in its data. */
static bool write_error(const struct error *error, FILE *out) {
    int status = error_http_status(error->code);
    json_t *json = dialect_openai.error_json(error, error_code_name(error->code), &status);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    const bool ok = text && fprintf(out, "event: error\ndata: %s\n\n", text) > 0;
    free(text);
    return ok;
}

static bool event(const struct generation *g, const struct generation_event *event, FILE *out,
    struct error *err) {
    struct client *client = client_of(g);
    const struct generate_answer a = generation_answer_of(g);
    const struct preview *p = event->preview;
    switch (event->type) {
    case GENERATION_EVENT_PREVIEW:
        if (client->partial_images < client->order.partial_images)
            image_answer_write_partial(&client->order, client->partial_images++, p->jpeg, p->size,
                p->width, p->height, out);
        return true;
    case GENERATION_EVENT_RESULT:
        return image_answer_write_completed(&a, &client->order, out, err);
    case GENERATION_EVENT_ERROR:
        return write_error(event->error, out);
    default:
        return true;
    }
}

static bool prepare(struct generation *g, struct generate_request *asked, struct error *err) {
    return image_order_mask_by_alpha(&client_of(g)->order, asked, err);
}

static const struct generation_kind kind = {
    .dialect = "openai", .prepare = prepare, .answer = answer, .event = event, .finish = destroy
};

/* --- The request --- */

/* Returns the number of steps between two partial images, so that all requested ones are sent
 * before the end. */
static int steps_between(const struct image_order *order) {
    const int pieces = order->partial_images + 1;
    return (order->request.num_inference_steps + pieces - 1) / pieces;
}

/* Returns the address of the daemon as the client knows it, malloc'd. The guard has checked the
 * Host. */
static char *url_base_of(const struct exchange *exchange) {
    const char *host = exchange_header(exchange, "Host"),
               *base = exchange->server->options.public_url;
    char *text;
    return (base ? asprintf(&text, "%s", base) : asprintf(&text, "http://%s", host)) < 0 ? NULL
                                                                                         : text;
}

static enum MHD_Result start(struct exchange *exchange, void *read) {
    struct image_order *order = read;
    const struct generation_options options = {
        .stream = order->stream,
        .preview_every = order->partial_images > 0 ? steps_between(order) : 0,
        .preview = PREVIEW_VAE,
    };
    struct error err = { 0 };
    struct client *client = calloc(1, sizeof(*client));
    if (client)
        client->url_base = url_base_of(exchange);
    if (!client || !client->url_base) {
        free(client);
        image_order_finish(order);
        error_set(&err, ERROR_NO_MEMORY, "no memory for the request");
        return respond_error(exchange, &err);
    }
    client->account = caller_number(caller_of(exchange).text);
    struct generate_request request = order->request;
    memset(&order->request, 0, sizeof(order->request));
    client->order = *order;
    return generation_start(exchange, &request, &kind, client, &options);
}

static void finish(void *read) {
    image_order_finish(read);
}

static bool read_generations(const struct exchange *exchange, void *out, struct error *err) {
    const struct openai_models models = openai_models_of(exchange);
    return image_order_from_json(
        exchange->body, exchange->body_size, IMAGE_GENERATION, &models, out, err);
}

static bool read_form(
    const struct exchange *exchange, struct image_form_reader *reader, struct error *err) {
    const struct multipart_receiver receiver = { image_form_begin, image_form_write, reader };
    struct multipart *multipart;
    if (!multipart_create(exchange->http, &receiver, &multipart, err))
        return false;
    if (multipart_write(multipart, exchange->body, exchange->body_size, err))
        return multipart_end(multipart, err) && image_form_end(reader, err);
    multipart_abort(multipart);
    return false;
}

static bool read_order(const struct exchange *exchange, enum image_route route,
    struct image_order *out, struct error *err) {
    struct image_form form = { 0 };
    struct image_form_reader reader = { .route = route, .form = &form };
    const struct openai_models models = openai_models_of(exchange);
    const bool ok = read_form(exchange, &reader, err) &&
                    image_order_from_form(&form, route, &models, out, err);
    image_form_reader_finish(&reader);
    image_form_finish(&form);
    return ok;
}

static bool read_edits(const struct exchange *exchange, void *out, struct error *err) {
    const char *type = exchange_header(exchange, "Content-Type");
    const struct openai_models models = openai_models_of(exchange);
    if (strncasecmp(type, "application/json", strlen("application/json")) == 0)
        return image_order_from_json(
            exchange->body, exchange->body_size, IMAGE_EDIT, &models, out, err);
    return read_order(exchange, IMAGE_EDIT, out, err);
}

static bool read_variations(const struct exchange *exchange, void *out, struct error *err) {
    return read_order(exchange, IMAGE_VARIATION, out, err);
}

#define HANDLER(name)                                                                              \
    static enum MHD_Result handle_##name(struct exchange *exchange) {                              \
        static const struct reading_kind reading = {                                               \
            .size = sizeof(struct image_order),                                                    \
            .read = read_##name,                                                                   \
            .handle = start,                                                                       \
            .finish = finish,                                                                      \
        };                                                                                         \
        return reading_start(exchange, &reading);                                                  \
    }
HANDLER(generations)
HANDLER(edits)
HANDLER(variations)

static bool may_come(const struct exchange *exchange, struct error *err) {
    return generation_takes(exchange, err) && openai_query_none(exchange->target, err);
}

static const char *const content_types_form[] = { content_type_form, NULL };
static const char *const content_types_both[] = { content_type_form, "application/json", NULL };

const struct route route_openai_generations = { .path = "/v1/images/generations",
    .dialect = &dialect_openai,
    .methods = { { "POST", content_types_json, may_come, handle_generations, .large = true,
        .query = OPENAI_API_VERSION, .about = "draws pictures from a text",
        .answers = "application/json text/event-stream", .schema = image_order_schema,
        .returns = "OpenaiImages" } } };

const struct route route_openai_edits = { .path = "/v1/images/edits",
    .dialect = &dialect_openai,
    .methods = { { "POST", content_types_both, may_come, handle_edits, .large = true,
        .query = OPENAI_API_VERSION,
        .about = "draws pictures from a text and a picture, or redraws the part that a mask leaves "
                 "transparent",
        .schema = image_order_edit_schema, .form_schema = image_order_edit_form_schema,
        .returns = "OpenaiImages", .answers = "application/json text/event-stream" } } };

const struct route route_openai_variations = { .path = "/v1/images/variations",
    .dialect = &dialect_openai,
    .methods = { { "POST", content_types_form, may_come, handle_variations, .large = true,
        .query = OPENAI_API_VERSION, .about = "draws pictures from a picture alone",
        .schema = image_order_variation_form_schema, .returns = "OpenaiImages" } } };
