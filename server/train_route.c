/* POST /train: a job for who trains (queue/dispatcher.h), written down before it is answered. */
#include "base/json.h"
#include "engine/switch.h"
#include "queue/dispatcher.h"
#include "server/http/respond.h"
#include "server/http/route.h"
#include "server/job_routes.h"
#include "server/task.h"
#include "train/config.h"

#include <stdlib.h>
#include <string.h>

#define TYPE "train"

struct order_task {
    struct task task; /* the first member */
    struct queue *queue;
    struct engine *engine;
    const struct job_runner *runner;
    char *body; /* owned, as it came */
    size_t body_size;
    char key[JOB_KEY_MAX_BYTES + 1]; /* "": none */
};

static void destroy(struct task *task) {
    free(((struct order_task *)task)->body);
    free(task);
}

static char *dump(const json_t *json, size_t flags, struct error *err) {
    char *text = json ? json_dumps(json, JSON_COMPACT | flags) : NULL;
    if (!text)
        error_set(err, ERROR_NO_MEMORY, "not enough memory for the request");
    return text;
}

/* All that is said in the body, and what it leaves to us: its seed too is decided now, so that the
 * job is the same however often it is begun; and its checkpoint, where that may change meanwhile.
 */
static char *resolve(struct engine *engine, const json_t *body, struct error *err) {
    struct train_config config;
    struct pipeline_info info;
    if (!train_config_parse(body, &config, err))
        return NULL;
    const bool may_change = !config.model && engine_has_models(engine) &&
                            engine_get_info(engine, &info) && info.model_name;
    if (may_change && !(config.model = strdup(info.model_name))) {
        train_config_finish(&config);
        error_set(err, ERROR_NO_MEMORY, "not enough memory for the request");
        return NULL;
    }
    json_t *json = train_config_to_json(&config);
    train_config_finish(&config);
    char *text = dump(json, JSON_REAL_PRECISION(17), err);
    json_decref(json);
    return text;
}

/* The adapter's name that a job will want, a new reference; NULL for one that makes a model. */
static json_t *adapter_name(const char *request) {
    json_t *json = json_loads(request, 0, NULL), *name = NULL;
    const char *method = json_string_value(json_object_get(json, "method"));
    if (method && strcmp(method, "lora") == 0)
        name = json_incref(json_object_get(json, "name"));
    json_decref(json);
    return name;
}

/* Of two jobs that make an adapter of one name the second could only end with nothing. Clerks are
 * one thread, so that nobody comes between this and what follows. */
static bool name_is_free(const struct order_task *t, const char *request, struct error *err) {
    const struct job_filter waiting = {
        .states = 1u << JOB_QUEUED | 1u << JOB_RUNNING | 1u << JOB_PAUSED, .type = TYPE
    };
    struct job_list list = { 0 };
    json_t *name = adapter_name(request);
    bool ok = !name || queue_list(t->queue, &waiting, &list, err);
    for (int i = 0; ok && i < list.count; i++) {
        json_t *other = adapter_name(list.jobs[i].request);
        if (other && json_equal(name, other)) {
            ok = error_field(err, "name", json_string_value(name),
                "a name that no other job has: %s makes an adapter of that name", list.jobs[i].id);
            if (err)
                err->code = ERROR_CONFLICT;
        }
        json_decref(other);
    }
    job_list_finish(&list);
    json_decref(name);
    return ok;
}

static bool make(const struct order_task *t, const json_t *body, struct job_order *order,
    struct job *job, struct error *err) {
    bool known;
    char *request = resolve(t->engine, body, err);
    order->request = request;
    const bool ok = request && t->runner->check(t->runner->user, request, err) &&
                    name_is_free(t, request, err) &&
                    queue_enqueue(t->queue, order, job, &known, err);
    free(request);
    return ok;
}

/* The job of the request: the one that it was when it came before, or a new one. */
static bool find_or_make(
    const struct order_task *t, const json_t *body, struct job *job, struct error *err) {
    struct job_order order = { .type = TYPE };
    bool known = false;
    char *canonical = NULL; /* the same however it was written */
    if (t->key[0]) {
        canonical = dump(body, JSON_SORT_KEYS | JSON_ENCODE_ANY, err);
        if (!canonical)
            return false;
        order.key = t->key;
        order.body = canonical;
    }
    const bool ok = queue_find_known(t->queue, &order, job, &known, err) &&
                    (known || make(t, body, &order, job, err));
    free(canonical);
    return ok;
}

static bool enqueue(struct task *task, struct error *err) {
    struct order_task *t = (struct order_task *)task;
    struct job job;
    json_t *body = json_parse(t->body, t->body_size, err);
    if (!body)
        return false;
    bool ok = find_or_make(t, body, &job, err);
    json_decref(body);
    if (!ok)
        return false;
    task->status = 202;
    ok = jobs_tell(task, t->queue, &job, err);
    job_finish(&job);
    return ok;
}

static const struct job_runner *find_runner(const struct exchange *exchange) {
    return dispatcher_find(exchange->server->options.dispatcher, TYPE);
}

static bool early(struct exchange *exchange, enum MHD_Result *answered) {
    struct error err = { 0 };
    char bytes[32];
    const char *query = strchr(exchange->target, '?');
    char key[JOB_KEY_MAX_BYTES + 1];
    bool ok = jobs_are_kept(exchange, &err);
    if (ok && !find_runner(exchange))
        ok = error_set(&err, ERROR_UNSUPPORTED,
            "this daemon does not train; start it with --dataset-root FOLDER");
    if (ok && query)
        ok = error_field(&err, "query", query, "no query here");
    ok = ok && jobs_read_key(exchange, key, &err);
    if (ok && exchange->body_bytes > JOB_REQUEST_MAX_BYTES) {
        snprintf(bytes, sizeof(bytes), "%llu bytes", (unsigned long long)exchange->body_bytes);
        ok = error_field(&err, "body", bytes, "at most %u bytes", JOB_REQUEST_MAX_BYTES);
        err.code = ERROR_TOO_LARGE;
    }
    if (ok)
        return false;
    *answered = respond_error(exchange, &err);
    return true;
}

static enum MHD_Result handle(struct exchange *exchange) {
    struct order_task *t = calloc(1, sizeof(*t));
    char *body = t ? malloc(exchange->body_size + 1) : NULL;
    if (body) {
        if (exchange->body_size > 0)
            memcpy(body, exchange->body, exchange->body_size);
        body[exchange->body_size] = 0;
        t->body = body;
        t->body_size = exchange->body_size;
        t->queue = exchange->server->options.queue;
        t->engine = exchange->server->options.engine;
        t->runner = find_runner(exchange);
        if (!jobs_read_key(exchange, t->key, NULL))
            t->key[0] = 0; /* it was refused early */
    } else {
        free(t);
        t = NULL;
    }
    return task_start((struct task *)t, exchange, exchange->server->clerks, enqueue, destroy);
}

const struct route route_train = { .path = "/train",
    .methods = { { "POST", content_types_json, early, handle, .about = "trains, as a job",
        .schema = train_config_schema } } };
