/* The claim of a training job is passed between two threads. start() gives it to this file's own
 * thread, which reads the job's description and data set, loads its models and hands it to the
 * engine's background. The background works on the job until the job is done or is to stop. Then
 * this file's thread gets the claim back to register the finished adapter, because loading an
 * adapter may wait for the engine. `stage` tells which thread has the claim; that thread may use
 * `job`, `config` and `result` without the lock. */
#include "engine/loop/training.h"

#include "base/file.h"
#include "base/log.h"
#include "base/text/json.h"
#include "base/thread.h"
#include "engine/loop/checkpoint_names.h"
#include "engine/loop/switch.h"
#include "engine/training_job/folder.h"
#include "engine/training_job/training_job.h"
#include "engine/training_job/validation.h"
#include "kernels/team.h"
#include "train/data/scan.h"
#include "train/examples/cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum stage { STAGE_FREE, STAGE_TO_OPEN, STAGE_TO_WORK, STAGE_TO_PUBLISH };

struct training {
    struct training_options options;
    pthread_t thread;
    bool has_thread;
    struct engine_listener listener;
    struct train_config config; /* the configuration of `job` */
    struct training_job *job;
    struct engine_model *model; /* held while `job` uses it; NULL: the job has its own model */
    char *result;               /* owned: path of the finished adapter file or model folder */

    pthread_mutex_t lock; /* guards the following members */
    pthread_cond_t changed;
    enum stage stage;
    struct job_claim *claim; /* valid unless STAGE_FREE */
    bool ending, engine_ended;
    bool has_news;   /* the engine or the job's wish has changed */
    bool cache_grew; /* a job has ended, here or before the daemon started */
    /* Owned, or NULL: the folder of a job with new checkpoints, and that of a job with new
     * validation pictures. */
    char *changed_folder, *validated_folder;
};

/* --- requests --- */

static bool parse(const char *text, size_t size, struct train_config *out, struct error *err) {
    json_t *json = json_parse(text, size, err);
    const bool ok = json && train_config_parse(json, out, err);
    json_decref(json);
    return ok;
}

/* Checks that a folder exists and lies inside the dataset root, with all links resolved. */
static bool leads_below(const struct training *t, const char *field, const char *name,
    const char *path, struct error *err) {
    struct scan_folder folder;
    const bool is_inside = scan_folder_init(&folder, path, t->options.dataset_root, NULL);
    scan_folder_finish(&folder);
    if (is_inside)
        return true;
    return error_field(err, field, name,
        file_is_folder(path)
            ? "a folder under the daemon's --dataset-root, not a link that leads out of it"
            : "a folder that is there, under the daemon's --dataset-root: GET /datasets");
}

/* Makes the path of a folder under --dataset-root, and refuses any other name. */
static bool path_below(const struct training *t, const char *field, const char *name, bool is_there,
    char **out, struct error *err) {
    *out = NULL;
    if (!*name || *name == '/' || strstr(name, ".."))
        return error_field(err, field, name, "a folder under the daemon's --dataset-root");
    *out = file_join(t->options.dataset_root, name);
    if (!*out)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    if ((!is_there && !file_is_folder(*out)) || leads_below(t, field, name, *out, err))
        return true;
    free(*out);
    *out = NULL;
    return false;
}

static bool dataset_path(
    const struct training *t, const struct train_config *c, char **out, struct error *err) {
    return path_below(t, "dataset", c->dataset, true, out, err);
}

/* *out is NULL if the class pictures go into the job's own folder. */
static bool class_path(
    const struct training *t, const struct train_config *c, char **out, struct error *err) {
    *out = NULL;
    return !c->class_data_dir ||
           path_below(t, "class_data_dir", c->class_data_dir, false, out, err);
}

