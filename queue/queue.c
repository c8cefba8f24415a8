#include "queue/queue.h"

#include "base/list.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/monotonic.h"
#include "base/random.h"
#include "base/text/json.h"
#include "queue/ages.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Jobs of one type by state. Counted in the store once, then kept up to date: counting a store with
 * many ended jobs is slow. */
struct type_counts {
    char *type;
    int counts[JOB_STATE_COUNT];
    struct type_counts *next;
};

#define UNWRITTEN_MAX 16 /* as many as jobs may run at a time */

/* A wish for a running job that could not be stored because the disk was full. The job obeys it; it
 * is stored with the job's next change. */
struct unwritten {
    int64_t number;
    int attempts;
    enum job_wish wish; /* JOB_GO_ON: the entry is free */
};

/* The mutex guards all members. For every change, a row is read, altered and written back while the
 * mutex is held. */
struct queue {
    pthread_mutex_t mutex;
    struct store *store;              /* owned */
    int counts[JOB_STATE_COUNT];      /* jobs of all types by state */
    struct type_counts *types;        /* owned; types that were asked for */
    struct queue_listener *listeners; /* borrowed */
    struct unwritten unwritten[UNWRITTEN_MAX];
    struct job_ages ages; /* of the jobs that exist */
};

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool no_memory(struct error *err) {
    return error_set(err, ERROR_NO_MEMORY, "no memory for a job");
}

/* --- Metrics and listeners --- */

static struct type_counts *find_type(const struct queue *queue, const char *type) {
    struct type_counts *t = queue->types;
    while (t && strcmp(t->type, type) != 0)
        t = t->next;
    return t;
}

/* Returns NULL and sets `err` on failure. */
static struct type_counts *count_type(struct queue *queue, const char *type, struct error *err) {
    struct type_counts *t = find_type(queue, type);
    if (t)
        return t;
    t = calloc(1, sizeof(*t));
    if (t)
        t->type = strdup(type);
    const bool ok = t && t->type ? queue->store->ops->count(queue->store, type, t->counts, err)
                                 : no_memory(err);
    if (!ok) {
        free(t ? t->type : NULL);
        free(t);
        return NULL;
    }
    t->next = queue->types;
    queue->types = t;
    return t;
}

static void count_job(struct queue *queue, const struct job *job, enum job_state state, int more) {
    struct type_counts *t = find_type(queue, job->type);
    queue->counts[state] += more;
    if (t)
        t->counts[state] += more;
}

/* Sets the gauges of a family. `first` is the first one; the others follow in the order of the
 * states. */
static void set_gauges(enum metric first, const int counts[JOB_STATE_COUNT]) {
    for (int i = 0; i < JOB_STATE_COUNT; i++)
        metric_set((enum metric)((int)first + i), counts[i]);
}

static void set_metrics(const struct queue *queue) {
    const struct type_counts *train = find_type(queue, JOB_TYPE_TRAIN);
    set_gauges(METRIC_jobs_queued, queue->counts);
    if (train)
        set_gauges(METRIC_train_jobs_queued, train->counts);
}

static void tell(struct queue *queue, const struct job *job, bool deleted) {
    set_metrics(queue);
    for (struct queue_listener *l = queue->listeners; l; l = l->next)
        l->changed(l->user, job, deleted);
}

/* --- Wishes while the disk is full --- */

/* Returns NULL if the job has no wish that is not stored. */
static struct unwritten *find_unwritten(struct queue *queue, const struct job *job) {
    for (int i = 0; i < UNWRITTEN_MAX; i++) {
        struct unwritten *u = &queue->unwritten[i];
        if (u->wish != JOB_GO_ON && u->number == job->number && u->attempts == job->attempts)
            return u;
    }
    return NULL;
}

/* Keeps the job's wish in memory. Returns false if UNWRITTEN_MAX other jobs already have one
 * here. */
static bool keep_unwritten(struct queue *queue, const struct job *job) {
    struct unwritten *place = find_unwritten(queue, job);
    for (int i = 0; !place && i < UNWRITTEN_MAX; i++)
        if (queue->unwritten[i].wish == JOB_GO_ON)
            place = &queue->unwritten[i];
    if (place)
        *place = (struct unwritten){ job->number, job->attempts, job->wish };
    return place;
}

