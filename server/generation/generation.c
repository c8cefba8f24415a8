#include "server/generation/generation.h"

#include "base/monotonic.h"
#include "server/http/respond.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void generation_ref(struct generation *g) {
    pthread_mutex_lock(&g->mutex);
    g->references++;
    pthread_mutex_unlock(&g->mutex);
}

static void destroy(struct generation *g) {
    engine_ticket_release(g->ticket);
    for (int i = 0; i < IMAGES_PER_REQUEST_MAX; i++)
        preview_unref(g->previews[i]);
    generate_result_finish(&g->result);
    resolved_request_finish(&g->request);
    generate_request_finish(&g->asked);
    if (g->kind->finish)
        g->kind->finish(g->user);
    pthread_mutex_destroy(&g->mutex);
    free(g);
}

void generation_unref(struct generation *g) {
    if (!g)
        return;
    pthread_mutex_lock(&g->mutex);
    const bool last = --g->references == 0;
    pthread_mutex_unlock(&g->mutex);
    if (last)
        destroy(g);
}

bool generation_is_cancelled(void *argument) {
    struct generation *g = argument;
    pthread_mutex_lock(&g->mutex);
    const bool cancelled = g->cancelled;
    pthread_mutex_unlock(&g->mutex);
    return cancelled;
}

void generation_cancel(struct generation *g) {
    pthread_mutex_lock(&g->mutex);
    g->cancelled = true;
    if (g->ticket)
        engine_cancel(g->server->options.engine, g->ticket);
    pthread_mutex_unlock(&g->mutex);
}

/* --- Progress --- */

void generation_get_progress(struct generation *g, struct generation_progress *out) {
    const double now = monotonic_seconds();
    pthread_mutex_lock(&g->mutex);
    *out = (struct generation_progress){ .running = g->begun_s > 0,
        .step = g->step,
        .steps = g->steps,
        .elapsed_s = now - g->created_s,
        .eta_s = -1 };
    if (g->step > 0) {
        out->eta_s = g->pace_s * (g->steps - g->step) - (now - g->stepped_s);
        if (out->eta_s < 0)
            out->eta_s = 0;
    }
    pthread_mutex_unlock(&g->mutex);
}

struct preview *generation_get_preview(struct generation *g, uint64_t after) {
    struct preview *found = NULL;
    pthread_mutex_lock(&g->mutex);
    for (int i = 0; i < IMAGES_PER_REQUEST_MAX; i++) {
        struct preview *preview = g->previews[i];
        if (preview && preview->number > after && (!found || preview->number < found->number))
            found = preview;
    }
    if (found)
        preview_ref(found);
    pthread_mutex_unlock(&g->mutex);
    return found;
}

/* --- Its answer --- */

struct generate_answer generation_answer_of(const struct generation *g) {
    return (struct generate_answer){
        .id = g->id,
        .created = g->created,
        .model_name = g->request.of.name ? g->request.of.name : "",
        .request = &g->request,
        .result = &g->result,
    };
}

bool generation_answer_picture(
    const struct generation *g, struct generation_body *out, struct error *err) {
    const struct generate_answer a = generation_answer_of(g);
    uint8_t *file = NULL;
    if (!generate_answer_picture(&a, 0, &file, &out->size, err))
        return false;
    out->bytes = file;
    out->content_type = picture_media_type(g->request.asked.format);
    out->headers[0].name = "X-Seed";
    snprintf(out->headers[0].value, sizeof(out->headers[0].value), "%" PRIu64, g->result.seeds[0]);
    if (g->result.nsfw) {
        out->headers[1].name = "X-NSFW";
        snprintf(out->headers[1].value, sizeof(out->headers[1].value), "%s",
            g->result.nsfw[0] ? "true" : "false");
    }
    return true;
}

enum MHD_Result generation_respond(struct exchange *exchange, struct generation_body *body) {
    struct answer_header headers[GENERATION_HEADERS_MAX + 1] = { { 0 } };
    for (int i = 0; i < GENERATION_HEADERS_MAX && body->headers[i].name; i++)
        headers[i] = (struct answer_header){ body->headers[i].name, body->headers[i].value };
    void *bytes = body->bytes;
    body->bytes = NULL;
    return respond_bytes(exchange, 200, body->content_type, bytes, body->size, headers, false);
}
