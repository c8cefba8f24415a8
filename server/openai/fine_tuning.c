/* OpenAI's /v1/fine_tuning/jobs for training jobs (docs/jobs.md). A clerk thread reads and writes
 * the queue; a loader thread reads a job's folder. */
#include "base/random.h"
#include "server/openai/fine_tuning_json.h"

#include "base/text/json.h"
#include "engine/training_job/folder.h"
#include "server/http/query.h"
#include "server/http/respond.h"
#include "server/jobs/jobs.h"
#include "server/later/reading.h"
#include "server/later/task.h"
#include "server/openai/metadata_filter.h"
#include "server/training/train_order.h"

#include <stdlib.h>
#include <string.h>

#define PREFIX "/v1/fine_tuning/jobs/"
#define ID_BYTES 64 /* longer than any id; longer texts are cut */
#define LIMIT_MAX 100

struct tuning_task {
    struct task task; /* the first member */
    struct train_order order;
    json_t *body; /* owned; NULL: not an order */
    json_t *config;
    struct queue *queue;
    struct metadata_filter filter; /* owned: of a list */
    const char *state_folder;
    char model[256];
    char id[ID_BYTES], after[2 * ID_BYTES]; /* the job; the item before a page */
    struct viewer viewer;
    int limit;
    job_change *change;
};

static struct tuning_task *task_of(struct task *task) {
    return (struct tuning_task *)task;
}

static void destroy(struct task *task) {
    json_decref(task_of(task)->body);
    json_decref(task_of(task)->config);
    metadata_filter_finish(&task_of(task)->filter);
    free(task);
}

/* --- On a clerk's thread --- */

static bool no_such_job(const char *id, struct error *err) {
    return error_set(err, ERROR_NOT_FOUND, "there is no fine-tuning job %s", id);
}

/* Finds the job; jobs that are not training jobs are not found. */
static bool get(const struct tuning_task *t, struct job *job, struct error *err) {
    const char *id = fine_tuning_job_of(t->id);
    if (!id || !jobs_get(t->queue, id, &t->viewer, job, err))
        return (id && err && err->code != ERROR_NOT_FOUND) ? false : no_such_job(t->id, err);
    if (strcmp(job->type, JOB_TYPE_TRAIN) == 0)
        return true;
    job_finish(job);
    return no_such_job(t->id, err);
}

static bool tell(struct tuning_task *t, struct job *job) {
    t->task.json = fine_tuning_job_json(job, t->model);
    job_finish(job);
    return t->task.json;
}

static bool describe(struct task *task, struct error *err) {
    struct job job;
    return get(task_of(task), &job, err) && tell(task_of(task), &job);
}

static bool change_one(struct task *task, struct error *err) {
    struct tuning_task *t = task_of(task);
    struct job job, changed;
    if (!get(t, &job, err))
        return false;
    const bool ok = t->change(t->queue, job.id, &changed, err);
    job_finish(&job);
    return ok && tell(t, &changed);
}

static bool enqueue(struct task *task, struct error *err) {
    struct tuning_task *t = task_of(task);
    struct job job;
    if (train_order_place(&t->order, t->body, t->config, &job, err))
        return tell(t, &job);
    fine_tuning_rename(err);
    return false;
}

/* Answers {"object": "list", "data", "has_more"}. Takes over `items`. */
static bool tell_list(struct tuning_task *t, json_t *items, bool has_more) {
    t->task.json = json_pack(
        "{s:s, s:o, s:b}", "object", "list", "data", items, "has_more", has_more);
    return t->task.json;
}

static bool wrong_after(const struct tuning_task *t, const char *what, struct error *err) {
    return error_field(err, "after", t->after, "the id of %s", what);
}

/* Adds a page of jobs to `items`. */
static bool add_jobs(const struct tuning_task *t, const struct job_filter *filter, json_t *items,
    bool *has_more, struct error *err) {
    struct job_list list;
    if (!queue_list(t->queue, filter, &list, err))
        return false;
    bool ok = true;
    for (int i = 0; ok && i < list.count; i++)
        ok = json_array_append_new(items, fine_tuning_job_json(&list.jobs[i], t->model)) == 0;
    *has_more = list.has_more;
    job_list_finish(&list);
    return ok;
}