/* --- Saving a job --- */

static bool save(
    struct queue *queue, struct job *job, const struct job_event *event, struct error *err) {
    if (!queue->store->ops->save(queue->store, job, event, err))
        return false;
    struct unwritten *u = find_unwritten(queue, job);
    if (u)
        u->wish = JOB_GO_ON; /* now stored in the row, or the job has stopped */
    return true;
}

/* Returns the data of a "state" event, {"state": ..., ...}, malloc'd; NULL if there is no
 * memory. */
static char *state_data(const struct job *job) {
    json_t *json = json_pack("{s:s}", "state", job_state_name(job->state));
    if (job->state == JOB_RUNNING)
        json_object_set_new(json, "attempt", json_integer(job->attempts));
    if (job->state == JOB_RUNNING && job->wish != JOB_GO_ON)
        json_object_set_new(
            json, "asked_to", json_string(job->wish == JOB_PAUSE ? "pause" : "cancel"));
    if (job->state == JOB_FAILED && job->error)
        json_object_set_new(json, "error", json_loads(job->error, 0, NULL));
    if (job->state == JOB_SUCCEEDED && job->result)
        json_object_set_new(json, "result", json_loads(job->result, 0, NULL));
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return text;
}

/* Saves a job whose state was `before`, together with one event. Frees `data`; NULL means that
 * there was no memory for it, and fails. */
static bool save_with(struct queue *queue, struct job *job, enum job_state before, const char *type,
    char *data, struct error *err) {
    if (!data)
        return no_memory(err);
    job->events++;
    const struct job_event event = { job->events, now_ms(), type, data };
    const bool ok = save(queue, job, &event, err);
    free(data);
    if (!ok) {
        job->events--;
        return false;
    }
    count_job(queue, job, before, -1);
    count_job(queue, job, job->state, 1);
    tell(queue, job, false);
    return true;
}

/* Saves a job like save_with after its state or wish has changed, with a "state" event. */
static bool save_state(
    struct queue *queue, struct job *job, enum job_state before, struct error *err) {
    return save_with(queue, job, before, "state", state_data(job), err);
}

/* Adds the working time since the last call. Uses the monotonic clock, because the system's clock
 * may be changed. */
static void add_time_at_work(struct job *job) {
    const int64_t now = monotonic_ms();
    job->running_ms += now - job->since_ms;
    job->since_ms = now;
}

/* Updates the job's times when it goes from state `before` to job->state. */
static void set_times(struct job *job, enum job_state before) {
    const int64_t now = now_ms();
    if (before == JOB_RUNNING)
        add_time_at_work(job);
    if (job->state == JOB_RUNNING) {
        job->since_ms = monotonic_ms();
        if (!job->started_ms)
            job->started_ms = now;
    }
    job->finished_ms = job_state_is_end(job->state) ? now : 0;
}

static void count_end(enum job_state state) {
    metric_add(state == JOB_SUCCEEDED ? METRIC_jobs_ended_total_succeeded
               : state == JOB_FAILED  ? METRIC_jobs_ended_total_failed
                                      : METRIC_jobs_ended_total_cancelled,
        1);
}

static bool move(struct queue *queue, struct job *job, enum job_state to, struct error *err) {
    const enum job_state before = job->state;
    job->state = to;
    job->wish = JOB_GO_ON;
    set_times(job, before);
    if (!save_state(queue, job, before, err))
        return false;
    if (job_state_is_end(to))
        count_end(to);
    return true;
}

/* --- Opening, recovering and closing --- */

/* Parses a JSON object and writes it on one line to *out, malloc'd. If `text` is NULL, *out is
 * NULL. */
static bool compact_object(const char *text, char **out, struct error *err) {
    *out = NULL;
    if (!text)
        return true;
    json_t *json = json_parse(text, strlen(text), err);
    if (!json)
        return false;
    const bool is_object = json_is_object(json);
    *out = is_object ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(json);
    if (!is_object)
        return error_set(err, ERROR_INVALID, "%.60s is not a JSON object", text);
    return *out || no_memory(err);
}

