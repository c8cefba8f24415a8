/* The jobs over HTTP: GET /jobs, GET and DELETE /jobs/{id}, GET /jobs/{id}/events, and POST
 * /jobs/{id}/cancel, /pause and /resume. A clerk thread reads and writes the queue while the
 * connection is suspended. The watch (server/later/job_watch.h) serves clients that wait for news
 * of a job. */
#include "base/monotonic.h"
#include "base/text/json.h"
#include "engine/adapters/adapters.h"
#include "engine/training_job/folder.h"
#include "server/http/query.h"
#include "server/http/respond.h"
#include "server/jobs/event_stream.h"
#include "server/jobs/jobs.h"
#include "server/later/job_watch.h"
#include "server/later/task.h"

#include <stdlib.h>
#include <string.h>

#define PREFIX "/jobs/"
#define ID_BYTES 64 /* longer than any id; longer texts are cut */
#define PAGE_DEFAULT 20

struct job_task {
    struct task task; /* the first member */
    struct queue *queue;
    const char *state_folder;  /* borrowed */
    struct adapters *adapters; /* NULL: no model was loaded yet */
    char id[ID_BYTES];         /* the job's id, or the `after` of a list */
    struct viewer viewer;
    job_change *change;
    struct job_filter filter;
    char type[ID_BYTES];
};

static struct job_task *task_of(struct task *task) {
    return (struct job_task *)task;
}

static void destroy(struct task *task) {
    free(task);
}

static struct job_task *new_task(const struct exchange *exchange) {
    struct job_task *t = calloc(1, sizeof(*t));
    if (t) {
        t->queue = exchange->server->options.queue;
        t->state_folder = exchange->server->options.state_folder;
        t->adapters = engine_get_adapters(exchange->server->options.engine);
        t->viewer = viewer_of(exchange);
    }
    return t;
}

static enum MHD_Result start(struct exchange *exchange, struct job_task *t,
    bool (*run)(struct task *task, struct error *err)) {
    return task_start((struct task *)t, exchange, exchange->server->clerks, run, destroy);
}

/* Reads the id from the path. A text that is too long to be an id is cut short, so no job is
 * found. */
static void read_id(const struct exchange *exchange, char id[ID_BYTES]) {
    size_t length;
    const char *piece = route_piece(exchange->route, exchange->target, &length);
    snprintf(id, ID_BYTES, "%.*s", (int)(length < ID_BYTES ? length : ID_BYTES - 1), piece);
}

/* --- On a clerk's thread --- */

static bool describe(struct task *task, struct error *err) {
    struct job_task *t = task_of(task);
    struct job job;
    if (!jobs_get(t->queue, t->id, &t->viewer, &job, err))
        return false;
    const bool ok = jobs_tell(task, &job, err);
    job_finish(&job);
    return ok;
}

static bool change_one(struct task *task, struct error *err) {
    struct job_task *t = task_of(task);
    struct job job;
    if (!jobs_get(t->queue, t->id, &t->viewer, &job, err))
        return false;
    job_finish(&job);
    if (!t->change(t->queue, t->id, &job, err))
        return false;
    const bool ok = jobs_tell(task, &job, err);
    job_finish(&job);
    return ok;
}

/* Deletes the job and its folder. An adapter that the job has written stays, because it no longer
 * belongs to the job. The answer names that adapter. */
static bool delete_one(struct task *task, struct error *err) {
    struct job_task *t = task_of(task);
    struct job job;
    if (!jobs_get(t->queue, t->id, &t->viewer, &job, err))
        return false;
    bool ok = queue_delete(t->queue, t->id, err);
    if (ok) {
        char *folder = job_folder_path(t->state_folder, job.id);
        json_t *result = job.result ? json_loads(job.result, 0, NULL) : NULL;
        json_t *adapter = json_object_get(result, "adapter");
        if (folder && t->adapters)
            adapters_forget(t->adapters, folder, false);
        if (folder)
            job_folder_remove(folder);
        free(folder);
        task->json = json_pack(
            "{s:s, s:b, s:{s:O?}}", "id", job.id, "deleted", true, "stays", "adapter", adapter);
        json_decref(result);
        ok = task->json;
    }
    job_finish(&job);
    return ok;
}

static bool add_summary(
    struct http_server *server, const struct job *job, json_t *list, struct error *err) {
    struct job_standing standing;
    return jobs_get_standing(server, job, &standing, err) &&
           json_array_append_new(list, job_summary_json(job, &standing)) == 0;
}

