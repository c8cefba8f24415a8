#include "server/training/train_order.h"

#include "base/text/json.h"
#include "engine/loop/switch.h"
#include "models/adapter/adapter_file_name.h"
#include "server/http/query.h"
#include "server/jobs/jobs.h"
#include "train/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *dump(const json_t *json, size_t flags, struct error *err) {
    char *text = json ? json_dumps(json, JSON_COMPACT | flags) : NULL;
    if (!text)
        error_set(err, ERROR_NO_MEMORY, "no memory for the request");
    return text;
}

/* Returns the complete request of the job, with the defaults of fields that the client did not set.
 * The seed is chosen here, so that every attempt of the job trains the same. The checkpoint is
 * stored too if a switch could change it before the job runs. */
static char *resolve(struct engine *engine, const json_t *body, struct error *err) {
    struct train_config config;
    struct pipeline_info info;
    if (!train_config_parse(body, &config, err))
        return NULL;
    const bool may_change = !config.model && engine_has_models(engine) &&
                            engine_get_info(engine, &info) && info.model_name;
    if (may_change && !(config.model = strdup(info.model_name))) {
        train_config_finish(&config);
        error_set(err, ERROR_NO_MEMORY, "no memory for the request");
        return NULL;
    }
    json_t *json = train_config_to_json(&config);
    train_config_finish(&config);
    char *text = dump(json, JSON_REAL_PRECISION(17), err);
    json_decref(json);
    return text;
}

/* Returns the name of the adapter that a job will make, a new reference; NULL if it makes a whole
 * model. */
static json_t *adapter_name(const char *request) {
    json_t *json = json_loads(request, 0, NULL), *name = NULL;
    const char *method = json_string_value(json_object_get(json, "method"));
    if (method && strcmp(method, "lora") == 0)
        name = json_incref(json_object_get(json, "name"));
    json_decref(json);
    return name;
}

/* Whether a file system could take the two names for one. */
static bool names_meet(const json_t *a, const json_t *b) {
    char *one = adapter_name_fold(json_string_value(a));
    char *two = adapter_name_fold(json_string_value(b));
    const bool meet = one && two ? strcmp(one, two) == 0 : json_equal(a, b);
    free(one);
    free(two);
    return meet;
}

/* Refuses the job if another job makes an adapter of the same name, because the second one could
 * not be stored. There is only one clerk thread, so no other job is added between this check and
 * the enqueue. */
static bool name_is_free(const struct train_order *order, const char *request, struct error *err) {
    const struct job_filter waiting = {
        .states = 1u << JOB_QUEUED | 1u << JOB_RUNNING | 1u << JOB_PAUSED, .type = JOB_TYPE_TRAIN
    };
    struct job_list list = { 0 };
    json_t *name = adapter_name(request);
    bool ok = !name || queue_list(order->queue, &waiting, &list, err);
    for (int i = 0; ok && i < list.count; i++) {
        json_t *other = adapter_name(list.jobs[i].request);
        if (other && names_meet(name, other)) {
            ok = error_field(err, "name", json_string_value(name),
                "a name that no other job has: %s makes an adapter of that name",
                viewer_sees(&order->viewer, list.jobs[i].owner) ? list.jobs[i].id
                                                                : "a job of another caller");
            if (err)
                err->code = ERROR_CONFLICT;
        }
        json_decref(other);
    }
    job_list_finish(&list);
    json_decref(name);
    return ok;
}

static bool make(const struct train_order *order, const json_t *config, struct job_order *job_order,
    struct job *job, struct error *err) {
    bool known;
    char *request = resolve(order->engine, config, err);
    job_order->request = request;
    const bool ok = request && order->runner->check(order->runner->user, request, err) &&
                    name_is_free(order, request, err) &&
                    queue_enqueue(order->queue, job_order, job, &known, err);
    free(request);
    return ok;
}

bool train_order_place(const struct train_order *order, const json_t *body, const json_t *config,
    struct job *job, struct error *err) {
    struct job_order job_order = {
        .type = JOB_TYPE_TRAIN, .owner = order->viewer.name, .caller = order->caller.text
    };
    bool known = false;
    char *canonical = NULL; /* equal for equal JSON, however written */
    if (order->key[0]) {
        canonical = dump(body, JSON_SORT_KEYS | JSON_ENCODE_ANY, err);
        if (!canonical)
            return false;
        job_order.key = order->key;
        job_order.body = canonical;
    }
    const bool ok = queue_find_known(order->queue, &job_order, job, &known, err) &&
                    (known || make(order, config, &job_order, job, err));
    free(canonical);
    return ok;
}

static const struct job_runner *find_runner(const struct exchange *exchange) {
    return dispatcher_find(exchange->server->options.dispatcher, JOB_TYPE_TRAIN);
}

bool train_order_may_come(const struct exchange *exchange, struct error *err) {
    char bytes[32];
    char key[JOB_KEY_MAX_BYTES + 1];
    if (!jobs_are_kept(exchange, err))
        return false;
    if (!find_runner(exchange))
        return error_set(err, ERROR_UNSUPPORTED,
            "this daemon does not train; start it with --dataset-root FOLDER");
    if (!query_none(exchange->target, err) || !jobs_read_key(exchange, key, err))
        return false;
    if (exchange->body_bytes <= JOB_REQUEST_MAX_BYTES)
        return true;
    snprintf(bytes, sizeof(bytes), "%llu bytes", (unsigned long long)exchange->body_bytes);
    error_field(err, "body", bytes, "at most %u bytes", JOB_REQUEST_MAX_BYTES);
    err->code = ERROR_TOO_LARGE;
    return false;
}

void train_order_init(struct train_order *order, const struct exchange *exchange) {
    order->queue = exchange->server->options.queue;
    order->engine = exchange->server->options.engine;
    order->runner = find_runner(exchange);
    order->viewer = viewer_of(exchange);
    order->caller = caller_of(exchange);
    if (!jobs_read_key(exchange, order->key, NULL))
        order->key[0] = 0; /* an invalid key was refused before */
}