static bool replace_object(char **member, const char *text, struct error *err) {
    char *object;
    if (!compact_object(text, &object, err))
        return false;
    free(*member);
    *member = object;
    return true;
}

static char *error_text(const struct error *why) {
    json_t *json = json_pack("{s:s, s:o}", "code", error_code_name(why->code), "message",
        json_lenient_string(why->message));
    if (json && why->param[0])
        json_object_set_new(json, "param", json_lenient_string(why->param));
    if (json && why->value[0])
        json_object_set_new(json, "value", json_lenient_string(why->value));
    if (json && why->allowed[0])
        json_object_set_new(json, "allowed", json_lenient_string(why->allowed));
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return text;
}

static bool fail(struct queue *queue, struct job *job, const struct error *why, struct error *err) {
    char *text = error_text(why);
    if (!text)
        return no_memory(err);
    free(job->error);
    job->error = text;
    return move(queue, job, JOB_FAILED, err);
}

/* Returns the state of a job that stopped before its end. */
static enum job_state state_after(enum job_wish wish) {
    return wish == JOB_CANCEL ? JOB_CANCELLED : wish == JOB_PAUSE ? JOB_PAUSED : JOB_QUEUED;
}

static bool gather(void *user, const struct job *job, struct error *err) {
    struct job_list *list = user;
    if (!LIST_ROOM(list->jobs, list->count, "a list of jobs", err) ||
        !job_copy(job, &list->jobs[list->count], err))
        return false;
    list->count++;
    return true;
}

static bool list_jobs(
    struct queue *queue, const struct job_filter *filter, struct job_list *out, struct error *err) {
    *out = (struct job_list){ 0 };
    if (queue->store->ops->list(queue->store, filter, gather, out, err))
        return true;
    job_list_finish(out);
    return false;
}

/* Handles the jobs that were running when the last process ended. */
static bool recover(struct queue *queue, struct error *err) {
    const struct job_filter running = { .states = 1u << JOB_RUNNING };
    struct job_list list = { 0 };
    bool ok = list_jobs(queue, &running, &list, err);
    for (int i = 0; ok && i < list.count; i++) {
        struct job *job = &list.jobs[i];
        job->since_ms = monotonic_ms(); /* when the daemon ended is unknown */
        struct error why;
        error_set(&why, ERROR_INTERNAL,
            "the daemon ended %d times in a row while it worked on this job, at step %" PRId64
            " or before",
            job->strikes, job->furthest);
        const bool struck_out = job->wish == JOB_GO_ON && job->strikes >= JOB_STRIKES_MAX;
        log_info("job %s was running when the daemon ended%s", job->id,
            struck_out ? ", once too often" : "");
        ok = struck_out ? fail(queue, job, &why, err)
                        : move(queue, job, state_after(job->wish), err);
    }
    job_list_finish(&list);
    return ok;
}

bool queue_create(struct store *store, struct queue **out, struct error *err) {
    struct queue *queue = calloc(1, sizeof(*queue));
    if (!queue) {
        store->ops->close(store);
        return no_memory(err);
    }
    queue->store = store;
    pthread_mutex_init(&queue->mutex, NULL);
    job_ages_init(&queue->ages, now_ms());
    if (!store->ops->count(store, NULL, queue->counts, err) ||
        !count_type(queue, JOB_TYPE_TRAIN, err) || !recover(queue, err)) {
        queue_destroy(queue);
        return false;
    }
    set_metrics(queue);
    *out = queue;
    return true;
}

bool queue_open(const char *folder, struct queue **out, struct error *err) {
    struct store *store;
    return store_open_sqlite(folder, &store, err) && queue_create(store, out, err);
}

void queue_destroy(struct queue *queue) {
    if (!queue)
        return;
    queue->store->ops->close(queue->store);
    for (struct type_counts *t = queue->types, *next; t; t = next) {
        next = t->next;
        free(t->type);
        free(t);
    }
    job_ages_finish(&queue->ages);
    pthread_mutex_destroy(&queue->mutex);
    free(queue);
}

/* --- Orders --- */