static bool list_jobs(struct task *task, struct error *err) {
    struct tuning_task *t = task_of(task);
    struct job_filter filter = { .type = JOB_TYPE_TRAIN,
        .owner = t->viewer.sees_all ? NULL : t->viewer.name,
        .newest_first = true,
        .limit = t->limit };
    struct job before;
    if (t->after[0]) {
        const char *id = fine_tuning_job_of(t->after);
        if (!id || !jobs_get(t->queue, id, &t->viewer, &before, err))
            return id && err->code != ERROR_NOT_FOUND ? false : wrong_after(t, "a job", err);
        filter.after = before.number;
        job_finish(&before);
    }
    char *wanted = t->filter.wanted ? json_dumps(t->filter.wanted, JSON_COMPACT) : NULL;
    filter.body = (struct job_body_filter){ "$.metadata", wanted, t->filter.none };
    json_t *items = json_array();
    bool has_more = false;
    const bool ok = items && !t->filter.wanted == !wanted &&
                    add_jobs(t, &filter, items, &has_more, err);
    free(wanted);
    if (ok)
        return tell_list(t, items, has_more);
    json_decref(items);
    return false;
}

struct page {
    const struct job *job;
    json_t *items; /* oldest first */
    int64_t first; /* number of the oldest; 0: none */
};

static bool add_event(void *user, const struct job_event *event, struct error *err) {
    struct page *page = user;
    if (page->first == 0)
        page->first = event->number;
    return json_array_append_new(page->items, fine_tuning_event_json(page->job, event)) == 0 ||
           error_set(err, ERROR_NO_MEMORY, "no memory for events");
}

static bool turn_round(const json_t *items, json_t *out) {
    bool ok = out;
    for (size_t i = json_array_size(items); ok && i-- > 0;)
        ok = json_array_append(out, json_array_get(items, i)) == 0;
    return ok;
}

/* Lists a page of events, newest first: those with the highest numbers below the event `after`. */
static bool list_events(struct task *task, struct error *err) {
    struct tuning_task *t = task_of(task);
    struct job job;
    if (!get(t, &job, err))
        return false;
    const int64_t end = t->after[0] ? fine_tuning_number_of(t->after, "ft-event-", job.id)
                                    : job.events + 1;
    const int64_t begin = end - t->limit > 1 ? end - t->limit : 1;
    struct page page = { &job, json_array(), 0 }, older = { &job, json_array(), 0 };
    json_t *items = json_array();
    bool ok = (end > 0 || wrong_after(t, "an event of the job", err)) && page.items && older.items;
    if (ok && begin < end)
        ok = queue_events(t->queue, &job, begin - 1, (int)(end - begin), add_event, &page, err);
    if (ok && page.first > 1) /* an older event may be deleted already */
        ok = queue_events(t->queue, &job, page.first - 2, 1, add_event, &older, err);
    ok = ok && turn_round(page.items, items);
    if (ok)
        ok = tell_list(t, json_incref(items), older.first > 0 && older.first < page.first);
    json_decref(items);
    json_decref(older.items);
    json_decref(page.items);
    job_finish(&job);
    return ok;
}

/* Lists a page of checkpoints, newest first. */
static bool page_checkpoints(
    struct tuning_task *t, const struct job *job, const json_t *all, struct error *err) {
    const int64_t before = t->after[0] ? fine_tuning_number_of(t->after, "ftckpt-", job->id)
                                       : INT64_MAX;
    json_t *items = json_array();
    bool has_more = false;
    if (before < 0 || !items) {
        json_decref(items);
        return before < 0 && wrong_after(t, "a checkpoint of the job", err);
    }
    for (size_t i = json_array_size(all); !has_more && i-- > 0;) {
        const json_t *one = json_array_get(all, i);
        if (json_integer_value(json_object_get(one, "step")) >= before ||
            !json_is_string(json_object_get(one, "adapter")))
            continue;
        if (json_array_size(items) < (size_t)t->limit)
            json_array_append_new(items, fine_tuning_checkpoint_json(job, one, t->model));
        else
            has_more = true;
    }
    const size_t count = json_array_size(items);
    json_t *first = json_object_get(json_array_get(items, 0), "id");
    json_t *last = count ? json_object_get(json_array_get(items, count - 1), "id") : NULL;
    t->task.json = json_pack("{s:s, s:O, s:b, s:O?, s:O?}", "object", "list", "data", items,
        "has_more", has_more, "first_id", first, "last_id", last);
    json_decref(items);
    return t->task.json;
}