static bool list_some(struct task *task, struct error *err) {
    struct job_task *t = task_of(task);
    struct job_list list;
    struct job before;
    if (t->id[0]) {
        if (!jobs_get(t->queue, t->id, &t->viewer, &before, err))
            return err->code == ERROR_NOT_FOUND
                       ? error_field(err, "after", t->id, "the id of a job")
                       : false;
        t->filter.after = before.number;
        job_finish(&before);
    }
    t->filter.owner = t->viewer.sees_all ? NULL : t->viewer.name;
    if (!queue_list(t->queue, &t->filter, &list, err))
        return false;
    json_t *jobs = json_array();
    bool ok = jobs;
    for (int i = 0; ok && i < list.count; i++)
        ok = add_summary(task->deferred.server, &list.jobs[i], jobs, err);
    if (ok)
        task->json = json_pack("{s:O, s:b}", "jobs", jobs, "has_more", list.has_more);
    json_decref(jobs);
    job_list_finish(&list);
    return task->json;
}

/* --- GET /jobs/{id}?wait=S --- */

struct job_wait {
    struct deferred deferred; /* the first member */
    struct watcher watcher;
    int64_t deadline_ms;
    json_t *json; /* owned */
    struct error error;
};

/* Answers with the job if it has ended or is paused, if the time is up, or if the client has left
 * or the server is stopping. Otherwise keeps waiting. */
static bool look(struct watcher *watcher, bool stopping, int64_t *due_ms) {
    struct job_wait *wait = (struct job_wait *)watcher->deferred;
    struct queue *queue = wait->deferred.server->options.queue;
    struct job job;
    const bool gone = deferred_is_cancelled(&wait->deferred);
    bool ok = jobs_get(queue, watcher->id, &watcher->viewer, &job, &wait->error);
    const bool rests = ok && (job_state_is_end(job.state) || job.state == JOB_PAUSED);
    if (ok && !rests && !gone && !stopping && monotonic_ms() < wait->deadline_ms) {
        *due_ms = wait->deadline_ms;
        job_finish(&job);
        return true;
    }
    if (ok) {
        struct job_standing standing;
        ok = jobs_get_standing(wait->deferred.server, &job, &standing, &wait->error);
        wait->json = ok ? job_json(&job, &standing) : NULL;
        job_finish(&job);
    }
    deferred_done(&wait->deferred);
    return false;
}

static enum MHD_Result answer_wait(struct deferred *deferred, struct exchange *exchange) {
    struct job_wait *wait = (struct job_wait *)deferred;
    if (wait->error.code != ERROR_NONE)
        return respond_error(exchange, &wait->error);
    return respond_json(exchange, 200, json_incref(wait->json));
}

static void cancel_wait(struct deferred *deferred) {
    struct job_wait *wait = (struct job_wait *)deferred;
    job_watch_poke(deferred->server->job_watch, &wait->watcher);
}

static void destroy_wait(struct deferred *deferred) {
    struct job_wait *wait = (struct job_wait *)deferred;
    json_decref(wait->json);
    free(wait);
}

static enum MHD_Result start_wait(struct exchange *exchange, const char *id, long long seconds) {
    static const struct deferred_kind kind = {
        .answer = answer_wait, .cancel = cancel_wait, .destroy = destroy_wait
    };
    struct error err = { 0 };
    enum MHD_Result refused;
    struct job_wait *wait = calloc(1, sizeof(*wait));
    if (!deferred_begin((struct deferred *)wait, &kind, exchange, &refused))
        return refused;
    snprintf(wait->watcher.id, sizeof(wait->watcher.id), "%s", id);
    wait->watcher.caller = caller_of(exchange);
    wait->watcher.viewer = viewer_of(exchange);
    wait->watcher.look = look;
    wait->deadline_ms = monotonic_ms() + seconds * 1000;
    if (deferred_watch(&wait->deferred, &wait->watcher, &err))
        return deferred_wait(&wait->deferred, exchange);
    deferred_unref(&wait->deferred);
    return respond_error(exchange, &err);
}

/* --- The methods --- */

static bool parse_states(const char *text, unsigned *out, struct error *err) {
    char word[32];
    for (const char *at = text;; at++) {
        const size_t length = strcspn(at, ",");
        enum job_state state;
        snprintf(word, sizeof(word), "%.*s", (int)(length < 31 ? length : 31), at);
        if (!job_state_from_name(word, &state))
            return error_field(err, "state", word,
                "queued, running, paused, succeeded, failed or cancelled, or several with commas");
        *out |= 1u << state;
        at += length;
        if (!*at)
            return true;
    }
}