bool queue_make_id(char id[JOB_ID_BYTES], struct error *err) {
    return random_text(id, (JOB_ID_BYTES - 1) / 2, err);
}

static bool find_known(struct queue *queue, const struct job_order *order, struct job *out,
    bool *known, struct error *err) {
    *known = false;
    if (!order->key)
        return true;
    const char *owner = order->owner ? order->owner : "";
    if (!queue->store->ops->find_key(queue->store, owner, order->type, order->key, out, known, err))
        return false;
    if (!*known || (out->body && strcmp(out->body, order->body) == 0))
        return true;
    error_set(err, ERROR_CONFLICT, "Idempotency-Key %s was sent before, with another request",
        order->key);
    job_finish(out);
    return false;
}

/* Notes that a job was deleted. */
static void forget(struct queue *queue, const struct job *job) {
    job_ages_remove(&queue->ages, job->number);
    count_job(queue, job, job->state, -1);
    tell(queue, job, true);
}

/* Deletes the oldest ended jobs, so that there are at most JOBS_ENDED_MAX. */
static bool make_room(struct queue *queue, struct error *err) {
    const unsigned ends = 1u << JOB_SUCCEEDED | 1u << JOB_FAILED | 1u << JOB_CANCELLED;
    const int ended = queue->counts[JOB_SUCCEEDED] + queue->counts[JOB_FAILED] +
                      queue->counts[JOB_CANCELLED];
    if (ended <= JOBS_ENDED_MAX)
        return true;
    struct job_list list;
    const struct job_filter oldest = { .states = ends, .limit = ended - JOBS_ENDED_MAX };
    if (!list_jobs(queue, &oldest, &list, err))
        return false;
    bool ok = true;
    for (int i = 0; ok && i < list.count; i++) {
        ok = queue->store->ops->erase(queue->store, list.jobs[i].number, err);
        if (ok)
            forget(queue, &list.jobs[i]);
    }
    job_list_finish(&list);
    return ok;
}

static bool insert(
    struct queue *queue, const struct job_order *order, struct job *job, struct error *err) {
    const int waiting = queue->counts[JOB_QUEUED] + queue->counts[JOB_PAUSED];
    if (waiting >= JOBS_WAITING_MAX)
        return error_set(err, ERROR_BUSY, "%d jobs wait already", waiting);
    const struct job fresh = {
        .type = (char *)order->type,
        .priority = order->priority,
        .request = (char *)order->request,
        .key = (char *)order->key,
        .body = (char *)order->body,
        .created_ms = now_ms(),
        .eta_s = -1,
        .events = 1,
    };
    if (!make_room(queue, err) || !job_ages_room(&queue->ages, err) || !job_copy(&fresh, job, err))
        return false;
    char *data = state_data(job);
    const struct job_event event = { 1, job->created_ms, "state", data };
    if (order->id)
        snprintf(job->id, sizeof(job->id), "%s", order->id);
    snprintf(job->owner, sizeof(job->owner), "%s", order->owner ? order->owner : "");
    snprintf(job->caller, sizeof(job->caller), "%s", order->caller ? order->caller : "");
    const bool ok = (data || no_memory(err)) && (order->id || queue_make_id(job->id, err)) &&
                    queue->store->ops->insert(queue->store, job, &event, err);
    free(data);
    if (!ok) {
        job_finish(job);
        return false;
    }
    job_ages_add(&queue->ages, job->number);
    count_job(queue, job, JOB_QUEUED, 1);
    metric_add(METRIC_jobs_accepted_total, 1);
    tell(queue, job, false);
    return true;
}

bool queue_find_known(struct queue *queue, const struct job_order *order, struct job *out,
    bool *known, struct error *err) {
    pthread_mutex_lock(&queue->mutex);
    const bool ok = find_known(queue, order, out, known, err);
    pthread_mutex_unlock(&queue->mutex);
    return ok;
}

bool queue_enqueue(struct queue *queue, const struct job_order *order, struct job *out, bool *known,
    struct error *err) {
    pthread_mutex_lock(&queue->mutex);
    const bool ok = find_known(queue, order, out, known, err) &&
                    (*known || insert(queue, order, out, err));
    pthread_mutex_unlock(&queue->mutex);
    return ok;
}

