#include "server/generation/pending.h"

#include "base/log.h"
#include "base/metrics.h"
#include "base/monotonic.h"
#include "server/deferred.h"
#include "server/dialect/generate_answer.h"
#include "server/http/respond.h"
#include "server/workers.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct pending {
    struct deferred deferred; /* the first member */

    /* Set before anybody else has it, constant afterwards. */
    char id[REQUEST_ID_MAX_BYTES + 1];
    struct pending_form form;
    time_t created;

    /* One thread after the other. */
    struct work work;
    struct generate_request asked;   /* until it is resolved */
    struct resolved_request request; /* the engine borrows it while it draws */
    struct generate_result result;
    struct error error; /* code ERROR_NONE: `body` is the answer */
    char *body;         /* owned */
    size_t body_size;
    uint64_t seed; /* of the one picture that is not in JSON */
    bool admitted;

    struct engine_ticket *ticket; /* owned; under the deferred's mutex */
};

static struct pending *pending_of(struct deferred *deferred) {
    return (struct pending *)deferred;
}

static void destroy(struct deferred *deferred) {
    struct pending *pending = pending_of(deferred);
    engine_ticket_release(pending->ticket);
    generate_result_finish(&pending->result);
    resolved_request_finish(&pending->request);
    generate_request_finish(&pending->asked);
    free(pending->body);
    free(pending);
}

static void cancel(struct deferred *deferred) {
    struct pending *pending = pending_of(deferred);
    struct http_server *server = deferred->server;
    if (pending->ticket)
        engine_cancel(server->options.engine, pending->ticket);
    log_info("%s: cancelling, since %s", pending->id,
        server_state(server, NULL) == ENGINE_STOPPING ? "the server is stopping"
                                                      : "the client went away");
}

/* --- The answer's bytes, on an encoder's thread --- */

static void encode(struct pending *pending) {
    struct generate_answer answer = {
        .id = pending->id,
        .created = pending->created,
        .model_name = pending->deferred.server->options.model_name,
        .request = &pending->request,
        .result = &pending->result,
    };
    if (pending->form.json) {
        pending->body = generate_answer_json(&answer, &pending->body_size, &pending->error);
    } else {
        uint8_t *file = NULL;
        if (generate_answer_picture(&answer, 0, &file, &pending->body_size, &pending->error))
            pending->body = (char *)file;
        pending->seed = pending->result.seeds[0];
    }
}

static void count_adapters(const struct adapter_set *set) {
    const struct adapter_use *uses;
    const int count = adapter_set_uses(set, &uses);
    for (int i = 0; i < count; i++)
        metric_add_lora_request(uses[i].name);
}

static void count_end(const struct pending *pending) {
    count_adapters(pending->request.adapters);
    switch (pending->error.code) {
    case ERROR_NONE:
        metric_add(METRIC_requests_total_succeeded, 1);
        metric_add(METRIC_images_total, (uint64_t)pending->result.image_count);
        metric_observe(METRIC_queue_seconds, pending->result.timings.queue_s);
        metric_observe(METRIC_request_seconds, pending->result.timings.total_s);
        break;
    case ERROR_CANCELLED:
        metric_add(METRIC_requests_total_cancelled, 1);
        break;
    case ERROR_TIMEOUT:
        metric_add(METRIC_requests_total_timed_out, 1);
        break;
    default:
        metric_add(METRIC_requests_total_failed, 1);
    }
}

static void remember_end(struct http_server *server, double total_s) {
    pthread_mutex_lock(&server->mutex);
    if (total_s > 0)
        request_ends_add(&server->ends, monotonic_seconds(), total_s);
    pthread_mutex_unlock(&server->mutex);
}

static void finish(struct work *work) {
    struct pending *pending = (struct pending *)((char *)work - offsetof(struct pending, work));
    const double total_s = pending->result.timings.total_s;
    if (pending->error.code == ERROR_NONE) {
        const double begun_s = monotonic_seconds();
        encode(pending);
        metric_observe(METRIC_png_seconds, monotonic_seconds() - begun_s);
    }
    count_end(pending);
    if (pending->error.code == ERROR_NONE)
        log_info("%s: %d image(s) in %.2f s", pending->id, pending->result.image_count, total_s);
    else if (error_http_status(pending->error.code) >= 500)
        log_error("%s: %s", pending->id, pending->error.message);
    generate_result_finish(&pending->result);
    remember_end(pending->deferred.server, total_s);
    deferred_done(&pending->deferred);
}

/* From the engine's thread: must not wait. The result's contents become ours. */
static void on_done(struct generate_result *result, const struct error *err, void *user) {
    struct pending *pending = user;
    if (result) {
        pending->result = *result;
        memset(result, 0, sizeof(*result));
    } else {
        pending->error = *err;
    }
    pending->work.run = finish;
    workers_give(pending->deferred.server->encoders, &pending->work);
}

/* --- From the request to the engine --- */

/* The format of the files: the request's, or what the client takes. */
static bool choose_format(struct pending *pending, struct error *err) {
    struct generate_request *asked = &pending->asked;
    const struct pending_form *form = &pending->form;
    char value[16];
    if (!form->json && asked->latent_output)
        return error_field(err, "output", "\"latent\"",
            "a picture's format with Accept: image/...; latents come with Accept: "
            "application/json");
    if (!form->json && !asked->format_given)
        asked->format = form->preferred;
    snprintf(value, sizeof(value), "\"%s\"", picture_format_name(asked->format));
    if (!form->json && !form->accepts[asked->format])
        return error_field(err, "output", value,
            "a format that the Accept header takes, \"%s\" among them",
            picture_format_name(form->preferred));
    snprintf(value, sizeof(value), "%d", asked->quality);
    return asked->quality == 0 || (!asked->latent_output && asked->format != PICTURE_PNG) ||
           error_field(err, "quality", value, "only with output \"jpeg\" or \"webp\"");
}