static enum MHD_Result handle_list(struct exchange *exchange) {
    struct query_field fields[] = { { "state" }, { "type" }, { "limit" }, { "after" } };
    struct error err = { 0 };
    unsigned states = 0;
    long long limit = PAGE_DEFAULT;
    if (!query_parse(exchange->target, fields, 4, &err) ||
        (fields[0].given && !parse_states(fields[0].value, &states, &err)) ||
        !query_integer(&fields[2], 1, JOBS_PAGE_MAX, &limit, &err))
        return respond_error(exchange, &err);
    struct job_task *t = new_task(exchange);
    if (t) {
        snprintf(t->id, sizeof(t->id), "%.*s", ID_BYTES - 1, fields[3].value);
        snprintf(t->type, sizeof(t->type), "%.*s", ID_BYTES - 1, fields[1].value);
        t->filter = (struct job_filter){ .states = states,
            .type = fields[1].given ? t->type : NULL,
            .newest_first = true,
            .limit = (int)limit };
    }
    return start(exchange, t, list_some);
}

static enum MHD_Result handle_get(struct exchange *exchange) {
    struct query_field wait = { "wait" };
    struct error err = { 0 };
    long long seconds = 0;
    char id[ID_BYTES];
    if (!query_parse(exchange->target, &wait, 1, &err) ||
        !query_integer(&wait, 0, JOB_WAIT_MAX_S, &seconds, &err))
        return respond_error(exchange, &err);
    read_id(exchange, id);
    if (seconds > 0)
        return start_wait(exchange, id, seconds);
    struct job_task *t = new_task(exchange);
    if (t)
        memcpy(t->id, id, sizeof(t->id));
    return start(exchange, t, describe);
}

/* Starts a method that takes neither a query nor a body. `change` NULL: deletes the job. */
static enum MHD_Result start_change(struct exchange *exchange, job_change *change) {
    struct error err = { 0 };
    if (!query_none(exchange->target, &err))
        return respond_error(exchange, &err);
    struct job_task *t = new_task(exchange);
    if (t) {
        read_id(exchange, t->id);
        t->change = change;
    }
    return start(exchange, t, change ? change_one : delete_one);
}

static enum MHD_Result handle_delete(struct exchange *exchange) {
    return start_change(exchange, NULL);
}

static enum MHD_Result handle_change(struct exchange *exchange) {
    return start_change(exchange, jobs_change_of(exchange->route));
}

/* An EventSource that reconnects sends the last event it has seen in a header, Last-Event-ID. Other
 * clients use the query. */
static enum MHD_Result handle_events(struct exchange *exchange) {
    struct query_field after = { "after" };
    struct error err = { 0 };
    long long number = -1;
    char id[ID_BYTES];
    if (!query_parse(exchange->target, &after, 1, &err))
        return respond_error(exchange, &err);
    const char *header = exchange_header(exchange, "Last-Event-ID");
    if (header && header[0]) {
        after = (struct query_field){ "Last-Event-ID", .given = true };
        snprintf(after.value, sizeof(after.value), "%s", header);
    }
    if (!query_integer(&after, 0, INT64_MAX, &number, &err))
        return respond_error(exchange, &err);
    read_id(exchange, id);
    return event_stream_start(exchange, id, number);
}

const struct route route_jobs = { .path = "/jobs",
    .methods = { { "GET", .may_come = jobs_are_kept, .handle = handle_list,
        .about = "lists the caller's jobs, newest first",
        .returns = "{jobs: [Job], has_more: boolean}",
        .query = "state type limit:integer after" } } };

const struct route route_job_events = { .path = PREFIX,
    .piece = "id",
    .suffix = "/events",
    .methods = { { "GET", .may_come = jobs_are_kept, .handle = handle_events,
        .about = "the events of a job, as server-sent events", .query = "after:integer",
        .answers = "text/event-stream", .returns = "200; 204" } } };

const struct route route_job_cancel = { .path = PREFIX,
    .piece = "id",
    .suffix = "/cancel",
    .methods = { { "POST", .may_come = jobs_are_kept, .handle = handle_change,
        .about = "cancels a job; a running one stops at its next step", .returns = "Job" } } };

const struct route route_job_pause = { .path = PREFIX,
    .piece = "id",
    .suffix = "/pause",
    .methods = { { "POST", .may_come = jobs_are_kept, .handle = handle_change,
        .about = "pauses a job; a running one stops at its next step", .returns = "Job" } } };

const struct route route_job_resume = { .path = PREFIX,
    .piece = "id",
    .suffix = "/resume",
    .methods = { { "POST", .may_come = jobs_are_kept, .handle = handle_change,
        .about = "continues a paused job, or tries a failed one again", .returns = "Job" } } };

const struct route route_job = { .path = PREFIX,
    .piece = "id",
    .is_prefix = true,
    .methods = { { "GET", .may_come = jobs_are_kept, .handle = handle_get,
                     .about = "a job; with wait, the answer comes when the job has ended",
                     .query = "wait:integer", .returns = "Job" },
        { "DELETE", .may_come = jobs_are_kept, .handle = handle_delete,
            .about = "deletes a job and its files",
            .returns = "{id: string, deleted: boolean, stays: {adapter: string|null}}" } } };