/* --- One job --- */

int64_t queue_age_ms(struct queue *queue, const struct job *job) {
    pthread_mutex_lock(&queue->mutex);
    const int64_t age_ms = job_ages_get_ms(&queue->ages, job);
    pthread_mutex_unlock(&queue->mutex);
    return age_ms;
}

/* Call with the queue locked. Finds a job; the caller finishes *out. */
static bool find(struct queue *queue, const char *id, struct job *out, struct error *err) {
    bool found;
    if (!queue->store->ops->find(queue->store, id, out, &found, err))
        return false;
    if (!found)
        return error_set(err, ERROR_NOT_FOUND, "there is no job %.40s", id);
    const struct unwritten *u = find_unwritten(queue, out);
    if (u && out->state == JOB_RUNNING)
        out->wish = u->wish;
    return true;
}

bool queue_get(struct queue *queue, const char *id, struct job *out, struct error *err) {
    pthread_mutex_lock(&queue->mutex);
    const bool ok = find(queue, id, out, err);
    pthread_mutex_unlock(&queue->mutex);
    return ok;
}

bool queue_position(struct queue *queue, const struct job *job, int *out, struct error *err) {
    *out = 0;
    if (job->state != JOB_QUEUED)
        return true;
    pthread_mutex_lock(&queue->mutex);
    const bool ok = queue->store->ops->count_before(queue->store, job, out, err);
    pthread_mutex_unlock(&queue->mutex);
    *out += 1;
    return ok;
}

bool queue_count(
    struct queue *queue, const char *type, int counts[JOB_STATE_COUNT], struct error *err) {
    pthread_mutex_lock(&queue->mutex);
    const struct type_counts *counted = count_type(queue, type, err);
    if (counted)
        memcpy(counts, counted->counts, sizeof(counted->counts));
    pthread_mutex_unlock(&queue->mutex);
    return counted;
}

/* Finds a job, changes it by `how`, and returns it in *out. */
static bool change(struct queue *queue, const char *id,
    bool (*how)(struct queue *queue, struct job *job, struct error *err), struct job *out,
    struct error *err) {
    pthread_mutex_lock(&queue->mutex);
    bool ok = find(queue, id, out, err);
    if (ok && !how(queue, out, err)) {
        job_finish(out);
        ok = false;
    }
    pthread_mutex_unlock(&queue->mutex);
    return ok;
}

static bool refuse(const struct job *job, const char *what, struct error *err) {
    return error_set(err, ERROR_CONFLICT, "job %s cannot be %s: its state is %s", job->id, what,
        job_state_name(job->state));
}

/* Asks a running job to stop. If the disk is full, the job is asked anyway, and the error says that
 * its wish is not stored. */
static bool ask(struct queue *queue, struct job *job, enum job_wish wish, struct error *err) {
    struct error why = { 0 };
    if (job->wish >= wish && !find_unwritten(queue, job))
        return true;
    if (job->wish < wish)
        job->wish = wish;
    if (save_state(queue, job, JOB_RUNNING, &why))
        return true;
    if (why.code != ERROR_NO_SPACE || !keep_unwritten(queue, job))
        return error_set(err, why.code, "%s", why.message);
    tell(queue, job, false);
    return error_set(err, ERROR_NO_SPACE,
        "job %s is asked to stop; until there is room on the disk, the end of the daemon would "
        "undo this: %.120s",
        job->id, why.message);
}

static bool cancel(struct queue *queue, struct job *job, struct error *err) {
    switch (job->state) {
    case JOB_RUNNING:
        return ask(queue, job, JOB_CANCEL, err);
    case JOB_QUEUED:
    case JOB_PAUSED:
        return move(queue, job, JOB_CANCELLED, err);
    case JOB_CANCELLED:
        return true;
    default:
        return refuse(job, "cancelled", err);
    }
}

static bool pause(struct queue *queue, struct job *job, struct error *err) {
    switch (job->state) {
    case JOB_RUNNING:
        return ask(queue, job, JOB_PAUSE, err);
    case JOB_QUEUED:
        return move(queue, job, JOB_PAUSED, err);
    case JOB_PAUSED:
        return true;
    default:
        return refuse(job, "paused", err);
    }
}

