/* POST /generate: negotiates the answer's form, parses, and starts a generation. */
#include "base/text/base64.h"
#include "base/text/json.h"
#include "server/generation/client.h"
#include "server/generation/generate_json.h"
#include "server/generation/generations.h"
#include "server/generation/order_route.h"
#include "server/generation/repeats.h"
#include "server/http/accept.h"
#include "server/http/query.h"
#include "server/http/respond.h"
#include "server/http/route.h"
#include "server/jobs/jobs.h"
#include "server/later/reading.h"

#include <stdlib.h>

/* The form of the answer that the client accepts: JSON with everything, the bytes of one picture,
 * or events. */
struct form {
    bool json, events;
    bool accepts[PICTURE_FORMATS]; /* at least one, unless `json` or `events` */
    enum picture_format preferred; /* used if the request names no format */
};

static const struct form *form_of(const struct generation *g) {
    return g->user;
}

/* --- The answer --- */

/* Refuses a request for several images if the answer is to be the bytes of a picture, because there
 * can be only one. */
static bool check(const struct generation *g, struct error *err) {
    const struct form *form = form_of(g);
    return form->json || form->events || g->request.images == 1 ||
           error_field(err, g->request.asked.num_images > 1 ? "num_images" : "prompt",
               "more than one image",
               "one image with Accept: image/...; several come with Accept: application/json");
}

static bool answer(const struct generation *g, struct generation_body *out, struct error *err) {
    if (!form_of(g)->json)
        return generation_answer_picture(g, out, err);
    const struct generate_answer a = generation_answer_of(g);
    out->content_type = "application/json";
    out->bytes = generate_answer_json(&a, &out->size, err);
    return out->bytes;
}

static json_t *seconds_json(double seconds) {
    return seconds < 0 ? json_null() : json_real((double)(int64_t)(seconds * 1000 + 0.5) / 1000);
}

static json_t *preview_json(const struct preview *p) {
    size_t length;
    char *text = base64_encode(p->jpeg, p->size, &length);
    json_t *json = text ? json_pack("{s:i, s:i, s:i, s:o, s:s, s:i, s:i}", "image", p->image,
                              "step", p->step, "steps", p->steps, "b64_json",
                              json_stringn_nocheck(text, length), "format", "jpeg", "width",
                              p->width, "height", p->height)
                        : NULL;
    free(text);
    return json;
}

static bool write_json(const char *type, json_t *json, FILE *out) {
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(json);
    const bool ok = text && fprintf(out, "event: %s\ndata: %s\n\n", type, text) > 0;
    free(text);
    return ok;
}

static bool write_result(const struct generation *g, FILE *out, struct error *err) {
    const struct generate_answer a = generation_answer_of(g);
    size_t length;
    char *text = generate_answer_json(&a, &length, err);
    if (!text)
        return false;
    fputs("event: result\ndata: ", out);
    fwrite(text, 1, length, out);
    fputs("\n\n", out);
    free(text);
    return true;
}

static bool event(const struct generation *g, const struct generation_event *event, FILE *out,
    struct error *err) {
    const struct generation_progress *now = &event->progress;
    switch (event->type) {
    case GENERATION_EVENT_QUEUED:
        return write_json(
            "queued", json_pack("{s:s, s:i}", "id", g->id, "position", now->position), out);
    case GENERATION_EVENT_PROGRESS:
        return write_json("progress",
            json_pack("{s:i, s:i, s:o, s:o}", "step", now->step, "steps", now->steps, "eta_s",
                seconds_json(now->eta_s), "elapsed_s", seconds_json(now->elapsed_s)),
            out);
    case GENERATION_EVENT_PREVIEW:
        return write_json("preview", preview_json(event->preview), out);
    case GENERATION_EVENT_RESULT:
        return write_result(g, out, err);
    default:
        return write_json("error", respond_error_json(event->error), out);
    }
}

static const struct generation_kind kind = {
    .dialect = "native", .check = check, .answer = answer, .event = event, .finish = free
};

/* --- The request --- */

static bool may_come(const struct exchange *exchange, struct error *err) {
    char key[JOB_KEY_MAX_BYTES + 1];
    bool is_order;
    return server_takes(exchange->server, err) && generation_is_order(exchange, &is_order, err) &&
           jobs_read_key(exchange, key, err) && (!is_order || jobs_are_kept(exchange, err));
}