static bool list_checkpoints(struct task *task, struct error *err) {
    struct tuning_task *t = task_of(task);
    struct job job;
    json_t *all = NULL;
    if (!get(t, &job, err))
        return false;
    char *folder = job_folder_path(t->state_folder, job.id);
    const bool ok = folder && job_folder_checkpoints(folder, &all, err) &&
                    page_checkpoints(t, &job, all, err);
    free(folder);
    json_decref(all);
    job_finish(&job);
    return ok;
}

/* --- The request --- */

static bool may_order(const struct exchange *exchange, struct error *err) {
    return train_order_may_come(exchange, err) && server_takes(exchange->server, err);
}

static struct tuning_task *new_task(const struct exchange *exchange) {
    struct tuning_task *t = calloc(1, sizeof(*t));
    size_t length;
    if (!t)
        return NULL;
    t->queue = exchange->server->options.queue;
    t->viewer = viewer_of(exchange);
    t->state_folder = exchange->server->options.state_folder;
    snprintf(t->model, sizeof(t->model), "%s", openai_models_of(exchange).loaded);
    if (exchange->route->is_prefix || exchange->route->suffix) {
        const char *piece = route_piece(exchange->route, exchange->target, &length);
        snprintf(t->id, ID_BYTES, "%.*s", (int)(length < ID_BYTES ? length : ID_BYTES - 1), piece);
    }
    return t;
}

static enum MHD_Result start(struct exchange *exchange, struct workers *workers,
    bool (*run)(struct task *task, struct error *err)) {
    struct error err = { 0 };
    if (!openai_query_none(exchange->target, &err))
        return respond_error(exchange, &err);
    return task_start((struct task *)new_task(exchange), exchange, workers, run, destroy);
}

/* `target` is the exchange's, without a filter. Takes over the contents of `filter` (NULL: none).
 */
static enum MHD_Result start_page_of(struct exchange *exchange, const char *target,
    struct metadata_filter *filter, struct workers *workers,
    bool (*run)(struct task *task, struct error *err), int limit) {
    struct query_field fields[] = { { "after" }, { "limit" }, { OPENAI_API_VERSION } };
    struct error err = { 0 };
    long long wanted = limit;
    struct tuning_task *t = NULL;
    const bool ok = query_parse(target, fields, 3, &err) &&
                    query_integer(&fields[1], 1, LIMIT_MAX, &wanted, &err);
    if (ok && (t = new_task(exchange)) && filter)
        t->filter = *filter;
    else if (filter)
        metadata_filter_finish(filter);
    if (!ok)
        return respond_error(exchange, &err);
    if (t) {
        t->limit = (int)wanted;
        snprintf(t->after, sizeof(t->after), "%.*s", (int)sizeof(t->after) - 1, fields[0].value);
    }
    return task_start((struct task *)t, exchange, workers, run, destroy);
}

static enum MHD_Result start_page(struct exchange *exchange, struct workers *workers,
    bool (*run)(struct task *task, struct error *err), int limit) {
    return start_page_of(exchange, exchange->target, NULL, workers, run, limit);
}

/* Gives the order a random key if the client sent none: the queue stores a body only with a key,
 * and the body contains the metadata. */
static bool give_key(struct train_order *order) {
    static const char prefix[] = "fine-tuning-";
    if (order->key[0])
        return true;
    memcpy(order->key, prefix, sizeof(prefix));
    return random_text(order->key + strlen(prefix), 16, NULL);
}

struct read_order {
    json_t *body, *config; /* owned */
};

static bool read_order(const struct exchange *exchange, void *out, struct error *err) {
    struct read_order *order = out;
    const struct openai_models models = openai_models_of(exchange);
    order->body = json_parse_request(exchange->body, exchange->body_size, err);
    order->config = order->body ? fine_tuning_config(order->body, &models, err) : NULL;
    if (!order->config)
        json_decref(order->body);
    return order->config;
}

static void finish_order(void *read) {
    json_decref(((struct read_order *)read)->body);
    json_decref(((struct read_order *)read)->config);
}

static enum MHD_Result start_order(struct exchange *exchange, void *read) {
    struct read_order *order = read;
    struct error err = { 0 };
    struct tuning_task *t = new_task(exchange);
    if (t) {
        train_order_init(&t->order, exchange);
        t->body = order->body;
        t->config = order->config;
        if (give_key(&t->order))
            return task_start(&t->task, exchange, exchange->server->clerks, enqueue, destroy);
        destroy(&t->task);
        error_set(&err, ERROR_IO, "the system gives no random key");
        return respond_error(exchange, &err);
    }
    finish_order(order);
    return task_start(NULL, exchange, NULL, enqueue, destroy);
}