/* One picture fits into an answer of its bytes: no list, no second image. */
static bool check_count(
    const struct resolved_request *request, const struct pending_form *form, struct error *err) {
    return form->json || request->images == 1 ||
           error_field(err, request->asked.num_images > 1 ? "num_images" : "prompt",
               "more than one image",
               "one image with Accept: image/...; several come with Accept: application/json");
}

/* All that can be wrong with the request is said here, whoever waits. On success the engine has it,
 * and whoever calls holds a reference of their own. */
static bool admit(struct pending *pending, struct error *err) {
    struct engine *engine = pending->deferred.server->options.engine;
    const struct engine_callbacks callbacks = { .done = on_done, .user = pending };
    struct engine_ticket *ticket = NULL;
    if (!choose_format(pending, err) ||
        !engine_resolve(engine, &pending->asked, &pending->request, err) ||
        !check_count(&pending->request, &pending->form, err))
        return false;
    generate_request_finish(&pending->asked); /* pictures are large */
    pending->admitted = true;                 /* before the engine can be done with it */
    if (!engine_submit(engine, &pending->request, &callbacks, &ticket, err)) {
        pending->admitted = false;
        return false;
    }
    pthread_mutex_lock(&pending->deferred.mutex);
    pending->ticket = ticket;
    if (pending->deferred.cancelled) /* while an adapter was read */
        engine_cancel(engine, ticket);
    pthread_mutex_unlock(&pending->deferred.mutex);
    return true;
}

/* As admit, on a loader's thread, with the worker's reference. */
static void admit_later(struct work *work) {
    struct pending *pending = (struct pending *)((char *)work - offsetof(struct pending, work));
    deferred_ref(&pending->deferred); /* the engine and an encoder may be done with the other */
    if (!admit(pending, &pending->error))
        deferred_done(&pending->deferred);
    deferred_unref(&pending->deferred);
}

/* Whether resolving it would decode pictures, read an adapter's file, or make weights of one. */
static bool would_wait(const struct pending *pending) {
    const struct generate_request *asked = &pending->asked;
    struct adapters *adapters = engine_get_adapters(pending->deferred.server->options.engine);
    if (asked->init_image.bytes || asked->mask_image.bytes)
        return true;
    return adapters &&
           adapters_would_wait(adapters, asked->loras, asked->lora_count, asked->loras_given);
}

static enum MHD_Result answer(struct deferred *deferred, struct exchange *exchange) {
    struct pending *pending = pending_of(deferred);
    struct error *err = &pending->error;
    exchange->accepted = pending->admitted;
    if (err->code == ERROR_CANCELLED) { /* and yet somebody may read this */
        if (server_state(deferred->server, NULL) == ENGINE_STOPPING)
            error_set(err, ERROR_UNAVAILABLE, "the server stopped before it was done");
        else
            error_set(err, ERROR_CANCELLED,
                "the client closed its side of the connection, which is taken for leaving");
    }
    if (err->code != ERROR_NONE)
        return respond_error(exchange, err);
    char seed[24];
    snprintf(seed, sizeof(seed), "%" PRIu64, pending->seed);
    const struct answer_header headers[] = {
        { "X-Seed", pending->form.json ? NULL : seed },
        { NULL, NULL },
    };
    char *body = pending->body;
    pending->body = NULL;
    return respond_bytes(exchange, 200,
        pending->form.json ? "application/json" : picture_media_type(pending->request.asked.format),
        body, pending->body_size, headers, false);
}

static const struct deferred_kind kind = { answer, cancel, destroy };

static struct pending *pending_create(struct exchange *exchange, struct generate_request *asked,
    const struct pending_form *form, struct error *err) {
    struct pending *pending = calloc(1, sizeof(*pending));
    if (!pending) {
        error_set(err, ERROR_NO_MEMORY, "not enough memory for the request");
        return NULL;
    }
    memcpy(pending->id, exchange->id, sizeof(pending->id));
    pending->form = *form;
    pending->created = time(NULL);
    pending->asked = *asked;
    memset(asked, 0, sizeof(*asked));
    if (deferred_init(&pending->deferred, &kind, exchange, err))
        return pending;
    deferred_unref(&pending->deferred);
    return NULL;
}

enum MHD_Result pending_generate(
    struct exchange *exchange, struct generate_request *asked, const struct pending_form *form) {
    struct error err = { 0 };
    struct pending *pending = pending_create(exchange, asked, form, &err);
    generate_request_finish(asked);
    if (!pending)
        return respond_error(exchange, &err);
    if (would_wait(pending)) {
        deferred_suspend(&pending->deferred, exchange); /* nobody can be done with it yet */
        pending->work.run = admit_later;
        workers_give(exchange->server->loaders, &pending->work);
        return MHD_YES;
    }
    if (!admit(pending, &err)) {
        deferred_take_back(&pending->deferred);
        deferred_unref(&pending->deferred);
        return respond_error(exchange, &err);
    }
    return deferred_suspend(&pending->deferred, exchange) ? MHD_YES
                                                          : answer(&pending->deferred, exchange);
}