/* Reads the Accept header. Returns false if the client accepts no form of the answer. JSON is
 * chosen if the client wants it at least as much as any picture format. Events are chosen only if
 * the client prefers them to everything else. `preferred` is the picture format with the highest
 * quality; among equals, the first in enum picture_format. */
static bool negotiate(const struct exchange *exchange, struct form *form) {
    const char *accept = exchange_header(exchange, "Accept");
    const int json = accept_quality(accept, "application/json");
    const int events = accept_quality(accept, "text/event-stream");
    int best = 0;
    for (int i = 0; i < PICTURE_FORMATS; i++) {
        const enum picture_format format = (enum picture_format)i;
        const int quality = accept_quality(accept, picture_media_type(format));
        form->accepts[i] = quality > 0;
        if (quality > best) {
            best = quality;
            form->preferred = format;
        }
    }
    form->json = json >= best;
    form->events = events > json && events > best;
    return json > 0 || best > 0 || events > 0;
}

/* Chooses the format of the picture files: the request's, or else the client's preferred one.
 * Refuses a format that the client does not accept, and a quality for a format without one. */
static bool choose_format(
    struct generate_request *asked, const struct form *form, struct error *err) {
    const bool whole = form->json || form->events;
    char value[16];
    if (!whole && asked->latent_output)
        return error_field(err, "output", "\"latent\"",
            "a picture's format with Accept: image/...; latents come with Accept: "
            "application/json");
    if (!whole && !asked->format_given)
        asked->format = form->preferred;
    snprintf(value, sizeof(value), "\"%s\"", picture_format_name(asked->format));
    if (!whole && !form->accepts[asked->format])
        return error_field(err, "output", value,
            "a format that the Accept header takes, \"%s\" among them",
            picture_format_name(form->preferred));
    snprintf(value, sizeof(value), "%d", asked->quality);
    return asked->quality == 0 || (!asked->latent_output && asked->format != PICTURE_PNG) ||
           error_field(err, "quality", value, "only with output \"jpeg\" or \"webp\"");
}

/* Refuses previews in a plain answer, which cannot carry them. Not called for jobs, which publish
 * previews as events. */
static bool check_previews(
    const struct generate_delivery *delivery, const struct form *form, struct error *err) {
    char value[16];
    snprintf(value, sizeof(value), "%d", delivery->preview_every);
    return form->events || delivery->preview_every == 0 ||
           error_field(err, "preview_every", value,
               "0 in a plain answer; previews are for \"stream\": true and async=1");
}

/* Computes the digest of the request: its body, whatever the order of its members, and the form of
 * its answer. The caller is not part of it. */
static bool identify(
    const json_t *body, const struct form *form, struct digest *out, struct error *err) {
    struct sha256 sha;
    char *canonical = json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS);
    if (!canonical)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the request");
    sha256_begin(&sha);
    sha256_add_text(&sha, canonical);
    sha256_add_text(&sha, form->json ? "json" : picture_format_name(form->preferred));
    *out = sha256_end(&sha);
    free(canonical);
    return true;
}

/* A request body, parsed. */
struct drawing {
    struct generate_request request; /* owned */
    struct generate_delivery delivery;
    struct form form;
    char key[JOB_KEY_MAX_BYTES + 1]; /* "": none */
    struct digest digest;            /* of the request; only set with a key */
};

/* Computes the digest of a request that has an Idempotency-Key. Refuses the key if the answer is a
 * stream. */
static bool find_digest(struct drawing *d, const json_t *body, struct error *err) {
    return d->form.events ? error_field(err, "Idempotency-Key", d->key,
                                "none with a stream, because a stream cannot be resumed; async=1 "
                                "makes a job, whose events can be followed again")
                          : identify(body, &d->form, &d->digest, err);
}

static bool read_drawing(const struct exchange *exchange, void *out, struct error *err) {
    struct drawing *d = out;
    if (!jobs_read_key(exchange, d->key, err))
        return false;
    /* NULL if there is no Idempotency-Key, or if the body is not JSON. generate_json_parse then
     * says what is wrong with it. */
    json_t *body = d->key[0] ? json_parse_request(exchange->body, exchange->body_size, NULL) : NULL;
    bool ok = body ? generate_json_read(body, &d->request, &d->delivery, err)
                   : generate_json_parse(
                         exchange->body, exchange->body_size, &d->request, &d->delivery, err);
    if (ok) {
        (void)negotiate(exchange, &d->form); /* never fails: handle() has checked it */
        d->form.events = d->form.events || d->delivery.stream;
        /* Without a body here, memory was short a moment ago: the body is JSON. */
        ok = !d->key[0] || (body ? find_digest(d, body, err)
                                 : error_set(err, ERROR_NO_MEMORY, "no memory for the request"));
        if (!ok)
            generate_request_finish(&d->request);
    }
    json_decref(body);
    return ok;
}