static bool resume(struct queue *queue, struct job *job, struct error *err) {
    switch (job->state) {
    case JOB_RUNNING:
        if (job->wish == JOB_CANCEL)
            return error_set(
                err, ERROR_CONFLICT, "job %s is being cancelled, so it cannot be resumed", job->id);
        if (job->wish == JOB_GO_ON)
            return true;
        job->wish = JOB_GO_ON;
        return save_state(queue, job, JOB_RUNNING, err);
    case JOB_FAILED:
        job->strikes = 0;
        return replace_object(&job->error, NULL, err) && move(queue, job, JOB_QUEUED, err);
    case JOB_PAUSED:
        return move(queue, job, JOB_QUEUED, err);
    case JOB_QUEUED:
        return true;
    default:
        return refuse(job, "resumed", err);
    }
}

bool queue_cancel(struct queue *queue, const char *id, struct job *out, struct error *err) {
    return change(queue, id, cancel, out, err);
}

bool queue_pause(struct queue *queue, const char *id, struct job *out, struct error *err) {
    return change(queue, id, pause, out, err);
}

bool queue_resume(struct queue *queue, const char *id, struct job *out, struct error *err) {
    return change(queue, id, resume, out, err);
}

static bool erase(struct queue *queue, struct job *job, struct error *err) {
    if (job->state == JOB_RUNNING)
        return error_set(err, ERROR_CONFLICT,
            "job %s is running, so it cannot be deleted; cancel it first", job->id);
    if (!queue->store->ops->erase(queue->store, job->number, err))
        return false;
    forget(queue, job);
    return true;
}

bool queue_delete(struct queue *queue, const char *id, struct error *err) {
    struct job job;
    if (!change(queue, id, erase, &job, err))
        return false;
    job_finish(&job);
    return true;
}

/* --- Several jobs --- */

bool queue_list(
    struct queue *queue, const struct job_filter *filter, struct job_list *out, struct error *err) {
    struct job_filter one_more = *filter;
    if (filter->limit)
        one_more.limit++;
    pthread_mutex_lock(&queue->mutex);
    const bool ok = list_jobs(queue, &one_more, out, err);
    pthread_mutex_unlock(&queue->mutex);
    if (ok && filter->limit && out->count > filter->limit) {
        out->has_more = true;
        job_finish(&out->jobs[--out->count]);
    }
    return ok;
}

void job_list_finish(struct job_list *list) {
    for (int i = 0; i < list->count; i++)
        job_finish(&list->jobs[i]);
    free(list->jobs);
    memset(list, 0, sizeof(*list));
}

bool queue_events(struct queue *queue, const struct job *job, int64_t after, int limit,
    bool (*visit)(void *user, const struct job_event *event, struct error *err), void *user,
    struct error *err) {
    pthread_mutex_lock(&queue->mutex);
    const bool ok = queue->store->ops->list_events(
        queue->store, job->number, after, limit, visit, user, err);
    pthread_mutex_unlock(&queue->mutex);
    return ok;
}

/* --- Claims --- */

bool queue_claim(
    struct queue *queue, const char *type, struct job *out, bool *found, struct error *err) {
    pthread_mutex_lock(&queue->mutex);
    bool ok = queue->store->ops->find_next(queue->store, type, out, found, err);
    if (ok && *found) {
        out->attempts++;
        out->strikes++;
        ok = move(queue, out, JOB_RUNNING, err);
        if (!ok)
            job_finish(out);
    }
    pthread_mutex_unlock(&queue->mutex);
    return ok;
}

/* Locks the queue, also on failure. Finds the job and checks that this attempt still has it. */
static bool lock_claimed(
    struct queue *queue, const char *id, int attempt, struct job *out, struct error *err) {
    pthread_mutex_lock(&queue->mutex);
    if (!find(queue, id, out, err))
        return false;
    if (out->state == JOB_RUNNING && out->attempts == attempt)
        return true;
    error_set(err, ERROR_CONFLICT, "job %s is %s, and attempt %d at it is over", id,
        job_state_name(out->state), attempt);
    job_finish(out);
    return false;
}

