#include "server/generation/jobs.h"

#include "base/log.h"
#include "base/monotonic.h"
#include "base/text/base64.h"
#include "engine/loop/switch.h"
#include "engine/training_job/folder.h"
#include "queue/dispatcher.h"
#include "server/generation/orders.h"
#include "server/generation/results.h"
#include "server/generation/run.h"
#include "server/http/caller.h"
#include "server/later/job_watch.h"

#include <stdlib.h>
#include <string.h>

#define FULL_MS 1000                            /* pause before writing to a full disk again */
#define SWEEP_MS 60000                          /* the longest time between two sweeps */
#define SOON_MS 1000                            /* the shortest, and the time after a job's end */
#define PREVIEW_MS 250                          /* the least time between two preview events */
#define PREVIEW_BYTES (JOB_EVENT_MAX_BYTES / 2) /* larger previews are not put into the event */

/* A job being worked on. One thread after the other works on it: a loader or reader, the engine, an
 * encoder. While it is put off, no thread does. The mutex guards the members that other threads
 * read. */
struct drawn_job {
    struct work work;
    struct generation_jobs *jobs;
    struct job_claim *claim;
    struct generation_order_file order;
    bool has_order;
    char *result;        /* owned */
    unsigned begun;      /* `engine_changes` when it began */
    bool awaits_engine;  /* put off until the engine changes; then it begins again */
    int64_t again_ms;    /* when to write its pictures again; 0: not put off */
    int64_t ends_ms;     /* when its timeout_s is over; 0: it has none */
    bool said_disk_full; /* in the log */
    struct drawn_job *next;

    struct generation *g; /* a reference; NULL: not created yet */
    uint64_t shown_preview;
    int64_t shown_ms;
};

/* Work for a clerk. */
struct chore {
    struct work work; /* the first member */
    struct generation_jobs *jobs;
    bool cancels; /* true: cancel the job; else remove its folder */
    char id[JOB_ID_BYTES];
};

/* The mutex guards everything that changes. It is locked after the queue and the engine, and before
 * a generation. */
struct generation_jobs {
    struct http_server *server;
    struct queue_listener queue_listener;
    struct engine_listener engine_listener;
    struct watcher watcher; /* keeps the time of retries and sweeps */
    pthread_mutex_t mutex;
    struct drawn_job *first;
    unsigned engine_changes;
    int64_t sweep_ms; /* when to sweep next */
    struct work sweep;
    bool sweeps;              /* a loader has `sweep` */
    struct results_ages ages; /* for that loader only */
    bool added; /* the runner was added to the dispatcher; for the watch's thread only */
};

static struct queue *queue_of(const struct generation_jobs *jobs) {
    return jobs->server->options.queue;
}

static char *folder_of(const struct drawn_job *d) {
    return job_folder_path(d->jobs->server->options.state_folder, job_claim_job(d->claim)->id);
}

/* --- The end of a job --- */

/* Returns whether the job ended because of a client's wish. If the wish has been taken back
 * meanwhile, the job is queued again. */
static bool was_asked_to_stop(const struct drawn_job *d, const struct error *err) {
    return err->code == ERROR_CANCELLED ||
           ((err->code == ERROR_UNAVAILABLE || err->code == ERROR_NO_SPACE) &&
               job_claim_wish(d->claim) != JOB_GO_ON);
}

/* Returns whether the daemon is about to end with status 70, to be restarted. */
static bool is_lost(const struct drawn_job *d, const struct error *err) {
    return err->code == ERROR_DEVICE_LOST &&
           engine_get_state(d->jobs->server->options.engine, NULL) != ENGINE_READY;
}

static void look_soon(struct generation_jobs *jobs) {
    job_watch_poke(jobs->server->job_watch, &jobs->watcher);
}

/* Ends the job. Called on the last thread that works on it. */
static void finish(struct drawn_job *d, const struct error *err) {
    struct generation_jobs *jobs = d->jobs;
    pthread_mutex_lock(&jobs->mutex);
    struct drawn_job **at = &jobs->first;
    while (*at != d)
        at = &(*at)->next;
    *at = d->next;
    struct generation *g = d->g;
    jobs->sweep_ms = monotonic_ms() + SOON_MS;
    look_soon(jobs);
    pthread_mutex_unlock(&jobs->mutex);
    generation_unref(g);
    if (err->code == ERROR_NONE)
        job_claim_succeed(d->claim, d->result); /* takes over `result` */
    else if (was_asked_to_stop(d, err))
        job_claim_stopped(d->claim);
    else if (is_lost(d, err))
        job_claim_abandon(d->claim);
    else
        job_claim_fail(d->claim, err);
    if (err->code != ERROR_NONE)
        free(d->result);
    if (d->has_order)
        orders_finish(&d->order);
    free(d);
}

