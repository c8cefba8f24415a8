#include "engine/loop/engine.h"

#include "base/condition.h"
#include "base/metrics.h"
#include "base/monotonic.h"
#include "base/thread.h"
#include "engine/loop/engine_internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define FIGURES_STALE_S 1.0

/* One accepted request. It waits in the queue until the engine thread admits it to the studio. The
 * engine and the caller each have a reference; the last to release one frees the ticket. */
struct engine_ticket {
    struct engine *engine;
    const struct engine_model *model; /* the model it was resolved for; NULL: any */
    struct engine_ticket *next;
    const struct resolved_request *request; /* borrowed until `done` is called */
    struct engine_callbacks callbacks;
    double submitted_s;
    bool running; /* has begun; used by the engine thread only */
    atomic_int references;
    atomic_bool cancelled;
};

const char *engine_state_name(enum engine_state state) {
    static const char *const names[] = {
        [ENGINE_LOADING] = "loading",
        [ENGINE_READY] = "ready",
        [ENGINE_FAILED] = "failed",
        [ENGINE_STOPPING] = "stopping",
    };
    return names[state];
}

bool engine_state_takes(
    enum engine_state state, const struct error *why_failed, struct error *err) {
    switch (state) {
    case ENGINE_READY:
        return true;
    case ENGINE_LOADING:
        return error_set(err, ERROR_UNAVAILABLE, "the checkpoint is still loading");
    case ENGINE_STOPPING:
        return error_set(err, ERROR_UNAVAILABLE, "the daemon is stopping");
    default:
        return error_set(err, ERROR_UNAVAILABLE, "%s: %.400s",
            why_failed->code == ERROR_DEVICE_LOST ? "the engine failed"
                                                  : "the checkpoint could not be loaded",
            why_failed->message);
    }
}

static void ticket_unref(struct engine_ticket *ticket) {
    if (atomic_fetch_sub(&ticket->references, 1) == 1)
        free(ticket);
}

/* Reads the device's figures if a caller has asked for them. Asking the driver takes time. */
static void renew_figures(struct engine *engine, const struct engine_model *model) {
    pthread_mutex_lock(&engine->lock);
    const bool wanted = engine->figures_wanted;
    engine->figures_wanted = false;
    pthread_mutex_unlock(&engine->lock);
    struct device_figures figures;
    if (!wanted || !pipeline_get_figures(model->pipeline, &figures))
        return;
    pthread_mutex_lock(&engine->lock);
    engine->figures = figures;
    engine->figures_at_s = monotonic_seconds();
    pthread_mutex_unlock(&engine->lock);
}