static enum MHD_Result handle_create(struct exchange *exchange) {
    static const struct reading_kind kind = {
        .size = sizeof(struct read_order),
        .read = read_order,
        .handle = start_order,
        .finish = finish_order,
    };
    return reading_start(exchange, &kind);
}

static enum MHD_Result handle_list(struct exchange *exchange) {
    struct metadata_filter filter;
    struct error err = { 0 };
    enum MHD_Result answered;
    char *rest;
    if (metadata_filter_take(exchange->target, &filter, &rest, &err)) {
        answered = start_page_of(exchange, rest, &filter, exchange->server->clerks, list_jobs, 20);
    } else {
        metadata_filter_finish(&filter);
        answered = respond_error(exchange, &err);
    }
    free(rest);
    return answered;
}

static enum MHD_Result handle_get(struct exchange *exchange) {
    return start(exchange, exchange->server->clerks, describe);
}

static enum MHD_Result handle_events(struct exchange *exchange) {
    return start_page(exchange, exchange->server->clerks, list_events, 20);
}

static enum MHD_Result handle_checkpoints(struct exchange *exchange) {
    return start_page(exchange, exchange->server->loaders, list_checkpoints, 10);
}

static enum MHD_Result handle_change(struct exchange *exchange) {
    struct error err = { 0 };
    if (!openai_query_none(exchange->target, &err))
        return respond_error(exchange, &err);
    struct tuning_task *t = new_task(exchange);
    if (t)
        t->change = jobs_change_of(exchange->route);
    return task_start((struct task *)t, exchange, exchange->server->clerks, change_one, destroy);
}

const struct route route_openai_tunings = { .path = "/v1/fine_tuning/jobs",
    .dialect = &dialect_openai,
    .methods = { { "POST", content_types_json, may_order, handle_create, .large = true,
                     .about = "orders a training job",
                     .takes = "{model: string, training_file: string, suffix?: string|null, "
                              "seed?: integer|null, method?: {type: 'supervised', "
                              "supervised?: {hyperparameters?: object|null}}|null, "
                              "hyperparameters?: object|null, metadata?: {*: string}|null, "
                              "validation_file?: null, integrations?: [object]|null}",
                     .returns = "FineTuningJob" },
        { "GET", .may_come = jobs_are_kept, .handle = handle_list,
            .about = "lists the caller's training jobs, newest first",
            .returns = "{object: 'list', data: [FineTuningJob], has_more: boolean}",
            .query = "after limit:integer" } } };

#define ROUTE(name, suffix_, method, handler, ...)                                                 \
    const struct route name = { .path = PREFIX,                                                    \
        .suffix = suffix_,                                                                         \
        .piece = "id",                                                                             \
        .dialect = &dialect_openai,                                                                \
        .methods = { { method, .may_come = jobs_are_kept, .handle = handler, __VA_ARGS__ } } }

ROUTE(route_openai_tuning_events, "/events", "GET", handle_events,
    .about = "lists a job's events, newest first",
    .returns = "{object: 'list', data: [FineTuningEvent], has_more: boolean}",
    .query = "after limit:integer");
ROUTE(route_openai_tuning_checkpoints, "/checkpoints", "GET", handle_checkpoints,
    .about = "lists a job's checkpoints, newest first",
    .returns = "{object: 'list', data: [FineTuningCheckpoint], has_more: boolean, "
               "first_id: string|null, last_id: string|null}",
    .query = "after limit:integer");
/* A body is optional: OpenAI's package sends Content-Type: application/json without a body. */
static const char *const content_types_none[] = { "application/json", "", NULL };

#define CHANGE(name, suffix_, about_)                                                              \
    const struct route name = { .path = PREFIX,                                                    \
        .suffix = suffix_,                                                                         \
        .piece = "id",                                                                             \
        .dialect = &dialect_openai,                                                                \
        .methods = { { "POST", content_types_none, jobs_are_kept, handle_change, .about = about_,  \
            .takes = "{...}", .returns = "FineTuningJob" } } }

CHANGE(route_openai_tuning_cancel, "/cancel", "cancels a job");
CHANGE(route_openai_tuning_pause, "/pause", "pauses a job");
CHANGE(route_openai_tuning_resume, "/resume", "resumes a job");

const struct route route_openai_tuning = { .path = PREFIX,
    .is_prefix = true,
    .piece = "id",
    .dialect = &dialect_openai,
    .methods = { { "GET", .may_come = jobs_are_kept, .handle = handle_get,
        .about = "a training job", .returns = "FineTuningJob" } } };
