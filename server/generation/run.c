#include "server/generation/run.h"

#include "base/log.h"
#include "base/metrics.h"
#include "base/monotonic.h"
#include "server/generation/generations.h"
#include "server/http/caller.h"

#include <stdlib.h>
#include <string.h>

struct generation *generation_create(const struct generation_order *order, struct error *err) {
    struct generation *g = calloc(1, sizeof(*g));
    if (!g) {
        error_set(err, ERROR_NO_MEMORY, "no memory for the request");
        generate_request_finish(order->asked);
        if (order->kind->finish)
            order->kind->finish(order->user);
        return NULL;
    }
    const struct generation_options *options = order->options;
    snprintf(g->id, sizeof(g->id), "%s", order->id);
    snprintf(g->caller, sizeof(g->caller), "%s", order->caller);
    snprintf(g->task_id, sizeof(g->task_id), "%s", options->task_id ? options->task_id : "");
    g->kind = order->kind;
    g->user = order->user;
    g->server = order->server;
    g->created = time(NULL);
    g->created_s = monotonic_seconds();
    g->owner = order->owner;
    g->owned_by = order->owned_by;
    g->account = caller_number(order->account);
    g->may_prioritize = order->may_prioritize;
    g->preview_every = options->preview_every;
    g->preview_kind = options->preview;
    g->asked = *order->asked;
    memset(order->asked, 0, sizeof(*order->asked));
    pthread_mutex_init(&g->mutex, NULL);
    g->references = 1;
    generations_add(g->server->generations, g);
    return g;
}

/* --- Progress, on the engine thread --- */

/* Computes the mean time per evaluation. */
static void on_progress(int step, int steps, void *user) {
    struct generation *g = user;
    const double now = monotonic_seconds();
    pthread_mutex_lock(&g->mutex);
    if (g->begun_s == 0)
        g->begun_s = now;
    if (step > 0)
        g->pace_s = (now - g->begun_s) / step;
    g->stepped_s = now;
    g->step = step;
    g->steps = steps;
    pthread_mutex_unlock(&g->mutex);
    if (g->owner->news)
        g->owner->news(g);
}

/* --- The end, on an encoder thread --- */

static void count_adapters(const struct adapter_set *set) {
    const struct adapter_use *uses;
    const int count = adapter_set_uses(set, &uses);
    for (int i = 0; i < count; i++)
        metric_add_lora_request(uses[i].name);
}

static void count_end(const struct generation *g) {
    const char *dialect = g->kind->dialect;
    count_adapters(g->request.adapters);
    switch (g->error.code) {
    case ERROR_NONE:
        metric_add_request(dialect, REQUEST_SUCCEEDED);
        metric_add(METRIC_images_total, (uint64_t)g->result.image_count);
        metric_observe(METRIC_queue_seconds, g->result.timings.queue_s);
        metric_observe(METRIC_request_seconds, g->result.timings.total_s);
        break;
    case ERROR_CANCELLED:
        metric_add_request(dialect, REQUEST_CANCELLED);
        break;
    case ERROR_TIMEOUT:
        metric_add_request(dialect, REQUEST_TIMED_OUT);
        break;
    default:
        metric_add_request(dialect, REQUEST_FAILED);
    }
}

/* Returns whether the owner keeps the generation until there is disk space again. */
static bool put_off(struct generation *g) {
    if (g->error.code != ERROR_NO_SPACE || !g->owner->put_off)
        return false;
    const struct error why = g->error;
    g->error = (struct error){ 0 }; /* first: put_off may give g to another thread */
    if (g->owner->put_off(g))
        return true;
    g->error = why;
    return false;
}

static void finish(struct work *work) {
    struct generation *g = (struct generation *)((char *)work - offsetof(struct generation, work));
    const double total_s = g->result.timings.total_s;
    if (g->error.code == ERROR_NONE && generation_is_cancelled(g))
        error_set(&g->error, ERROR_CANCELLED, "the request was cancelled after it was drawn");
    if (g->error.code == ERROR_NONE) {
        const double begun_s = monotonic_seconds();
        if (!g->owner->encode(g, &g->error) && g->error.code == ERROR_NONE)
            error_set(&g->error, ERROR_NO_MEMORY, "no memory for the answer");
        metric_observe(METRIC_png_seconds, monotonic_seconds() - begun_s);
        if (put_off(g))
            return;
    }
    count_end(g);
    if (g->error.code == ERROR_NONE)
        log_info("%s: %d image(s) in %.2f s", g->id, g->result.image_count, total_s);
    else if (error_http_status(g->error.code) >= 500)
        log_error("%s: %s", g->id, g->error.message);
    generate_result_finish(&g->result);
    generations_remove(g->server->generations, g, !g->owner->goes_on || !g->owner->goes_on(g));
    g->owner->ended(g);
    generation_unref(g);
}

void generation_encode_again(struct generation *g) {
    workers_give(g->server->encoders, &g->work);
}

/* Called when the engine, or the encoder of a preview, no longer uses the generation. The last call
 * gives the generation to an encoder thread, which finishes it. */