/* --- Callbacks of the generation --- */

static struct drawn_job *job_of(const struct generation *g) {
    return g->owned_by;
}

/* Called just before the engine gets the job. */
static bool check(const struct generation *g, struct error *err) {
    if (!orders_check_adapters(&job_of(g)->order, &g->server->options, err))
        return false;
    job_claim_waits(job_of(g)->claim);
    return true;
}

static bool encode(struct generation *g, struct error *err) {
    struct drawn_job *d = job_of(g);
    const struct generate_answer answer = generation_answer_of(g);
    json_t *result = NULL;
    char *folder = folder_of(d);
    if (folder && results_write(folder, g->id, &answer, &result, err))
        d->result = json_dumps(result, JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(result);
    free(folder);
    return d->result;
}

/* The disk is full: keeps the result in memory, to write it again later. */
static bool put_off_writing(struct generation *g) {
    struct drawn_job *d = job_of(g);
    struct generation_jobs *jobs = d->jobs;
    pthread_mutex_lock(&jobs->mutex);
    /* If not, `wake` may already have been called for the last time. */
    const bool goes_on = job_claim_wish(d->claim) == JOB_GO_ON;
    if (goes_on && !d->said_disk_full)
        log_error(
            "%s: the disk is full; the job's pictures are written once there is space", g->id);
    if (goes_on) {
        d->said_disk_full = true;
        d->again_ms = monotonic_ms() + FULL_MS;
        look_soon(jobs);
    }
    pthread_mutex_unlock(&jobs->mutex);
    return goes_on;
}

static void tell_preview(struct drawn_job *d, const struct preview *p) {
    const char *id = job_claim_job(d->claim)->id;
    size_t length = 0;
    char *base64 = p->size <= PREVIEW_BYTES ? base64_encode(p->jpeg, p->size, &length) : NULL;
    json_t *json = json_pack("{s:i, s:i, s:i, s:s, s:i, s:i, s:o}", "image", p->image, "step",
        p->step, "steps", p->steps, "format", "jpeg", "width", p->width, "height", p->height, "url",
        json_sprintf("/jobs/%s/preview", id));
    if (json && base64)
        json_object_set_new(json, "b64_json", json_stringn_nocheck(base64, length));
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    if (text)
        (void)job_claim_event(d->claim, "preview", text); /* may be lost: the next one follows */
    free(text);
    json_decref(json);
    free(base64);
}

static void news(struct generation *g) {
    struct drawn_job *d = job_of(g);
    struct generation_progress now;
    generation_get_progress(g, &now);
    const struct job_report report = { .step = now.step, .steps = now.steps, .eta_s = now.eta_s };
    job_claim_report(d->claim, &report);
    struct preview *preview = NULL;
    const int64_t now_ms = monotonic_ms();
    pthread_mutex_lock(&d->jobs->mutex);
    if (now_ms - d->shown_ms >= PREVIEW_MS)
        preview = generation_get_preview(g, d->shown_preview);
    if (preview) {
        d->shown_preview = preview->number;
        d->shown_ms = now_ms;
    }
    pthread_mutex_unlock(&d->jobs->mutex);
    if (preview)
        tell_preview(d, preview);
    preview_unref(preview);
}

static void ended(struct generation *g) {
    finish(job_of(g), &g->error);
}

static bool goes_on(const struct generation *g) {
    const struct drawn_job *d = job_of(g);
    return was_asked_to_stop(d, &g->error) && job_claim_wish(d->claim) != JOB_CANCEL;
}

static void do_chore(struct work *work) {
    struct chore *chore = (struct chore *)work;
    const struct generation_jobs *jobs = chore->jobs;
    struct job job;
    struct error err;
    char *folder = NULL;
    if (!chore->cancels)
        folder = job_folder_path(jobs->server->options.state_folder, chore->id);
    else if (queue_cancel(queue_of(jobs), chore->id, &job, &err))
        job_finish(&job);
    if (folder)
        job_folder_remove(folder);
    free(folder);
    free(chore);
}

static void give_chore(struct generation_jobs *jobs, bool cancels, const char *id) {
    struct chore *chore = calloc(1, sizeof(*chore));
    if (!chore)
        return;
    *chore = (struct chore){ .work.run = do_chore, .jobs = jobs, .cancels = cancels };
    snprintf(chore->id, sizeof(chore->id), "%.16s", id);
    workers_give(jobs->server->clerks, &chore->work);
}

/* Called when the generation is cancelled by its id: cancels the job. A clerk does this, because
 * the job may be ending on another thread. */
static void cancel(struct generation *g) {
    give_chore(g->server->generation_jobs, true, g->id);
}

static const struct generation_owner owner = {
    .encode = encode,
    .put_off = put_off_writing,
    .news = news,
    .ended = ended,
    .goes_on = goes_on,
    .cancel = cancel,
    .has_queue = true,
};
static const struct generation_kind kind = { .dialect = "job", .check = check };

/* --- The beginning of a job, on a loader thread, or a reader thread if it has pictures --- */

/* Subtracts the time since the job was accepted: timeout_s counts from then, in every attempt. */
static bool use_deadline(struct drawn_job *d, struct error *err) {
    struct generate_request *request = &d->order.request;
    if (request->timeout_s <= 0)
        return true;
    const double waited_s = 1e-3 * (double)queue_age_ms(queue_of(d->jobs), job_claim_job(d->claim));
    if (waited_s >= request->timeout_s)
        return error_set(
            err, ERROR_TIMEOUT, "timeout_s: the job waited %.1f s for its turn", waited_s);
    request->timeout_s -= waited_s;
    d->ends_ms = monotonic_ms() + (int64_t)(request->timeout_s * 1e3) + 1;
    return true;
}

static bool read_order(struct drawn_job *d, struct error *err) {
    char *folder = folder_of(d);
    d->has_order = folder && orders_read(folder, &d->order, err);
    if (!folder)
        error_set(err, ERROR_NO_MEMORY, "no memory for the job");
    free(folder);
    return d->has_order;
}

/* Refuses to draw with another model than the accepted one, because the pictures would differ. If
 * no model is loaded, this returns true, and the job is put off later. */
static bool check_model(const struct drawn_job *d, struct error *err) {
    const char *meant = d->order.request.model;
    struct pipeline_info now;
    if (!engine_get_info(d->jobs->server->options.engine, &now) || !meant || !now.model_name ||
        strcmp(meant, now.model_name) == 0)
        return true;
    return error_set(err, ERROR_CONFLICT,
        "the job was accepted for the model %.200s, but %.200s is in use: switch back with PUT "
        "/model, then draw the job with POST /jobs/%s/resume",
        meant, now.model_name, job_claim_job(d->claim)->id);
}

/* Sets d->g on success. */
static bool make_generation(struct drawn_job *d, struct error *err) {
    struct generation_jobs *jobs = d->jobs;
    if (!read_order(d, err) || !use_deadline(d, err) || !check_model(d, err))
        return false;
    const struct generation_options options = { .preview_every = d->order.delivery.preview_every,
        .preview = d->order.delivery.preview };
    const struct generation_order order = {
        .server = jobs->server,
        .id = job_claim_job(d->claim)->id,
        .caller = job_claim_job(d->claim)->owner,
        .account = job_claim_job(d->claim)->caller,
        .may_prioritize = true, /* checked before the job was stored */
        .asked = &d->order.request,
        .kind = &kind,
        .options = &options,
        .owner = &owner,
        .owned_by = d,
    };
    struct generation *g = generation_create(&order, err);
    if (!g)
        return false;
    pthread_mutex_lock(&jobs->mutex);
    d->g = g;
    pthread_mutex_unlock(&jobs->mutex);
    return true;
}

static void begin(struct work *work);

/* Puts the job off if the engine accepts no requests now but will later. The job begins again when
 * the engine has changed or the job's time is over, or at once if the engine has changed since the
 * job began. Returns false
 * if the job cannot be put off. */
static bool put_off(struct drawn_job *d, const struct error *err) {
    struct generation_jobs *jobs = d->jobs;
    struct generation *g = NULL;
    if (err->code != ERROR_UNAVAILABLE)
        return false;
    pthread_mutex_lock(&jobs->mutex);
    /* If not, `wake` may already have been called for the last time. */
    const bool goes_on = job_claim_wish(d->claim) == JOB_GO_ON;
    if (goes_on) {
        g = d->g;
        d->g = NULL;
        if (d->has_order)
            orders_finish(&d->order);
        d->has_order = false;
        d->work.run = begin;
        d->awaits_engine = d->begun == jobs->engine_changes;
        if (!d->awaits_engine)
            workers_give(jobs->server->loaders, &d->work);
        else if (d->ends_ms)
            look_soon(jobs);
    }
    pthread_mutex_unlock(&jobs->mutex);
    generation_unref(g);
    return goes_on;
}

/* Admits a job that has a generation. Afterwards the engine has the job, or it is put off, or it
 * has ended. */
static void admit(struct work *work) {
    struct drawn_job *d = (struct drawn_job *)work;
    struct generation *g = d->g;
    struct error err = { 0 };
    generation_ref(g); /* our reference for the duration of the call */
    if (job_claim_wish(d->claim) != JOB_GO_ON)
        generation_cancel(g);
    if (!generation_admit(g, &err) && !put_off(d, &err))
        finish(d, &err);
    generation_unref(g);
}

static void begin(struct work *work) {
    struct drawn_job *d = (struct drawn_job *)work;
    struct error err = { 0 };
    pthread_mutex_lock(&d->jobs->mutex);
    d->begun = d->jobs->engine_changes;
    pthread_mutex_unlock(&d->jobs->mutex);
    if (job_claim_wish(d->claim) != JOB_GO_ON) {
        error_set(&err, ERROR_CANCELLED, "the job was asked to stop before it began");
        finish(d, &err);
    } else if (make_generation(d, &err)) {
        d->work.run = admit;
        workers_give(generation_workers(d->g), work);
    } else if (!put_off(d, &err)) {
        finish(d, &err);
    }
}

/* --- Callbacks of the dispatcher --- */

static bool is_possible(void *user, const char *request, struct error *err) {
    (void)user, (void)request, (void)err;
    return true; /* resolved before the job was stored */
}

static void start(void *user, struct job_claim *claim) {
    struct generation_jobs *jobs = user;
    struct drawn_job *d = calloc(1, sizeof(*d));
    if (!d) {
        struct error err;
        error_set(&err, ERROR_NO_MEMORY, "no memory for the job");
        job_claim_fail(claim, &err);
        return;
    }
    d->jobs = jobs;
    d->claim = claim;
    d->work.run = begin;
    d->work.caller = caller_number(job_claim_job(claim)->caller);
    pthread_mutex_lock(&jobs->mutex);
    d->next = jobs->first;
    jobs->first = d;
    pthread_mutex_unlock(&jobs->mutex);
    workers_give(jobs->server->loaders, &d->work);
}

/* Call with the mutex held. Continues a job that was put off. */
static void try_again(struct drawn_job *d) {
    const bool writes = d->again_ms, begins = d->awaits_engine;
    d->again_ms = 0;
    d->awaits_engine = false;
    if (writes)
        generation_encode_again(d->g);
    else if (begins)
        workers_give(d->jobs->server->loaders, &d->work);
}

static void wake(void *user) {
    struct generation_jobs *jobs = user;
    pthread_mutex_lock(&jobs->mutex);
    for (struct drawn_job *d = jobs->first; d; d = d->next) {
        if (job_claim_wish(d->claim) == JOB_GO_ON)
            continue;
        if (d->g)
            generation_cancel(d->g);
        try_again(d); /* to end */
    }
    pthread_mutex_unlock(&jobs->mutex);
}

/* --- News of the queue and of the engine --- */

static void on_change(void *user, const struct job *job, bool deleted) {
    struct generation_jobs *jobs = user;
    if (strcmp(job->type, GENERATE_JOB_TYPE) != 0)
        return;
    if (deleted)
        give_chore(jobs, false, job->id);
    engine_orders_changed(jobs->server->options.engine);
}

static void on_engine(void *user) {
    struct generation_jobs *jobs = user;
    pthread_mutex_lock(&jobs->mutex);
    jobs->engine_changes++;
    for (struct drawn_job *d = jobs->first; d; d = d->next)
        if (d->awaits_engine)
            try_again(d);
    look_soon(jobs);
    pthread_mutex_unlock(&jobs->mutex);
}

/* Counts the queued and running orders, whose model the engine keeps until they have ended. Paused
 * orders are not counted. */
static bool count_orders(void *user, int *count, struct error *err) {
    const struct generation_jobs *jobs = user;
    int counts[JOB_STATE_COUNT];
    if (server_state(jobs->server) == ENGINE_STOPPING)
        return error_set(err, ERROR_UNAVAILABLE, "the daemon is stopping");
    if (!queue_count(queue_of(jobs), GENERATE_JOB_TYPE, counts, err))
        return false;
    *count = counts[JOB_QUEUED] + counts[JOB_RUNNING];
    return true;
}

static bool add_runner(struct generation_jobs *jobs) {
    struct error err;
    const struct job_runner runner = { .type = GENERATE_JOB_TYPE,
        .at_once = GENERATE_JOBS_AT_ONCE,
        .check = is_possible,
        .start = start,
        .wake = wake,
        .user = jobs };
    if (engine_get_state(jobs->server->options.engine, NULL) != ENGINE_READY)
        return false;
    if (!dispatcher_add(jobs->server->options.dispatcher, &runner, &err))
        log_error("no jobs are drawn: %s", err.message);
    return true;
}

/* --- Timed work, on the watch's thread --- */

static void sweep(struct work *work) {
    struct generation_jobs *jobs =
        (struct generation_jobs *)((char *)work - offsetof(struct generation_jobs, sweep));
    results_sweep(queue_of(jobs), &jobs->server->options, &jobs->ages);
    pthread_mutex_lock(&jobs->mutex);
    jobs->sweeps = false;
    pthread_mutex_unlock(&jobs->mutex);
}

/* Call with the mutex held. */
static void begin_sweep(struct generation_jobs *jobs, int64_t now_ms) {
    const int64_t tenth_ms = jobs->server->options.results_max_age_s * 100;
    jobs->sweep_ms = now_ms + (tenth_ms < SOON_MS       ? SOON_MS
                                  : tenth_ms > SWEEP_MS ? SWEEP_MS
                                                        : tenth_ms);
    if (jobs->sweeps) /* the previous sweep still runs */
        return;
    jobs->sweeps = true;
    workers_give(jobs->server->loaders, &jobs->sweep);
}

/* Returns when a job that was put off goes on by itself; 0: it does not. */
static int64_t due_of(const struct drawn_job *d) {
    return d->again_ms ? d->again_ms : d->awaits_engine ? d->ends_ms : 0;
}

static bool look(struct watcher *watcher, bool stopping, int64_t *due_ms) {
    struct generation_jobs *jobs =
        (struct generation_jobs *)((char *)watcher - offsetof(struct generation_jobs, watcher));
    const int64_t now_ms = monotonic_ms();
    if (stopping)
        return false;
    jobs->added = jobs->added || add_runner(jobs);
    pthread_mutex_lock(&jobs->mutex);
    if (now_ms >= jobs->sweep_ms)
        begin_sweep(jobs, now_ms);
    *due_ms = jobs->sweep_ms;
    for (struct drawn_job *d = jobs->first; d; d = d->next) {
        const int64_t job_due_ms = due_of(d);
        if (job_due_ms && job_due_ms <= now_ms)
            try_again(d);
        else if (job_due_ms && job_due_ms < *due_ms)
            *due_ms = job_due_ms;
    }
    pthread_mutex_unlock(&jobs->mutex);
    return true;
}

/* --- Creating and destroying --- */

bool generation_jobs_create(
    struct http_server *server, struct generation_jobs **out, struct error *err) {
    struct generation_jobs *jobs = calloc(1, sizeof(*jobs));
    if (!jobs)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the jobs");
    pthread_mutex_init(&jobs->mutex, NULL);
    jobs->server = server;
    jobs->queue_listener = (struct queue_listener){ .changed = on_change, .user = jobs };
    jobs->engine_listener = (struct engine_listener){ .changed = on_engine, .user = jobs };
    jobs->watcher.look = look;
    jobs->sweep.run = sweep;
    results_remove_orphans(queue_of(jobs), server->options.state_folder);
    if (!job_watch_add(server->job_watch, &jobs->watcher, err)) {
        pthread_mutex_destroy(&jobs->mutex);
        free(jobs);
        return false;
    }
    queue_listen(queue_of(jobs), &jobs->queue_listener);
    engine_listen(server->options.engine, &jobs->engine_listener);
    look_soon(jobs); /* the engine may have changed before we listened */
    const struct engine_orders orders = { count_orders, jobs };
    engine_set_orders(server->options.engine, &orders);
    *out = jobs;
    return true;
}

void generation_jobs_stop(struct generation_jobs *jobs) {
    if (!jobs)
        return;
    engine_clear_orders(jobs->server->options.engine);
    dispatcher_stop(jobs->server->options.dispatcher);
    dispatcher_wait(jobs->server->options.dispatcher, GENERATE_JOB_TYPE);
    queue_unlisten(queue_of(jobs), &jobs->queue_listener);
    engine_unlisten(jobs->server->options.engine, &jobs->engine_listener);
}

void generation_jobs_destroy(struct generation_jobs *jobs) {
    if (!jobs)
        return;
    results_ages_finish(&jobs->ages);
    pthread_mutex_destroy(&jobs->mutex);
    free(jobs);
}