/* Whether no adapter has the job's name: a job must not replace an adapter that may be in use. */
static bool name_is_free(
    const struct training *t, const struct train_config *c, struct error *err) {
    struct adapters *adapters = engine_get_adapters(t->options.engine);
    struct adapter_info info;
    if (c->method != TRAIN_LORA || !adapters)
        return true;
    if (!adapters_describe(adapters, c->name, &info, NULL))
        return adapters_may_add(adapters, "name", c->name, err);
    adapter_info_finish(&info);
    error_field(err, "name", c->name,
        "a name that no adapter has yet (DELETE /loras/%s makes this one free)", c->name);
    if (err)
        err->code = ERROR_CONFLICT;
    return false;
}

/* Refuses any checkpoint except "latest": the folder of a new job has no checkpoints. An
 * interrupted job resumes from its latest one. */
static bool resumes_from_latest(const struct train_config *c, struct error *err) {
    const char *from = c->resume_from_checkpoint;
    return !from || strcmp(from, "latest") == 0 ||
           error_field(err, "resume_from_checkpoint", from,
               "\"latest\": the folder of a new job has no checkpoints; `latentd train --out` goes "
               "on from any of a folder's");
}

/* Whether the job trains a checkpoint that is not the current one. */
static bool trains_another(const struct train_config *c, const struct pipeline_info *drawn_with) {
    return c->model && (!drawn_with->model_name || strcmp(c->model, drawn_with->model_name) != 0);
}

static bool suits_another(const struct training *t, const struct train_config *c,
    const char *class_folder, struct error *err) {
    char *path = NULL;
    struct error why = { 0 };
    const bool known = engine_model_path(t->options.engine, c->model, &path, &why);
    const bool ok = known ? training_job_is_possible(c, t->options.defaults, path,
                                t->options.tokenizer_dir, class_folder, t->options.folder, err)
                          : error_field(err, "model", c->model, "%s", why.message);
    free(path);
    return ok;
}

static bool suits_checkpoint(const struct training *t, const struct train_config *c,
    const char *class_folder, struct error *err) {
    struct pipeline_info info;
    if (!engine_get_info(t->options.engine, &info))
        return error_set(err, ERROR_UNAVAILABLE, "the checkpoint is still loading");
    return train_config_fits_device(
               c, info.kernels->weight_dtypes, info.kernels->device, info.device, err) &&
           (trains_another(c, &info)
                   ? suits_another(t, c, class_folder, err)
                   : training_job_is_possible(c, t->options.defaults, info.model_path,
                         t->options.tokenizer_dir, class_folder, t->options.folder, err));
}

static bool fits(const struct training *t, const struct train_config *c, struct error *err) {
    char *path = NULL, *class_folder = NULL;
    const bool ok = adapter_name_check("name", c->name, err) && resumes_from_latest(c, err) &&
                    class_path(t, c, &class_folder, err) &&
                    suits_checkpoint(t, c, class_folder, err) && dataset_path(t, c, &path, err) &&
                    name_is_free(t, c, err) &&
                    training_job_look_at_datasets(
                        c, path, class_folder, t->options.dataset_root, err);
    free(path);
    free(class_folder);
    return ok;
}

static bool check(void *user, const char *request, struct error *err) {
    struct train_config config = { 0 };
    const bool ok = parse(request, strlen(request), &config, err) && fits(user, &config, err);
    train_config_finish(&config);
    return ok;
}

/* --- a claim --- */