static void finish_drawing(void *read) {
    generate_request_finish(&((struct drawing *)read)->request);
}

/* Finds the earlier request with the same Idempotency-Key. If there is one, sets *known, and
 * *repeat will have its answer. Otherwise *repeat is new, and later requests with the same key wait
 * for it. Without a key *repeat is NULL. */
static bool find_repeat(struct exchange *exchange, const struct drawing *d, struct repeat **repeat,
    bool *known, struct error *err) {
    *repeat = NULL;
    *known = false;
    return !d->key[0] || repeats_begin(exchange->server->repeats, exchange->caller, d->key,
                             &d->digest, repeat, known, err);
}

static enum MHD_Result start_drawing(struct exchange *exchange, void *read) {
    struct drawing *d = read;
    struct generate_request *request = &d->request;
    const struct generate_delivery *delivery = &d->delivery;
    const struct form *form = &d->form;
    struct generation_options options = {
        .stream = form->events,
        .preview_every = delivery->preview_every,
        .preview = delivery->preview,
    };
    struct error err = { 0 };
    bool known = false;
    struct form *own = malloc(sizeof(*own));
    if (!own)
        error_set(&err, ERROR_NO_MEMORY, "no memory for the request");
    else if (choose_format(request, form, &err) && check_previews(delivery, form, &err) &&
             find_repeat(exchange, d, &options.repeat, &known, &err) && !known) {
        *own = *form;
        return generation_start(exchange, request, &kind, own, &options);
    }
    free(own);
    generate_request_finish(request);
    return known ? repeat_answer(exchange, options.repeat) : respond_error(exchange, &err);
}

static const struct reading_kind drawing = {
    .size = sizeof(struct drawing),
    .read = read_drawing,
    .handle = start_drawing,
    .finish = finish_drawing,
};

static enum MHD_Result handle(struct exchange *exchange) {
    struct form form = { 0 };
    struct error err = { 0 };
    bool is_order;
    if (!generation_is_order(exchange, &is_order, &err))
        return respond_error(exchange, &err);
    if (is_order)
        return generation_order(exchange);
    if (!negotiate(exchange, &form))
        return respond_refusal(exchange, 406, "not_acceptable",
            "this route answers with application/json, image/png, image/jpeg, image/webp or "
            "text/event-stream",
            NULL, false);
    return reading_start(exchange, &drawing);
}

const struct route route_generate = { .path = "/generate",
    .methods = { { "POST", content_types_json, may_come, handle, .large = true,
        .about = "draws pictures, or orders a job that draws them", .query = "async:integer",
        .answers = "application/json image/png image/jpeg image/webp text/event-stream",
        .schema = generate_json_schema, .returns = "200 Drawing; 202 Job" } } };

/* --- Cancelling --- */

static enum MHD_Result handle_cancel(struct exchange *exchange) {
    struct error err = { 0 };
    char id[REQUEST_ID_MAX_BYTES + 1];
    size_t length;
    const char *piece = route_piece(exchange->route, exchange->target, &length);
    snprintf(id, sizeof(id), "%.*s", (int)(length < sizeof(id) ? length : 0), piece);
    if (!query_none(exchange->target, &err))
        return respond_error(exchange, &err);
    const struct viewer viewer = viewer_of(exchange);
    if (generations_cancel(exchange->server->generations, &viewer, id))
        return respond_json(exchange, 200, json_pack("{s:s, s:s}", "id", id, "asked_to", "cancel"));
    error_set(&err, ERROR_NOT_FOUND, "no request of yours with this id is under way");
    return respond_error(exchange, &err);
}

const struct route route_generate_cancel = { .path = "/generate/",
    .piece = "id",
    .suffix = "/cancel",
    .methods = { { "POST", .handle = handle_cancel,
        .about = "cancels a request of the same caller, by its X-Request-Id",
        .returns = "{id: string, asked_to: string}" } } };