static bool unlock_claimed(struct queue *queue, struct job *job, bool ok) {
    pthread_mutex_unlock(&queue->mutex);
    job_finish(job);
    return ok;
}

/* Returns {"step", "steps", "eta_s", "metrics"}, malloc'd. */
static char *report_data(const struct job *job) {
    json_t *json = json_pack("{s:I, s:I, s:o}", "step", (json_int_t)job->step, "steps",
        (json_int_t)job->steps, "eta_s", job->eta_s >= 0 ? json_real(job->eta_s) : json_null());
    if (json && job->metrics)
        json_object_set_new(json, "metrics", json_loads(job->metrics, 0, NULL));
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(json);
    return text;
}

bool queue_report(struct queue *queue, const char *id, int attempt, const struct job_report *report,
    struct error *err) {
    struct job job = { 0 };
    bool ok = lock_claimed(queue, id, attempt, &job, err);
    if (ok) {
        job.step = report->step;
        job.steps = report->steps;
        job.eta_s = report->eta_s;
        if (report->step > job.furthest) {
            job.furthest = report->step;
            job.strikes = 0;
        }
        add_time_at_work(&job);
        ok = replace_object(&job.metrics, report->metrics, err) &&
             save_with(queue, &job, JOB_RUNNING, "progress", report_data(&job), err);
    }
    return unlock_claimed(queue, &job, ok);
}

bool queue_add_event(struct queue *queue, const char *id, int attempt, const char *type,
    const char *data, struct error *err) {
    struct job job = { 0 };
    char *object;
    const bool ok = lock_claimed(queue, id, attempt, &job, err) &&
                    compact_object(data, &object, err) &&
                    save_with(queue, &job, JOB_RUNNING, type, object, err);
    return unlock_claimed(queue, &job, ok);
}

bool queue_add_strikes(
    struct queue *queue, const char *id, int attempt, int more, struct error *err) {
    struct job job = { 0 };
    bool ok = lock_claimed(queue, id, attempt, &job, err);
    if (ok) {
        job.strikes = job.strikes + more > 0 ? job.strikes + more : 0;
        ok = save(queue, &job, NULL, err);
    }
    return unlock_claimed(queue, &job, ok);
}

bool queue_succeed(
    struct queue *queue, const char *id, int attempt, const char *result, struct error *err) {
    struct job job = { 0 };
    bool ok = lock_claimed(queue, id, attempt, &job, err) &&
              replace_object(&job.result, result, err);
    if (ok) {
        /* The report of the last step may be missing: a job that was killed between its last
         * checkpoint and its end takes no more steps when it continues, and so reports none. */
        job.step = job.steps;
        ok = move(queue, &job, JOB_SUCCEEDED, err);
    }
    return unlock_claimed(queue, &job, ok);
}

bool queue_fail(
    struct queue *queue, const char *id, int attempt, const struct error *why, struct error *err) {
    struct job job = { 0 };
    const bool ok = lock_claimed(queue, id, attempt, &job, err) && fail(queue, &job, why, err);
    return unlock_claimed(queue, &job, ok);
}

bool queue_stopped(struct queue *queue, const char *id, int attempt, struct error *err) {
    struct job job = { 0 };
    bool ok = lock_claimed(queue, id, attempt, &job, err);
    if (ok) {
        job.strikes = 0;
        ok = move(queue, &job, state_after(job.wish), err);
    }
    return unlock_claimed(queue, &job, ok);
}

/* --- Listeners --- */

void queue_listen(struct queue *queue, struct queue_listener *listener) {
    pthread_mutex_lock(&queue->mutex);
    listener->next = queue->listeners;
    queue->listeners = listener;
    pthread_mutex_unlock(&queue->mutex);
}

void queue_unlisten(struct queue *queue, struct queue_listener *listener) {
    pthread_mutex_lock(&queue->mutex);
    struct queue_listener **at = &queue->listeners;
    while (*at && *at != listener)
        at = &(*at)->next;
    if (*at)
        *at = listener->next;
    pthread_mutex_unlock(&queue->mutex);
}