/* The collector of the registry of adapters (adapters_set_collector). */
static void on_adapters_left(void *user) {
    struct engine *engine = user;
    pthread_mutex_lock(&engine->lock);
    engine->adapters_left = true;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

/* Frees the memory of adapters that other threads have left to this one. */
static void collect_adapters(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    const bool left = engine->adapters_left;
    engine->adapters_left = false;
    pthread_mutex_unlock(&engine->lock);
    if (left)
        adapters_collect(engine->adapters);
}

void engine_tell(struct engine *engine) {
    pthread_cond_broadcast(&engine->changed);
    for (const struct engine_listener *l = engine->listeners; l; l = l->next)
        l->changed(l->user);
}

void engine_listen(struct engine *engine, struct engine_listener *listener) {
    pthread_mutex_lock(&engine->lock);
    listener->next = engine->listeners;
    engine->listeners = listener;
    pthread_mutex_unlock(&engine->lock);
}

void engine_unlisten(struct engine *engine, struct engine_listener *listener) {
    pthread_mutex_lock(&engine->lock);
    struct engine_listener **at = &engine->listeners;
    while (*at && *at != listener)
        at = &(*at)->next;
    if (*at)
        *at = listener->next;
    pthread_mutex_unlock(&engine->lock);
}

/* The device will not come back in this process: the engine's owner is told and exits. */
static void set_failed(struct engine *engine, const struct error *err) {
    pthread_mutex_lock(&engine->lock);
    engine->why_failed = *err;
    if (engine->state == ENGINE_READY ||
        engine->state == ENGINE_LOADING) /* LOADING during a switch */
        engine->state = ENGINE_FAILED;
    engine_tell(engine);
    pthread_mutex_unlock(&engine->lock);
}

/* --- callbacks of the studio --- */

static bool is_cancelled(void *user) {
    struct engine_ticket *ticket = user;
    return atomic_load(&ticket->cancelled) || atomic_load(&ticket->engine->cancel_all);
}

static void on_begun(void *user) {
    struct engine_ticket *ticket = user;
    ticket->running = true;
    pthread_mutex_lock(&ticket->engine->lock);
    ticket->engine->running++;
    if (!ticket->callbacks.has_queue)
        queue_share_begin(&ticket->engine->share, ticket->callbacks.caller);
    pthread_mutex_unlock(&ticket->engine->lock);
}

static void on_progress(int step, int steps, void *user) {
    struct engine_ticket *ticket = user;
    if (ticket->callbacks.progress)
        ticket->callbacks.progress(step, steps, ticket->callbacks.user);
}

static void on_preview(const struct studio_preview *preview, void *user) {
    struct engine_ticket *ticket = user;
    ticket->callbacks.preview(preview, ticket->callbacks.user);
}

/* Calls the one `done` of a request, without the lock, because the callback may submit another
 * request. */
static void on_done(struct generate_result *result, const struct error *err, void *user) {
    struct engine_ticket *ticket = user;
    struct engine *engine = ticket->engine;
    if (err && err->code == ERROR_DEVICE_LOST)
        set_failed(engine, err);
    pthread_mutex_lock(&engine->lock);
    engine->accepted--;
    engine->running -= ticket->running;
    queue_share_leave(
        &engine->share, ticket->callbacks.caller, !ticket->running && !ticket->callbacks.has_queue);
    pthread_mutex_unlock(&engine->lock);
    ticket->callbacks.done(result, err, ticket->callbacks.user);
    ticket_unref(ticket);
}

/* --- the engine thread --- */

/* Call with the lock held. Returns this model's new tickets in arrival order; stops at the first
 * ticket for another model. */
static struct engine_ticket *take_first(struct engine *engine, const struct engine_model *model) {
    struct engine_ticket *first = engine->first, **link = &engine->first, *last = NULL;
    while (*link && (!(*link)->model || (*link)->model == model)) {
        last = *link;
        link = &last->next;
    }
    if (!last)
        return NULL;
    engine->first = last->next;
    if (!engine->first)
        engine->last = NULL;
    last->next = NULL;
    return first;
}

/* If `idle`, waits until there is work. Then does what take_first does. Returns NULL if the work is
 * in the studio, in the background or for another model, or if the engine stops. */
static struct engine_ticket *take_new(
    struct engine *engine, const struct engine_model *model, bool idle) {
    pthread_mutex_lock(&engine->lock);
    while (idle && !engine->first && !engine->background_waits && engine->current == model &&
           engine->state != ENGINE_STOPPING && !engine_find_unused(engine, model)) {
        if (!engine->figures_wanted && !engine->adapters_left) {
            pthread_cond_wait(&engine->changed, &engine->lock);
            continue;
        }
        pthread_mutex_unlock(&engine->lock);
        collect_adapters(engine);
        renew_figures(engine, model);
        pthread_mutex_lock(&engine->lock);
    }
    struct engine_ticket *ticket = take_first(engine, model);
    pthread_mutex_unlock(&engine->lock);
    return ticket;
}

static void admit(struct engine_model *model, struct engine_ticket *ticket) {
    static const struct studio_hooks like = {
        .is_cancelled = is_cancelled,
        .begun = on_begun,
        .progress = on_progress,
        .done = on_done,
    };
    struct studio_hooks hooks = like;
    struct error err = { 0 };
    hooks.user = ticket;
    hooks.caller = ticket->callbacks.caller;
    if (ticket->callbacks.preview) {
        hooks.preview = on_preview;
        hooks.preview_every = ticket->callbacks.preview_every;
        hooks.preview_decodes = ticket->callbacks.preview_decodes;
    }
    if (!studio_admit(
            pipeline_studio(model->pipeline), ticket->request, &hooks, ticket->submitted_s, &err))
        on_done(NULL, &err, ticket);
}

/* Ends the queued requests because the device is lost. */
static void end_all(struct engine *engine, const struct error *err) {
    pthread_mutex_lock(&engine->lock);
    struct engine_ticket *ticket = engine->first;
    engine->first = engine->last = NULL;
    pthread_mutex_unlock(&engine->lock);
    while (ticket) {
        struct engine_ticket *next = ticket->next;
        on_done(NULL, err, ticket);
        ticket = next;
    }
}

/* Call with the lock held. */
static void let_background_wait(struct engine *engine) {
    if (!engine->background_waits)
        engine->background_waits_s = monotonic_seconds();
    engine->background_waits = true;
}

/* Returns the background if it is waiting for its next piece. If it is not, or if the engine stops,
 * `work` in the result is NULL. */
static struct engine_background waiting_background(struct engine *engine) {
    struct engine_background background = { 0 };
    pthread_mutex_lock(&engine->lock);
    if (engine->background_waits && engine->state != ENGINE_STOPPING)
        background = engine->background;
    pthread_mutex_unlock(&engine->lock);
    return background;
}

static bool work_in_background(
    struct engine *engine, const struct engine_background *background, struct error *err) {
    bool more = false;
    /* Cleared before the piece, so that a wake during the piece is not lost. */
    pthread_mutex_lock(&engine->lock);
    engine->background_waits = false;
    const bool is_there = engine->background.work;
    engine->in_background = is_there;
    pthread_mutex_unlock(&engine->lock);
    if (!is_there)
        return true;
    const bool works = background->work(&more, background->user, err);
    pthread_mutex_lock(&engine->lock);
    if (more && engine->background.work)
        let_background_wait(engine);
    engine->in_background = false;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    return works;
}

/* Waits until the device has finished its work. Only then is the work's duration known, and the
 * next unit does not wait for queued operations. Costs nothing on a device whose operations finish
 * before they return. */
static bool settle(const struct engine_model *model, struct error *err) {
    const struct kernels *kernels = model->info.kernels;
    return !kernels || kernels->memory->synchronize(err);
}

/* The state of taking turns between the background and the requests. */
struct turns {
    double owed_s; /* time that is owed to the background */
    bool had_last; /* the background did the last unit */
};

/* Does one unit of work for the requests. Does a piece of the background instead if the studio is
 * idle or time is owed to the background. */
static bool work_once(struct engine *engine, const struct engine_model *model,
    struct studio *studio, struct turns *turns, struct error *err) {
    struct adapters *adapters = engine->adapters;
    const struct engine_background background = waiting_background(engine);
    const bool idle = studio_is_idle(studio);
    const bool in_background = background.work && (idle || turns->owed_s > 0);
    const bool is_timed = background.work && background.share > 0;
    const double begun_s = monotonic_seconds();
    adapters_device_take(adapters);
    const bool works = (in_background ? work_in_background(engine, &background, err)
                                      : studio_work(studio, err)) &&
                       ((!in_background && !is_timed) || settle(model, err));
    adapters_device_give(adapters);
    const double took_s = monotonic_seconds() - begun_s;
    if (background.work && turns->had_last && !in_background)
        metric_add(METRIC_train_preempted_total, 1);
    turns->had_last = in_background;
    if (idle || !background.work)
        turns->owed_s = 0;
    else
        turns->owed_s += in_background ? -took_s
                                       : took_s * background.share / (1 - background.share);
    return works;
}

/* Whether to switch to another model once no drawing is in progress. */
static bool is_left(struct engine *engine, const struct engine_model *model) {
    pthread_mutex_lock(&engine->lock);
    const struct engine_ticket *first = engine->first;
    const bool left = engine->current != model || (first && first->model && first->model != model);
    pthread_mutex_unlock(&engine->lock);
    return left;
}

static void look_at_request(uint64_t caller, double left_s, void *user) {
    queue_share_look(user, caller, left_s);
}

/* Records the work left, so that callers can ask how long the queue takes without waiting for this
 * thread. */
static void look_at_work(struct engine *engine, const struct studio *studio) {
    pthread_mutex_lock(&engine->lock);
    queue_share_begin_look(&engine->share);
    engine->share.request_s = studio_visit_work(studio, look_at_request, &engine->share);
    pthread_mutex_unlock(&engine->lock);
}

/* Draws with this model. Returns true once the model has no more work and either the engine stops
 * or another model is wanted. Returns false if the device was lost. */
static bool draw(struct engine *engine, struct engine_model *model) {
    struct studio *studio = pipeline_studio(model->pipeline);
    struct error err = { 0 };
    struct turns turns = { 0 };
    for (;;) {
        struct engine_ticket *ticket = take_new(engine, model, studio_is_idle(studio));
        if (!ticket && studio_is_idle(studio) &&
            (is_left(engine, model) || !waiting_background(engine).work))
            return true;
        while (ticket) {
            struct engine_ticket *next = ticket->next;
            ticket->next = NULL;
            admit(model, ticket);
            ticket = next;
        }
        engine_destroy_unused(engine, model);
        collect_adapters(engine);
        renew_figures(engine, model);
        look_at_work(engine, studio);
        if (!work_once(engine, model, studio, &turns, &err)) {
            set_failed(engine, &err);
            end_all(engine, &err);
            return false;
        }
    }
}

/* Call with the lock held. Returns the model of the oldest queued request. If that request has no
 * model, or the queue is empty, returns the current model, which may be NULL. */
static struct engine_model *wanted_model(const struct engine *engine) {
    if (engine->first && engine->first->model)
        return (struct engine_model *)engine->first->model; /* owned by the engine */
    return engine->current;
}

/* Waits for a model to work with. Returns NULL if the engine stops and no queued request has a
 * model. */
static struct engine_model *next_model(struct engine *engine) {
    struct engine_model *model = NULL;
    bool stops = false;
    while (!model && !stops) {
        engine_destroy_unused(engine, NULL);
        collect_adapters(engine);
        pthread_mutex_lock(&engine->lock);
        while (!wanted_model(engine) && engine->state != ENGINE_STOPPING &&
               !engine->adapters_left && !engine_find_unused(engine, NULL))
            pthread_cond_wait(&engine->changed, &engine->lock);
        model = wanted_model(engine);
        if (engine->state == ENGINE_STOPPING && !engine->first)
            model = NULL;
        stops = engine->state == ENGINE_STOPPING && !model;
        pthread_mutex_unlock(&engine->lock);
    }
    return model;
}

static void on_opened(void *user) {
    struct engine *engine = user;
    pthread_mutex_lock(&engine->lock);
    engine->opened = true;
    engine_tell(engine);
    pthread_mutex_unlock(&engine->lock);
}

static void load(struct engine *engine) {
    struct error err = { 0 };
    struct pipeline *pipeline = NULL;
    struct engine_model *model = NULL;
    bool ok = pipeline_create(&engine->pipeline_options, &pipeline, &err) &&
              engine_model_create(engine, pipeline, engine->model_name, &model, &err);
    struct adapters *adapters = ok ? pipeline_get_adapters(pipeline) : NULL;
    if (adapters) {
        adapters_share(adapters);
        adapters_set_collector(adapters, on_adapters_left, engine);
    }
    pthread_mutex_lock(&engine->lock);
    engine->adapters = adapters;
    engine->current = model;
    engine->figures_wanted = ok;
    if (!ok)
        engine->why_failed = err;
    if (engine->state == ENGINE_LOADING)
        engine->state = ok ? ENGINE_READY : ENGINE_FAILED;
    engine_tell(engine);
    pthread_mutex_unlock(&engine->lock);
}

static void *run(void *user) {
    struct engine *engine = user;
    struct engine_model *model;
    load(engine);
    if (engine->current)
        while ((model = next_model(engine)) && draw(engine, model))
            continue;
    /* `stop` is called without the lock, because it may call engine_wake_background. */
    pthread_mutex_lock(&engine->lock);
    engine->background_ended = true;
    const struct engine_background background = engine->background;
    engine->in_background = true;
    pthread_mutex_unlock(&engine->lock);
    if (background.stop)
        background.stop(background.user);
    pthread_mutex_lock(&engine->lock);
    engine->in_background = false;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

static void engine_free(struct engine *engine) {
    pthread_mutex_destroy(&engine->lock);
    pthread_cond_destroy(&engine->changed);
    free((char *)engine->pipeline_options.model_path);
    free((char *)engine->pipeline_options.tokenizer_dir);
    free((char *)engine->pipeline_options.embeddings_dir);
    free((char *)engine->pipeline_options.adapters.folder);
    free(engine->model_name);
    free(engine->model_root);
    free(engine->switch_path);
    queue_share_finish(&engine->share);
    while (engine->kept) {
        struct kept_info *kept = engine->kept;
        engine->kept = kept->next;
        free(kept->name);
        free(kept->path);
        json_decref(kept->scheduler);
        json_decref(kept->defaults);
        free(kept);
    }
    free(engine);
}

bool engine_start_thread(struct engine *engine, pthread_t *thread, const char *name,
    void *(*start)(void *user), struct error *err) {
    /* Only the main thread handles signals, except those that a thread's own work raises. SIGBUS
     * must not be blocked: reading a weight file that was cut short (base/file_map.h) raises it,
     * and a blocked SIGBUS ends the process. Threads that kernels start inherit this mask. */
    static const int own[] = { SIGBUS, SIGSEGV, SIGFPE, SIGILL };
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = thread_start(thread, name, start, engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !failed || error_set_thread(err, failed) || error_prefix(err, "the %s thread", name);
}

bool engine_create(const struct engine_options *options, struct engine **out, struct error *err) {
    *out = NULL;
    struct engine *engine = calloc(1, sizeof(*engine));
    if (!engine)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an engine");
    pthread_mutex_init(&engine->lock, NULL);
    condition_init(&engine->changed);
    engine->queue_max = options->queue_max;
    engine->pipeline_options = options->pipeline;
    engine->pipeline_options.opened = on_opened;
    engine->pipeline_options.user = engine;
    const char *path = options->pipeline.model_path, *dir = options->pipeline.tokenizer_dir;
    const char *folder = options->pipeline.adapters.folder;
    const char *embeddings = options->pipeline.embeddings_dir;
    engine->pipeline_options.model_path = path ? strdup(path) : NULL;
    engine->pipeline_options.tokenizer_dir = dir ? strdup(dir) : NULL;
    engine->pipeline_options.adapters.folder = folder ? strdup(folder) : NULL;
    engine->pipeline_options.embeddings_dir = embeddings ? strdup(embeddings) : NULL;
    engine->model_name = options->model_name ? strdup(options->model_name) : NULL;
    engine->model_root = options->model_root ? strdup(options->model_root) : NULL;
    bool ok = !engine->model_name == !options->model_name &&
              !engine->model_root == !options->model_root &&
              (!path || engine->pipeline_options.model_path) &&
              (!dir || engine->pipeline_options.tokenizer_dir) &&
              (!embeddings || engine->pipeline_options.embeddings_dir) &&
              (!folder || engine->pipeline_options.adapters.folder);
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory for an engine");
    if (!ok || !engine_start_thread(engine, &engine->thread, "engine", run, err)) {
        engine_free(engine);
        return false;
    }
    *out = engine;
    return true;
}

void engine_destroy(struct engine *engine, bool drain) {
    if (!engine)
        return;
    pthread_mutex_lock(&engine->lock);
    engine->state = ENGINE_STOPPING;
    atomic_store(&engine->cancel_all, !drain);
    engine_tell(engine);
    pthread_mutex_unlock(&engine->lock);
    engine_end_switch(engine);
    pthread_join(engine->thread, NULL);
    if (engine->adapters)
        adapters_set_collector(engine->adapters, NULL, NULL);
    while (engine->left) {
        struct engine_model *model = engine->left;
        engine->left = model->next;
        engine_model_destroy(model);
    }
    engine_model_destroy(engine->current);
    adapters_destroy(engine->adapters);
    engine_free(engine);
}

enum engine_state engine_get_state(struct engine *engine, struct error *why_failed) {
    pthread_mutex_lock(&engine->lock);
    enum engine_state state = engine->state;
    if (why_failed)
        *why_failed = engine->why_failed;
    pthread_mutex_unlock(&engine->lock);
    return state;
}

bool engine_get_info(struct engine *engine, struct pipeline_info *out) {
    pthread_mutex_lock(&engine->lock);
    const bool loaded = engine->current;
    if (loaded)
        *out = engine->current->info;
    pthread_mutex_unlock(&engine->lock);
    return loaded;
}

struct adapters *engine_get_adapters(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    struct adapters *adapters = engine->adapters;
    pthread_mutex_unlock(&engine->lock);
    return adapters;
}

struct embedding_set *engine_take_embeddings(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    struct embedding_set *set = engine->current ? embeddings_take(pipeline_get_embeddings(
                                                      engine->current->pipeline))
                                                : NULL;
    pthread_mutex_unlock(&engine->lock);
    return set;
}

bool engine_is_opened(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    bool opened = engine->opened;
    pthread_mutex_unlock(&engine->lock);
    return opened;
}

bool engine_get_figures(struct engine *engine, struct device_figures *out, double *age_s) {
    pthread_mutex_lock(&engine->lock);
    const bool known = engine->figures_at_s > 0;
    if (known) {
        *out = engine->figures;
        *age_s = monotonic_seconds() - engine->figures_at_s;
        if (*age_s >= FIGURES_STALE_S) {
            engine->figures_wanted = true;
            pthread_cond_broadcast(&engine->changed);
        }
    }
    pthread_mutex_unlock(&engine->lock);
    return known;
}

void engine_set_background(struct engine *engine, const struct engine_background *background) {
    pthread_mutex_lock(&engine->lock);
    engine->background = *background;
    let_background_wait(engine);
    const bool ended = engine->background_ended;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    if (ended && background->stop)
        background->stop(background->user);
}

void engine_clear_background(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    engine->background = (struct engine_background){ 0 };
    engine->background_waits = false;
    while (engine->in_background)
        pthread_cond_wait(&engine->changed, &engine->lock);
    pthread_mutex_unlock(&engine->lock);
}

void engine_wake_background(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    if (engine->background.work)
        let_background_wait(engine);
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

double engine_held_up_s(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    const bool held_up = engine->background_waits && !engine->in_background && engine->accepted > 0;
    const double seconds = held_up ? monotonic_seconds() - engine->background_waits_s : 0;
    pthread_mutex_unlock(&engine->lock);
    return seconds;
}

void engine_get_queue(struct engine *engine, int *waiting, int *drawing) {
    pthread_mutex_lock(&engine->lock);
    *waiting = engine->accepted - engine->running;
    *drawing = engine->running;
    pthread_mutex_unlock(&engine->lock);
}

int engine_queue_depth(struct engine *engine) {
    int waiting, drawing;
    engine_get_queue(engine, &waiting, &drawing);
    return waiting + drawing;
}

double engine_wait_s(struct engine *engine, uint64_t caller) {
    pthread_mutex_lock(&engine->lock);
    double seconds = queue_share_wait_s(&engine->share, caller);
    if (engine->background_waits) /* the background takes its share of the time */
        seconds /= 1 - engine->background.share;
    pthread_mutex_unlock(&engine->lock);
    return seconds;
}

/* Call with the lock held. Returns true if the request is accepted, and counts it. */
static bool accept(
    struct engine *engine, const struct engine_callbacks *callbacks, struct error *err) {
    const bool waits = !callbacks->has_queue;
    return engine_state_takes(engine->state, &engine->why_failed, err) &&
           (!waits ||
               queue_share_takes(&engine->share, callbacks->caller, engine->queue_max, err)) &&
           queue_share_enter(&engine->share, callbacks->caller, waits, err);
}

/* Call with the lock held. Returns true if the request names the current model or no model. */
static bool check_model(
    const struct engine *engine, const struct generate_request *request, struct error *err) {
    const char *asked = request->model, *name = engine->current->info.model_name;
    const struct model_switch *s = &engine->switching;
    if (!asked || (name && strcmp(asked, name) == 0))
        return true;
    if ((s->state == SWITCH_LOADING || s->state == SWITCH_DRAINING) && strcmp(asked, s->name) == 0)
        return error_set(err, ERROR_UNAVAILABLE, "model: %.200s is being loaded: try again", asked);
    return error_field(err, "model", asked, "\"%.200s\", the model in use%s", name ? name : "",
        engine->model_root ? "; PUT /model switches to another one of GET /models" : "");
}

/* Returns the current model, held until engine_release_request. Returns NULL and sets the error if
 * the engine accepts no requests, or if `request` names another model; NULL: no request. */
static struct engine_model *hold_current(
    struct engine *engine, const struct generate_request *request, struct error *err) {
    pthread_mutex_lock(&engine->lock);
    struct engine_model *model = engine->current;
    if (!engine_state_takes(model ? ENGINE_READY : engine->state, &engine->why_failed, err) ||
        (model && request && !check_model(engine, request, err)))
        model = NULL;
    if (model)
        model->holds++;
    pthread_mutex_unlock(&engine->lock);
    return model;
}

bool engine_rescan_embeddings(struct engine *engine, struct error *err) {
    struct engine_model *model = hold_current(engine, NULL, err);
    if (!model)
        return false;
    const bool ok = embeddings_rescan(pipeline_get_embeddings(model->pipeline), err);
    engine_release_request(model);
    return ok;
}

bool engine_count_text(struct engine *engine, const struct generate_request *request, bool negative,
    struct text_count *out, struct error *err) {
    struct engine_model *model = hold_current(engine, NULL, err);
    if (!model)
        return false;
    const bool ok = pipeline_count_text(model->pipeline, request, negative, out, err);
    engine_release_request(model);
    return ok;
}

static bool is_current(struct engine *engine, const struct engine_model *model) {
    pthread_mutex_lock(&engine->lock);
    const bool is = engine->current == model;
    pthread_mutex_unlock(&engine->lock);
    return is;
}

bool engine_resolve(struct engine *engine, const struct generate_request *request,
    struct resolved_request *out, struct error *err) {
    for (;;) {
        struct engine_model *model = hold_current(engine, request, err);
        if (!model)
            return false;
        if (pipeline_resolve(model->pipeline, request, out, err)) {
            out->of = (struct resolved_for){ engine_release_request, model,
                model->info.model_name };
            return true;
        }
        const bool final = is_current(
            engine, model); /* else a switch may have changed the adapters */
        engine_release_request(model);
        if (final)
            return false;
    }
}

bool engine_submit(struct engine *engine, const struct resolved_request *request,
    const struct engine_callbacks *callbacks, struct engine_ticket **ticket, struct error *err) {
    struct engine_ticket *own = calloc(1, sizeof(*own));
    if (ticket)
        *ticket = NULL;
    if (!own)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a request");
    own->engine = engine;
    own->request = request;
    own->model = request->of.model;
    own->callbacks = *callbacks;
    own->submitted_s = monotonic_seconds();
    atomic_init(&own->references, ticket ? 2 : 1);
    atomic_init(&own->cancelled, false);
    pthread_mutex_lock(&engine->lock);
    bool accepted = accept(engine, callbacks, err);
    if (accepted) {
        *(engine->last ? &engine->last->next : &engine->first) = own;
        engine->last = own;
        engine->accepted++;
        /* Set before the lock is released, because from then on the engine thread may call
         * `done`. */
        if (ticket)
            *ticket = own;
        pthread_cond_broadcast(&engine->changed);
    }
    pthread_mutex_unlock(&engine->lock);
    if (!accepted)
        free(own);
    return accepted;
}

void engine_cancel(struct engine *engine, struct engine_ticket *ticket) {
    (void)engine;
    atomic_store(&ticket->cancelled, true);
}

void engine_ticket_release(struct engine_ticket *ticket) {
    if (ticket)
        ticket_unref(ticket);
}