static void let_go(struct generation *g) {
    pthread_mutex_lock(&g->mutex);
    const bool ends = --g->busy == 0;
    pthread_mutex_unlock(&g->mutex);
    if (!ends)
        return;
    g->work.run = finish;
    g->work.caller = g->account;
    workers_give(g->server->encoders, &g->work);
}

struct preview_work {
    struct work work;
    struct generation *g;
    struct studio_preview picture;
    uint8_t pixels[];
};

/* Keeps the newest preview of each image and drops the other one. */
static void keep_preview(struct generation *g, struct preview *preview) {
    pthread_mutex_lock(&g->mutex);
    struct preview **slot = &g->previews[preview->image], *before = *slot;
    const bool is_newer = !before || before->step < preview->step;
    if (is_newer) {
        preview->number = ++g->previews_made;
        *slot = g->latest = preview;
    }
    pthread_mutex_unlock(&g->mutex);
    preview_unref(is_newer ? before : preview);
}

static void encode_preview(struct work *work) {
    struct preview_work *p = (struct preview_work *)work;
    struct generation *g = p->g;
    struct preview *preview = preview_create(&p->picture);
    if (preview) {
        keep_preview(g, preview);
        if (g->owner->news)
            g->owner->news(g);
    }
    free(p);
    let_go(g);
}

/* On the engine thread. Without memory there is no preview. */
static void on_preview(const struct studio_preview *picture, void *user) {
    struct generation *g = user;
    const size_t size = (size_t)picture->width * (size_t)picture->height * 3;
    struct preview_work *p = malloc(sizeof(*p) + size);
    if (!p)
        return;
    *p = (struct preview_work){
        .work = { .run = encode_preview, .caller = g->account }, .g = g, .picture = *picture
    };
    memcpy(p->pixels, picture->pixels, size);
    p->picture.pixels = p->pixels;
    pthread_mutex_lock(&g->mutex);
    g->busy++;
    pthread_mutex_unlock(&g->mutex);
    workers_give(g->server->encoders, &p->work);
}

/* On the engine thread: must not wait. Takes over the result's contents. */
static void on_done(struct generate_result *result, const struct error *err, void *user) {
    struct generation *g = user;
    if (result) {
        g->result = *result;
        memset(result, 0, sizeof(*result));
    } else {
        g->error = *err;
    }
    let_go(g);
}

/* --- From the request to the engine --- */

bool generation_would_wait(const struct generation *g) {
    return resolve_would_wait(engine_get_adapters(g->server->options.engine), &g->asked);
}

struct workers *generation_workers(const struct generation *g) {
    return g->asked.init_image.bytes || g->asked.mask_image.bytes ? g->server->readers
                                                                  : g->server->loaders;
}

static bool resolve(struct generation *g, struct error *err) {
    if (generation_is_cancelled(g)) /* before pictures are decoded in vain */
        return error_set(err, ERROR_CANCELLED, "the request was cancelled before it began");
    if ((g->kind->prepare && !g->kind->prepare(g, &g->asked, err)) ||
        !engine_resolve(g->server->options.engine, &g->asked, &g->request, err) ||
        (g->kind->check && !g->kind->check(g, err)))
        return false;
    generate_request_finish(&g->asked); /* frees its pictures, which are large */
    return !generation_is_cancelled(g) ||
           error_set(err, ERROR_CANCELLED, "the request was cancelled before it was queued");
}

bool generation_check_priority(
    bool may_prioritize, const struct generate_request *asked, struct error *err) {
    char value[16];
    if (asked->priority <= 0 || may_prioritize)
        return true;
    snprintf(value, sizeof(value), "%d", asked->priority);
    error_field(err, "priority", value,
        "0 or less with this API key; a key made with latentd key --may priority may use more");
    err->code = ERROR_FORBIDDEN;
    return false;
}

bool generation_admit(struct generation *g, struct error *err) {
    struct engine *engine = g->server->options.engine;
    const struct engine_callbacks callbacks = {
        .done = on_done,
        .progress = on_progress,
        .preview = g->preview_every > 0 ? on_preview : NULL,
        .preview_every = g->preview_every,
        .preview_decodes = g->preview_kind == PREVIEW_VAE,
        .has_queue = g->owner->has_queue,
        .caller = g->account,
        .user = g,
    };
    struct engine_ticket *ticket = NULL;
    bool ok = generation_check_priority(g->may_prioritize, &g->asked, err) && resolve(g, err);
    if (ok) {
        pthread_mutex_lock(&g->mutex);
        g->images = g->request.images;
        g->steps = g->request.images * g->request.plan->count;
        pthread_mutex_unlock(&g->mutex);
        g->admitted = true; /* before the engine can be done with it */
        g->busy = 1;
        generation_ref(g); /* the encoder's reference */
        ok = engine_submit(engine, &g->request, &callbacks, &ticket, err);
        if (!ok) {
            g->admitted = false;
            generation_unref(g);
        }
    }
    if (!ok) {
        if (g->kind->explain)
            g->kind->explain(err);
        generations_remove(g->server->generations, g, false);
        return false;
    }
    pthread_mutex_lock(&g->mutex);
    g->ticket = ticket;
    if (g->cancelled) /* meanwhile */
        engine_cancel(engine, ticket);
    pthread_mutex_unlock(&g->mutex);
    return true;
}
