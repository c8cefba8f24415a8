#include "engine/loop/switch.h"

#include "base/log.h"
#include "base/monotonic.h"
#include "engine/loop/engine_internal.h"
#include "engine/loop/model_folder.h"
#include "kernels/team.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *switch_state_name(enum switch_state state) {
    static const char *const names[] = {
        [SWITCH_NONE] = "none",
        [SWITCH_CHECKING] = "checking",
        [SWITCH_DRAINING] = "draining",
        [SWITCH_LOADING] = "loading",
        [SWITCH_DONE] = "done",
        [SWITCH_FAILED] = "failed",
    };
    return names[state];
}

static bool is_under_way(const struct model_switch *s) {
    return s->state == SWITCH_CHECKING || s->state == SWITCH_DRAINING || s->state == SWITCH_LOADING;
}

void engine_get_switch(struct engine *engine, struct model_switch *out) {
    pthread_mutex_lock(&engine->lock);
    *out = engine->switching;
    pthread_mutex_unlock(&engine->lock);
}

/* --- loaded models --- */

static bool same_text(const char *a, const char *b) {
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* Call with the lock held. Returns a copy of the data that `info` points to. The copy lives as long
 * as the engine; equal infos share one copy. NULL if there is no memory. */
static struct kept_info *keep_info(struct engine *engine, const struct pipeline_info *info) {
    struct kept_info *kept = engine->kept;
    while (kept &&
           (!same_text(kept->name, info->model_name) || !same_text(kept->path, info->model_path) ||
               !json_equal(kept->scheduler, (json_t *)info->scheduler_json) ||
               !json_equal(kept->defaults, (json_t *)info->defaults)))
        kept = kept->next;
    if (kept)
        return kept;
    kept = calloc(1, sizeof(*kept));
    if (!kept)
        return NULL;
    kept->name = info->model_name ? strdup(info->model_name) : NULL;
    kept->path = info->model_path ? strdup(info->model_path) : NULL;
    kept->scheduler = info->scheduler_json ? json_deep_copy(info->scheduler_json) : NULL;
    kept->defaults = info->defaults ? json_deep_copy(info->defaults) : NULL;
    if (!kept->name == !info->model_name && !kept->path == !info->model_path &&
        !kept->scheduler == !info->scheduler_json && !kept->defaults == !info->defaults) {
        kept->next = engine->kept;
        engine->kept = kept;
        return kept;
    }
    free(kept->name);
    free(kept->path);
    json_decref(kept->scheduler);
    json_decref(kept->defaults);
    free(kept);
    return NULL;
}

bool engine_model_create(struct engine *engine, struct pipeline *pipeline, const char *name,
    struct engine_model **out, struct error *err) {
    struct engine_model *model = calloc(1, sizeof(*model));
    const struct kept_info *kept = NULL;
    if (model) {
        *model = (struct engine_model){ .engine = engine, .pipeline = pipeline };
        pipeline_get_info(pipeline, &model->info);
        model->info.model_name = name;
        pthread_mutex_lock(&engine->lock);
        kept = keep_info(engine, &model->info);
        pthread_mutex_unlock(&engine->lock);
    }
    if (!kept) {
        free(model);
        pipeline_destroy(pipeline);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a checkpoint's description");
    }
    model->info.model_name = kept->name;
    model->info.model_path = kept->path;
    model->info.scheduler_json = kept->scheduler;
    model->info.defaults = kept->defaults;
    *out = model;
    return true;
}

void engine_model_destroy(struct engine_model *model) {
    if (!model)
        return;
    pipeline_destroy(model->pipeline);
    free(model);
}

void engine_set_current(struct engine *engine, struct engine_model *model) {
    if (engine->current) {
        engine->current->next = engine->left;
        engine->left = engine->current;
    }
    engine->current = model;
    engine_tell(engine);
}

struct engine_model *engine_find_unused(
    const struct engine *engine, const struct engine_model *drawing) {
    for (struct engine_model *model = engine->left; model; model = model->next)
        if (model->holds == 0 && model != drawing)
            return model;
    return NULL;
}

void engine_destroy_unused(struct engine *engine, const struct engine_model *drawing) {
    for (;;) {
        pthread_mutex_lock(&engine->lock);
        struct engine_model *model = engine_find_unused(engine, drawing);
        pthread_mutex_unlock(&engine->lock);
        if (!model)
            return;
        const char *name = model->info.model_name;
        adapters_device_take(engine->adapters);
        pipeline_destroy(model->pipeline);
        adapters_device_give(engine->adapters);
        malloc_trim(0);
        log_info("the model %s is unloaded", name ? name : "before");
        pthread_mutex_lock(&engine->lock);
        struct engine_model **link = &engine->left;
        while (*link != model)
            link = &(*link)->next;
        *link = model->next;
        pthread_cond_broadcast(&engine->changed);
        pthread_mutex_unlock(&engine->lock);
        free(model);
    }
}

static void let_go(struct engine_model *model, int jobs) {
    struct engine *engine = model->engine;
    pthread_mutex_lock(&engine->lock);
    model->jobs -= jobs;
    if (--model->holds == 0 && model != engine->current)
        pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

void engine_release_request(void *model) {
    let_go(model, 0);
}

/* Call with the lock held. Returns the current model if it may be held; NULL if there is none or a
 * switch is about to unload it. */
static struct engine_model *find_staying(const struct engine *engine) {
    const bool goes = engine->takes_no_orders && engine->switching.unloads_first;
    return engine->state == ENGINE_READY && !goes ? engine->current : NULL;
}

bool engine_has_model(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    const bool has = find_staying(engine);
    pthread_mutex_unlock(&engine->lock);
    return has;
}

struct engine_model *engine_hold_model(
    struct engine *engine, const char *holder, struct pipeline_info *info, struct error *err) {
    pthread_mutex_lock(&engine->lock);
    struct engine_model *model = find_staying(engine);
    if (model) {
        model->holds++;
        model->jobs++;
        snprintf(model->holder, sizeof(model->holder), "%s", holder);
        *info = model->info;
    }
    pthread_mutex_unlock(&engine->lock);
    if (!model)
        error_set(err, ERROR_UNAVAILABLE, "no checkpoint is loaded, or it is about to be unloaded");
    return model;
}

void engine_let_go_model(struct engine_model *model) {
    if (model)
        let_go(model, 1);
}

/* --- orders --- */

void engine_set_orders(struct engine *engine, const struct engine_orders *orders) {
    pthread_mutex_lock(&engine->lock);
    engine->orders = *orders;
    pthread_mutex_unlock(&engine->lock);
}

static bool no_more_orders(void *user, int *count, struct error *err) {
    (void)user, (void)count;
    return error_set(err, ERROR_UNAVAILABLE, "the daemon is stopping");
}

void engine_clear_orders(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    engine->orders = (struct engine_orders){ .count = no_more_orders };
    engine->orders_changed = true;
    pthread_cond_broadcast(&engine->changed);
    while (engine->counts_orders)
        pthread_cond_wait(&engine->changed, &engine->lock);
    pthread_mutex_unlock(&engine->lock);
}

bool engine_begin_order(struct engine *engine, struct error *err) {
    pthread_mutex_lock(&engine->lock);
    const bool ok = !engine->takes_no_orders ||
                    error_set(err, ERROR_UNAVAILABLE,
                        "the switch to %.200s waits for the jobs that were accepted before it: try "
                        "again when it is over",
                        engine->switching.name);
    engine->orders_begun += ok;
    pthread_mutex_unlock(&engine->lock);
    return ok;
}

void engine_end_order(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    engine->orders_begun--;
    pthread_mutex_unlock(&engine->lock);
    engine_orders_changed(engine);
}

void engine_orders_changed(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    engine->orders_changed = true;
    if (engine->takes_no_orders)
        pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

static void set_takes_no_orders(struct engine *engine, bool takes_none) {
    pthread_mutex_lock(&engine->lock);
    engine->takes_no_orders = takes_none;
    pthread_mutex_unlock(&engine->lock);
}

/* Counts the orders that are left, and reports the number in the state of the switch. After
 * takes_no_orders was set, the number cannot rise. */
static bool count_orders(struct engine *engine, int *left, struct error *err) {
    pthread_mutex_lock(&engine->lock);
    const struct engine_orders orders = engine->orders;
    const int begun = engine->orders_begun;
    engine->counts_orders = true;
    engine->orders_changed = false;
    pthread_mutex_unlock(&engine->lock);
    int count = 0;
    const bool ok = !orders.count || orders.count(orders.user, &count, err);
    pthread_mutex_lock(&engine->lock);
    engine->counts_orders = false;
    engine->switching.waits_for = *left = count + begun;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    return ok;
}

/* --- the switch, on its own thread --- */

static bool is_stopping(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    const bool stopping = engine->state == ENGINE_STOPPING || engine->state == ENGINE_FAILED;
    pthread_mutex_unlock(&engine->lock);
    return stopping;
}

/* Gives the engine thread the device between two tensors. Returns false, to stop loading, if the
 * engine stops. */
static bool on_loading(double fraction, void *user) {
    struct engine *engine = user;
    adapters_device_give(engine->adapters);
    pthread_mutex_lock(&engine->lock);
    engine->switching.progress = fraction;
    pthread_mutex_unlock(&engine->lock);
    adapters_device_take(engine->adapters);
    return !is_stopping(engine);
}

static struct pipeline_options options_for(
    struct engine *engine, const char *path, const struct kernels *kernels) {
    struct pipeline_options options = engine->pipeline_options;
    options.model_path = path;
    options.registry = engine->adapters;
    options.kernels = kernels;
    options.opened = NULL;
    options.loading = on_loading;
    options.user = engine;
    return options;
}

static bool load(struct engine *engine, const char *name, const char *path,
    const struct kernels *kernels, struct engine_model **out, struct error *err) {
    const struct pipeline_options options = options_for(engine, path, kernels);
    struct pipeline *pipeline;
    adapters_device_take(engine->adapters);
    const bool ok = pipeline_create(&options, &pipeline, err) &&
                    engine_model_create(engine, pipeline, name, out, err);
    adapters_device_give(engine->adapters);
    return ok;
}

struct turning {
    struct engine *engine;
    struct engine_model *model; /* NULL: none */
};

/* Makes the new model current: from here on, requests are resolved for it. */
static void on_turn(void *user) {
    const struct turning *t = user;
    struct engine *engine = t->engine;
    pthread_mutex_lock(&engine->lock);
    engine_set_current(engine, t->model);
    engine->figures_wanted = t->model;
    if (engine->state == ENGINE_READY || engine->state == ENGINE_LOADING)
        engine->state = t->model ? ENGINE_READY : ENGINE_LOADING;
    pthread_mutex_unlock(&engine->lock);
}

static void on_turned_away(uint64_t base_id, void *user) {
    (void)base_id;
    on_turn(user);
}

static void turn_to(struct engine *engine, struct engine_model *model) {
    struct turning t = { engine, model };
    if (!engine->adapters)
        on_turn(&t);
    else if (model)
        pipeline_take_adapters(model->pipeline, on_turn, &t);
    else
        adapters_rebase(engine->adapters, NULL, on_turned_away, &t);
}

/* Call with the lock held. Whether the model is still in engine.left, so not yet destroyed. */
static bool is_left(const struct engine *engine, const struct engine_model *model) {
    const struct engine_model *left = engine->left;
    while (left && left != model)
        left = left->next;
    return left;
}

static bool engine_ended(struct error *err) {
    return error_set(err, ERROR_CANCELLED, "the daemon is stopping, or its engine failed");
}

/* Waits for the end of orders; false if the engine stops or fails. */
static bool wait_for_orders(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    engine->switching.state = SWITCH_DRAINING;
    while (engine->state == ENGINE_READY && !engine->orders_changed)
        pthread_cond_wait(&engine->changed, &engine->lock);
    const bool ok = engine->state == ENGINE_READY;
    pthread_mutex_unlock(&engine->lock);
    return ok;
}

/* Stops accepting orders and waits until those already accepted are finished. The checkpoint stays
 * current meanwhile. */
static bool finish_orders(struct engine *engine, struct error *err) {
    int left;
    set_takes_no_orders(engine, true);
    while (count_orders(engine, &left, err)) {
        if (left == 0)
            return true;
        if (!wait_for_orders(engine))
            return engine_ended(err);
    }
    return false;
}

/* Stops accepting requests and waits until the old model has finished its last request and is
 * destroyed. Returns false if the engine stops or fails. */
static bool unload(struct engine *engine, const struct engine_model *old, struct error *err) {
    turn_to(engine, NULL);
    pthread_mutex_lock(&engine->lock);
    while (is_left(engine, old) && engine->state == ENGINE_LOADING)
        pthread_cond_wait(&engine->changed, &engine->lock);
    engine->switching.state = SWITCH_LOADING;
    const bool ok = engine->state == ENGINE_LOADING;
    pthread_mutex_unlock(&engine->lock);
    return ok || engine_ended(err);
}

/* Hands the new model to the engine thread to be destroyed, because the switch failed. */
static void leave(struct engine *engine, struct engine_model *model) {
    if (!model)
        return;
    pthread_mutex_lock(&engine->lock);
    model->next = engine->left;
    engine->left = model;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

/* Loads the old checkpoint again after the new one failed to load. If that fails too, the engine
 * fails. */
static void load_again(struct engine *engine, const struct pipeline_info *before) {
    struct engine_model *model;
    struct error why = { 0 };
    log_info("loading %s again", before->model_path);
    if (load(engine, before->model_name, before->model_path, before->kernels, &model, &why)) {
        turn_to(engine, model);
        return;
    }
    pthread_mutex_lock(&engine->lock);
    engine->why_failed = why;
    if (engine->state == ENGINE_LOADING)
        engine->state = ENGINE_FAILED;
    engine_tell(engine);
    pthread_mutex_unlock(&engine->lock);
}

/* Ends a switch and calls `done` of all its waiters. */
static void conclude(struct engine *engine, const struct error *err) {
    pthread_mutex_lock(&engine->lock);
    struct model_switch *s = &engine->switching;
    s->state = err ? SWITCH_FAILED : SWITCH_DONE;
    engine->takes_no_orders = false;
    s->took_s = monotonic_seconds() - engine->switch_begun_s;
    if (err)
        s->error = *err;
    else
        s->progress = 1;
    struct switch_waiter *waiters = engine->waiters;
    engine->waiters = NULL;
    const struct model_switch said = *s;
    engine_tell(engine);
    pthread_mutex_unlock(&engine->lock);
    if (err)
        log_warning("the model %s could not be loaded: %s", said.name, err->message);
    else
        log_info("drawing with %s, %.1f s after the switch was requested", said.name, said.took_s);
    while (waiters) {
        struct switch_waiter *waiter = waiters;
        waiters = waiter->next;
        waiter->done(err, waiter->user);
        free(waiter);
    }
}

static void *run(void *user) {
    struct engine *engine = user;
    pthread_mutex_lock(&engine->lock);
    const struct model_switch asked = engine->switching;
    const struct engine_model *old = engine->current;
    const struct pipeline_info before = old->info;
    const bool takes_requests = engine->state == ENGINE_READY;
    pthread_mutex_unlock(&engine->lock);
    struct engine_model *model = NULL;
    struct error err = { 0 };
    const bool alone = asked.unloads_first;
    const bool goes = !alone || ((!takes_requests || finish_orders(engine, &err)) &&
                                    unload(engine, old, &err));
    /* If the engine thread draws during loading, this thread computes alone, to leave the
     * processors to it. */
    if (!alone || !team_start(NULL))
        (void)team_leave();
    const bool ok = goes &&
                    load(engine, asked.name, engine->switch_path, before.kernels, &model, &err) &&
                    (alone || finish_orders(engine, &err));
    if (ok)
        turn_to(engine, model);
    else
        leave(engine, model);
    if (!ok && alone && goes && !is_stopping(engine))
        load_again(engine, &before);
    conclude(engine, ok ? NULL : &err);
    return NULL;
}

void engine_end_switch(struct engine *engine) {
    if (engine->has_switch_thread)
        pthread_join(engine->switch_thread, NULL);
    engine->has_switch_thread = false;
}

/* --- asking for a switch --- */

/* Call with the lock held. Adds a waiter to the switch in progress. */
static bool add_waiter(struct engine *engine, void (*done)(const struct error *err, void *user),
    void *user, struct error *err) {
    struct switch_waiter *waiter = done ? calloc(1, sizeof(*waiter)) : NULL;
    if (!waiter)
        return !done || error_set(err, ERROR_NO_MEMORY, "no memory to wait for a checkpoint");
    *waiter = (struct switch_waiter){ engine->waiters, done, user };
    engine->waiters = waiter;
    return true;
}

enum entry { ENTRY_REFUSED, ENTRY_DONE, ENTRY_JOINED, ENTRY_NEW };

/* Call with the lock held. Decides whether to begin a new switch, join the one in progress, refuse,
 * or do nothing. */
static enum entry enter(struct engine *engine, const char *name, struct error *err) {
    struct model_switch *s = &engine->switching;
    if (is_under_way(s) && s->state != SWITCH_CHECKING && strcmp(s->name, name) == 0)
        return ENTRY_JOINED;
    if (is_under_way(s)) {
        error_set(
            err, ERROR_CONFLICT, "the switch to %s is under way: wait until it is over", s->name);
        return ENTRY_REFUSED;
    }
    if (!engine_state_takes(engine->state, &engine->why_failed, err))
        return ENTRY_REFUSED;
    const char *current = engine->current->info.model_name;
    if (current && strcmp(current, name) == 0)
        return ENTRY_DONE;
    *s = (struct model_switch){ .state = SWITCH_CHECKING };
    snprintf(s->name, sizeof(s->name), "%s", name);
    engine->switch_begun_s = monotonic_seconds();
    return ENTRY_NEW;
}

/* Call with the lock held. Decides whether the old model must be unloaded first. It must if the new
 * model needs more memory than is available. Fails if the new model does not fit even then, or if a
 * job needs the old one. */
static bool decide(struct engine *engine, const struct pipeline_size *size,
    const struct available *left, struct error *err) {
    const struct engine_model *current = engine->current;
    struct model_switch *s = &engine->switching;
    const uint64_t needed = size->weights + size->activations;
    const uint64_t old = (uint64_t)(current->info.weight_bytes + current->info.activation_bytes);
    s->needed_bytes = needed;
    s->available_bytes = left->bytes;
    s->unloads_first = needed > left->bytes;
    if (!s->unloads_first)
        return true;
    if (needed - left->bytes > old)
        return error_set(err, ERROR_NO_MEMORY,
            "%s takes %llu MiB, and %zu MiB are available, or %llu MiB without the model in "
            "use%s%s",
            s->name, (unsigned long long)(needed >> 20), left->bytes >> 20,
            (unsigned long long)((left->bytes + old) >> 20), *left->why ? ": " : "", left->why);
    return current->jobs == 0 ||
           error_set(err, ERROR_CONFLICT,
               "%s takes %llu MiB and %zu MiB are available, so the model in use would have to be "
               "unloaded first, but it is needed by %s: wait until that has ended, or cancel it",
               s->name, (unsigned long long)(needed >> 20), left->bytes >> 20, current->holder);
}

/* Reads the headers of the checkpoint's files, which may take a while. The caller owns *path, even
 * on failure. */
static bool look(struct engine *engine, const char *name, const struct pipeline_info *current,
    char **path, struct pipeline_size *size, struct error *err) {
    *path = NULL;
    if (!engine_model_path(engine, name, path, err))
        return false;
    const struct pipeline_options options = options_for(engine, *path, current->kernels);
    return pipeline_weigh(&options, current, size, err);
}

/* Takes over `path`. If the old model will be unloaded first, it cannot be held any more from here
 * on. */
static bool prepare(struct engine *engine, char *path, const struct pipeline_size *size,
    const struct available *left, struct error *err) {
    pthread_mutex_lock(&engine->lock);
    const bool ok = engine_state_takes(engine->state, &engine->why_failed, err) &&
                    decide(engine, size, left, err);
    free(engine->switch_path);
    engine->switch_path = path;
    engine->takes_no_orders = ok && engine->switching.unloads_first;
    pthread_mutex_unlock(&engine->lock);
    return ok;
}

/* Starts the switch's thread and sets the state under one lock, so that the state always tells that
 * the thread runs. The next caller that asks for the same model joins the switch. If the old model
 * is unloaded first and there are no orders to wait for, requests are refused from here on. */
static bool begin(
    struct engine *engine, int orders_left, struct model_switch *out, struct error *err) {
    pthread_mutex_lock(&engine->lock);
    struct model_switch *s = &engine->switching;
    const bool ok = engine_state_takes(engine->state, &engine->why_failed, err) &&
                    engine_start_thread(engine, &engine->switch_thread, "switch", run, err);
    engine->has_switch_thread = ok;
    if (ok)
        s->state = s->unloads_first ? SWITCH_DRAINING : SWITCH_LOADING;
    if (ok && s->unloads_first && orders_left == 0)
        engine->state = ENGINE_LOADING;
    *out = *s;
    pthread_mutex_unlock(&engine->lock);
    return ok;
}

/* Does the part of a switch that runs on the calling thread. */
static bool set_out(struct engine *engine, const char *name, const struct pipeline_info *current,
    struct model_switch *out, struct error *err) {
    struct pipeline_size size;
    struct available left;
    char *path;
    int orders_left;
    engine_end_switch(engine); /* joins the thread of the previous switch */
    if (!look(engine, name, current, &path, &size, err)) {
        free(path);
        return false;
    }
    current->kernels->memory->available(&left);
    return prepare(engine, path, &size, &left, err) && count_orders(engine, &orders_left, err) &&
           begin(engine, orders_left, out, err);
}

bool engine_switch(struct engine *engine, const char *name,
    void (*done)(const struct error *err, void *user), void *user, struct model_switch *out,
    struct error *err) {
    struct error why = { 0 };
    struct pipeline_info current = { 0 };
    struct model_switch said = { 0 };
    pthread_mutex_lock(&engine->lock);
    const enum entry entry = enter(engine, name, err);
    bool ok = entry != ENTRY_REFUSED;
    if (entry == ENTRY_JOINED || entry == ENTRY_NEW) {
        ok = add_waiter(engine, done, user, err);
        if (!ok && entry == ENTRY_NEW)
            engine->switching.state = SWITCH_NONE;
    }
    if (engine->current)
        current = engine->current->info;
    said = engine->switching;
    if (entry == ENTRY_DONE)
        said = (struct model_switch){ .state = SWITCH_DONE, .progress = 1 };
    pthread_mutex_unlock(&engine->lock);
    if (ok && entry == ENTRY_NEW)
        ok = set_out(engine, name, &current, &said, &why);
    if (ok && out)
        *out = said;
    if (ok || entry != ENTRY_NEW)
        return ok;
    pthread_mutex_lock(&engine->lock);
    engine->switching.state = SWITCH_FAILED;
    engine->switching.error = why;
    engine->takes_no_orders = false;
    free(engine->waiters); /* the caller is the only waiter and gets the error here */
    engine->waiters = NULL;
    engine_tell(engine);
    pthread_mutex_unlock(&engine->lock);
    if (err && why.code != ERROR_NONE)
        *err = why;
    return false;
}

/* --- the list of models --- */

/* Whether the daemon was started with a checkpoint of this name. That checkpoint keeps the name
 * even if another one below the root has the same. */
static bool is_first(const struct engine *engine, const char *name) {
    return engine->model_name && strcmp(engine->model_name, name) == 0;
}

bool engine_has_models(const struct engine *engine) {
    return engine->model_root;
}

bool engine_model_path(struct engine *engine, const char *name, char **path, struct error *err) {
    if (is_first(engine, name)) {
        *path = strdup(engine->pipeline_options.model_path);
        return *path || error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    }
    if (!engine->model_root)
        return error_set(err, ERROR_NOT_FOUND,
            "there is no model \"%.200s\": this daemon was started without --model-root", name);
    return model_folder_find(engine->model_root, name, path, err);
}

static bool add_entry(struct engine_models *out, const struct model_file *file, struct error *err) {
    struct engine_model_entry *entry = &out->items[out->count];
    *entry = (struct engine_model_entry){ .name = strdup(file->name),
        .path = strdup(file->path),
        .is_folder = file->is_folder,
        .leads_out = file->leads_out,
        .bytes = file->bytes,
        .current = strcmp(file->name, out->current) == 0 };
    out->count++;
    return (entry->name && entry->path) ||
           error_set(err, ERROR_NO_MEMORY, "no memory for the list of models");
}

bool engine_models(struct engine *engine, struct engine_models *out, struct error *err) {
    struct model_files files = { 0 };
    *out = (struct engine_models){ .has_root = engine->model_root };
    pthread_mutex_lock(&engine->lock);
    const char *current = engine->current ? engine->current->info.model_name : NULL;
    snprintf(out->current, sizeof(out->current), "%s", current ? current : "");
    out->last = engine->switching;
    pthread_mutex_unlock(&engine->lock);
    if (engine->model_root && !model_files_list(engine->model_root, &files, err))
        return false;
    out->items = calloc(files.count + 1, sizeof(*out->items));
    bool ok = out->items || error_set(err, ERROR_NO_MEMORY, "no memory for the list of models");
    if (ok && engine->model_name && !model_files_find(&files, engine->model_name)) {
        char *path = (char *)engine->pipeline_options.model_path; /* only read */
        struct model_file first = { .name = engine->model_name, .path = path };
        model_folder_measure(path, &first.is_folder, &first.bytes);
        ok = add_entry(out, &first, err);
    }
    for (size_t i = 0; ok && i < files.count; i++)
        ok = add_entry(out, &files.items[i], err);
    model_files_finish(&files);
    if (!ok)
        engine_models_finish(out);
    return ok;
}

void engine_models_finish(struct engine_models *models) {
    for (size_t i = 0; i < models->count; i++) {
        free(models->items[i].name);
        free(models->items[i].path);
    }
    free(models->items);
    *models = (struct engine_models){ 0 };
}