static void start(void *user, struct job_claim *claim) {
    struct training *t = user;
    pthread_mutex_lock(&t->lock);
    t->claim = claim;
    t->stage = STAGE_TO_OPEN;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static void note_news(void *user) {
    struct training *t = user;
    pthread_mutex_lock(&t->lock);
    t->has_news = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static void wake(void *user) {
    struct training *t = user;
    note_news(t);
    engine_wake_background(t->options.engine);
}

/* Closes the job while holding the device. In the background, this thread already holds it and
 * takes it a second time. */
static void close_job(struct training *t) {
    struct adapters *adapters = engine_get_adapters(t->options.engine);
    adapters_device_take(adapters);
    training_job_close(t->job);
    adapters_device_give(adapters);
    t->job = NULL;
    engine_let_go_model(t->model);
    t->model = NULL;
}

/* Frees the job and returns its claim. Call it on the thread that has the claim, before the claim
 * is given back: after that, the next job may start at once. */
static struct job_claim *let_go(struct training *t) {
    close_job(t);
    train_config_finish(&t->config);
    t->config = (struct train_config){ 0 };
    free(t->result);
    t->result = NULL;
    pthread_mutex_lock(&t->lock);
    struct job_claim *claim = t->claim;
    t->claim = NULL;
    t->stage = STAGE_FREE;
    t->cache_grew = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return claim;
}

/* Takes the reference; malloc'd, or NULL without memory. */
static char *text_of(json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(json);
    return text;
}

/* Reports an event of the job. Takes over the reference to `json`. Drops the event if the
 * dispatcher has no room for it. */
static void say(struct training *t, const char *type, json_t *json) {
    char *text = text_of(json);
    if (text && !job_claim_event(t->claim, type, text))
        log_warning("job %s: no room for an event of type %s", job_claim_job(t->claim)->id, type);
    free(text);
}

static void on_stepped(void *user, const struct train_record *record, int64_t steps) {
    struct training *t = user;
    char *text = text_of(train_record_to_json(record));
    const struct job_report report = {
        .step = record->step, .steps = steps, .eta_s = record->eta_s, .metrics = text
    };
    job_claim_report(t->claim, &report);
    free(text);
}

/* The next two functions pass a folder to the other thread, and take a folder that was passed. */
static void pass_on(struct training *t, char **to, char *folder) {
    pthread_mutex_lock(&t->lock);
    free(*to);
    *to = folder;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static char *take(struct training *t, char **from) {
    pthread_mutex_lock(&t->lock);
    char *folder = *from;
    *from = NULL;
    pthread_mutex_unlock(&t->lock);
    return folder;
}

/* Called after a checkpoint was written. This file's thread registers its name. */
static void on_kept(void *user, int64_t step) {
    struct training *t = user;
    pass_on(t, &t->changed_folder, job_folder_path(t->options.folder, job_claim_job(t->claim)->id));
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    const bool is_lora = t->config.method == TRAIN_LORA;
    json_t *json = json_pack("{s:I, s:s?}", "step", (json_int_t)step, "adapter",
        is_lora && job_folder_checkpoint_name(t->config.name, step, name) ? name : NULL);
    say(t, "checkpoint", json);
}

static void on_warned(void *user, const char *text) {
    say(user, "warning", json_pack("{s:o}", "message", json_lenient_string(text)));
}

/* Reports the validation's pictures. This file's thread draws the grid. */
static void on_validated(void *user, int64_t step) {
    struct training *t = user;
    char *folder = job_folder_path(t->options.folder, job_claim_job(t->claim)->id);
    json_t *list = NULL;
    struct error err = { 0 };
    if (folder && job_folder_validations(folder, &list, &err)) {
        json_t *entry, *found = NULL;
        size_t i;
        json_array_foreach(list, i, entry) {
            if (json_integer_value(json_object_get(entry, "step")) == step)
                found = json_incref(entry);
        }
        json_decref(list);
        if (json_dumpb(found, NULL, 0, JSON_COMPACT) > JOB_EVENT_MAX_BYTES)
            json_object_del(found, "pictures"); /* they are in the job's list of validations */
        if (found)
            say(t, "validation", found);
    }
    pass_on(t, &t->validated_folder, folder);
}

/* Reads one of the flags that the lock guards. */
static bool is_set(struct training *t, const bool *flag) {
    pthread_mutex_lock(&t->lock);
    const bool set = *flag;
    pthread_mutex_unlock(&t->lock);
    return set;
}

static bool is_wanted(void *user) {
    const struct training *t = user;
    return job_claim_wish(t->claim) == JOB_GO_ON;
}

/* Called between the pieces of loading, so that requests can use the device. Returns false if the
 * job must stop. */
static bool between(void *user) {
    struct training *t = user;
    struct adapters *adapters = engine_get_adapters(t->options.engine);
    adapters_device_give(adapters);
    adapters_device_take(adapters);
    return job_claim_wish(t->claim) == JOB_GO_ON && !is_set(t, &t->engine_ended);
}

static bool open_job(struct training *t, struct error *err) {
    const struct job *job = job_claim_job(t->claim);
    struct pipeline_info info;
    char holder[160];
    char *dataset = NULL, *folder = NULL, *class_folder = NULL, *model_path = NULL;
    char *cache = file_join(t->options.folder, "cache");
    bool ok = parse(job->request, strlen(job->request), &t->config, err) &&
              dataset_path(t, &t->config, &dataset, err) &&
              class_path(t, &t->config, &class_folder, err);
    if (ok && (!cache || !(folder = job_folder_path(t->options.folder, job->id))))
        ok = error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    snprintf(holder, sizeof(holder), "the training job %.120s", ok ? t->config.name : "");
    if (ok)
        t->model = engine_hold_model(t->options.engine, holder, &info, err);
    ok = ok && t->model;
    const bool another = ok && trains_another(&t->config, &info);
    if (another) {
        engine_let_go_model(t->model); /* the job loads its own model */
        t->model = NULL;
        ok = engine_model_path(t->options.engine, t->config.model, &model_path, err);
    }
    const struct training_job_options options = {
        .kernels = ok ? info.kernels : NULL,
        .model_path = another ? model_path
                      : ok    ? info.model_path
                              : NULL,
        .tokenizer_dir = t->options.tokenizer_dir,
        .config = &t->config,
        .defaults = t->options.defaults,
        .dataset = dataset,
        .class_dataset = class_folder,
        .dataset_root = t->options.dataset_root,
        .folder = folder,
        .cache = cache,
        .cache_max_bytes = t->options.cache_max_bytes,
        .unet = ok && !another ? info.unet : NULL,
        .dtype = ok ? info.dtype : DTYPE_F32,
        .stepped = on_stepped,
        .kept = on_kept,
        .warned = on_warned,
        .between = between,
        .is_wanted = is_wanted,
        .validated = on_validated,
        .user = t,
    };
    ok = ok && training_job_open(&options, &t->job, err);
    free(dataset);
    free(folder);
    free(cache);
    free(class_folder);
    free(model_path);
    return ok;
}

static bool load_job(struct training *t, struct error *err) {
    struct adapters *adapters = engine_get_adapters(t->options.engine);
    adapters_device_take(adapters);
    const bool ok = training_job_load(t->job, err);
    adapters_device_give(adapters);
    return ok;
}

/* Opens the claimed job and hands it to the engine's background, or fails it. */
static void open_next(struct training *t) {
    struct error err = { 0 };
    if (job_claim_wish(t->claim) != JOB_GO_ON) {
        job_claim_stopped(let_go(t));
        return;
    }
    if (!open_job(t, &err) || !load_job(t, &err)) {
        /* The model may have been unloaded after may_open. Nothing is open then, and the claim
         * waits for the next model. */
        const bool is_late = err.code == ERROR_UNAVAILABLE && !t->model && !t->job;
        if (is_late && !is_set(t, &t->engine_ended)) {
            train_config_finish(&t->config);
            t->config = (struct train_config){ 0 };
            return;
        }
        struct job_claim *claim = let_go(t);
        if (err.code == ERROR_CANCELLED)
            job_claim_stopped(claim);
        else
            job_claim_fail(claim, &err);
        return;
    }
    pthread_mutex_lock(&t->lock);
    const bool ended = t->engine_ended;
    t->stage = STAGE_TO_WORK;
    pthread_mutex_unlock(&t->lock);
    if (ended)
        job_claim_stopped(let_go(t));
    else
        engine_wake_background(t->options.engine);
}

/* Returns the result of a finished job; NULL if there is no memory. */
static json_t *result_json(const struct training *t) {
    if (t->config.method == TRAIN_FULL)
        return json_pack("{s:s}", "model", t->result);
    char *folder = t->config.save_format == TRAIN_SAVE_BOTH
                       ? job_folder_path(t->options.folder, job_claim_job(t->claim)->id)
                       : NULL;
    char *second = folder ? job_folder_adapter(folder, t->config.name, true) : NULL;
    json_t *json = json_pack(
        "{s:s, s:s, s:s*}", "adapter", t->config.name, "file", t->result, "kohya_file", second);
    free(second);
    free(folder);
    return json;
}

/* Registers the adapter with the engine under the job's name. If this fails, the job has still
 * succeeded, with a warning. The model of a full fine-tune is not registered: a daemon is started
 * with it. */
static void publish(struct training *t) {
    struct adapters *adapters = engine_get_adapters(t->options.engine);
    struct error err = { 0 };
    const bool full = t->config.method == TRAIN_FULL;
    json_t *json = result_json(t);
    if (!full && (!adapters || !adapters_add_file(adapters, t->config.name, t->result, &err))) {
        log_warning("%s: %s", t->config.name, err.message);
        if (json)
            json_object_set_new(json, "warning", json_lenient_string(err.message));
    }
    char *text = text_of(json);
    job_claim_succeed(let_go(t), text); /* takes over `text` */
}

/* Whether open_next can proceed now: the engine has a model, or the job was asked to stop. */
static bool may_open(struct training *t) {
    return engine_has_model(t->options.engine) || job_claim_wish(t->claim) != JOB_GO_ON;
}

static void draw_grid(struct training *t) {
    struct error err = { 0 };
    char *folder = take(t, &t->validated_folder);
    if (folder && !validation_draw_grid(folder, &err))
        log_warning("%s: the grid of validation pictures: %s", folder, err.message);
    free(folder);
}

/* Registers the names of new checkpoints. Runs before the job's end is published, so that its
 * checkpoints can be used by then. */
static void name_checkpoints(struct training *t, bool *scanned) {
    struct adapters *adapters = engine_get_adapters(t->options.engine);
    if (!adapters)
        return;
    char *folder = take(t, &t->changed_folder);
    if (!*scanned)
        checkpoint_names_scan(adapters, t->options.folder);
    else if (folder)
        checkpoint_names_update(adapters, folder);
    *scanned = true;
    free(folder);
}

/* Trims the cache of training jobs. No job runs meanwhile, because this thread opens the next
 * one. */
static void trim_cache(struct training *t) {
    struct error err = { 0 };
    pthread_mutex_lock(&t->lock);
    const bool grew = t->cache_grew;
    t->cache_grew = false;
    pthread_mutex_unlock(&t->lock);
    if (!grew)
        return;
    char *cache = file_join(t->options.folder, "cache");
    if (cache && !cache_trim(cache, t->options.cache_max_bytes, &err))
        log_warning("the cache %s: %s", cache, err.message);
    free(cache);
}

/* Waits until this thread has work. `late`: the claimed job could not be opened yet, and is tried
 * again only after news. */
static enum stage wait_for_work(struct training *t, bool late) {
    pthread_mutex_lock(&t->lock);
    while (!t->ending && !t->has_news && t->stage != STAGE_TO_PUBLISH && !t->changed_folder &&
           !t->validated_folder && !t->cache_grew && (t->stage != STAGE_TO_OPEN || late))
        pthread_cond_wait(&t->changed, &t->lock);
    t->has_news = false;
    const enum stage stage = t->stage;
    pthread_mutex_unlock(&t->lock);
    return stage;
}

static void *open_and_publish(void *user) {
    struct training *t = user;
    bool engine_is_late = false, scanned = false;
    (void)team_leave(); /* loads models on one thread, beside the engine's */
    for (;;) {
        const enum stage stage = wait_for_work(t, engine_is_late);
        if (is_set(t, &t->ending))
            return NULL;
        name_checkpoints(t, &scanned);
        draw_grid(t);
        trim_cache(t);
        engine_is_late = stage == STAGE_TO_OPEN && !may_open(t);
        if (stage == STAGE_TO_PUBLISH)
            publish(t);
        else if (stage == STAGE_TO_OPEN && !engine_is_late)
            open_next(t);
    }
}

/* --- the engine's background --- */

static void finish(struct training *t) {
    t->result = strdup(training_job_result(t->job));
    if (!t->result) {
        struct error err;
        error_set(&err, ERROR_NO_MEMORY, "no memory for the result's path");
        job_claim_fail(let_go(t), &err);
        return;
    }
    close_job(t);
    pthread_mutex_lock(&t->lock);
    t->stage = STAGE_TO_PUBLISH;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

/* Stops the job and gives its claim back. Saves the progress unless the job is cancelled. */
static void give_back(struct training *t, enum job_wish wish) {
    struct error err = { 0 };
    if (wish != JOB_CANCEL && !training_job_keep(t->job, &err))
        log_warning("%s: %s", t->config.name, err.message);
    job_claim_stopped(let_go(t));
}

static bool has_work(struct training *t) {
    pthread_mutex_lock(&t->lock);
    const bool has = t->stage == STAGE_TO_WORK;
    pthread_mutex_unlock(&t->lock);
    return has;
}

static bool work(bool *more, void *user, struct error *err) {
    struct training *t = user;
    struct error why = { 0 };
    bool done = false;
    *more = has_work(t);
    if (!*more)
        return true;
    const enum job_wish wish = job_claim_wish(t->claim);
    if (wish != JOB_GO_ON) {
        give_back(t, wish);
    } else if (!training_job_advance(t->job, &done, &why) && why.code != ERROR_CANCELLED) {
        if (why.code == ERROR_DEVICE_LOST && err)
            *err = why;
        job_claim_fail(let_go(t), &why);
        return why.code != ERROR_DEVICE_LOST;
    } else if (why.code == ERROR_CANCELLED) {
        job_claim_stopped(let_go(t));
    } else if (done) {
        finish(t);
    }
    *more = has_work(t);
    return true;
}

/* Called when the engine stops, so no more training is possible. */
static void stop(void *user) {
    struct training *t = user;
    pthread_mutex_lock(&t->lock);
    t->engine_ended = true;
    pthread_mutex_unlock(&t->lock);
    if (has_work(t))
        give_back(t, job_claim_wish(t->claim));
}

/* --- creating and destroying the runner --- */

bool training_create(
    const struct training_options *options, struct training **out, struct error *err) {
    *out = NULL;
    if (!options->dataset_root) /* POST /train reports what is missing */
        return true;
    struct training *t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(err, ERROR_NO_MEMORY, "no memory for training jobs");
    t->options = *options;
    t->cache_grew = true;
    t->listener = (struct engine_listener){ .changed = note_news, .user = t };
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    const int failed = thread_start(&t->thread, "training", open_and_publish, t);
    t->has_thread = !failed;
    const struct job_runner runner = {
        .type = JOB_TYPE_TRAIN, .check = check, .start = start, .wake = wake, .user = t
    };
    const struct engine_background background = {
        .work = work, .stop = stop, .user = t, .share = options->share
    };
    engine_set_background(options->engine, &background);
    engine_listen(options->engine, &t->listener);
    note_news(t); /* changes made before engine_listen */
    if (failed)
        error_set_thread(err, failed);
    else if (dispatcher_add(options->dispatcher, &runner, err)) {
        *out = t;
        return true;
    }
    training_destroy(t);
    return false;
}

void training_destroy(struct training *t) {
    if (!t)
        return;
    engine_clear_background(t->options.engine);
    engine_unlisten(t->options.engine, &t->listener);
    pthread_mutex_lock(&t->lock);
    t->ending = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (t->has_thread)
        pthread_join(t->thread, NULL);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->changed);
    free(t->changed_folder);
    free(t->validated_folder);
    free(t);
}
