/* The checkpoints over HTTP: GET /models lists them, and PUT /model switches to another one. Both
 * read folders, so they run on a loader thread while the connection is suspended. */
#include "base/text/json.h"
#include "engine/loop/switch.h"
#include "server/http/query.h"
#include "server/http/respond.h"
#include "server/http/route.h"
#include "server/later/task.h"

#include <stdlib.h>
#include <string.h>

struct model_task {
    struct task task; /* the first member */
    struct engine *engine;
    char name[MODEL_NAME_MAX_BYTES + 1];
};

static struct model_task *task_of(struct task *task) {
    return (struct model_task *)task;
}

static void destroy(struct task *task) {
    free(task);
}

static json_t *name_json(const char *name) {
    return *name ? json_lenient_string(name) : json_null();
}

static json_t *switch_json(const struct model_switch *s) {
    if (s->state == SWITCH_NONE)
        return json_null();
    const bool is_over = s->state == SWITCH_DONE || s->state == SWITCH_FAILED;
    return json_pack("{s:s, s:s, s:b, s:i, s:I, s:I, s:f, s:o, s:o}", "name", s->name, "state",
        switch_state_name(s->state), "unloads_first", s->unloads_first, "waits_for_jobs",
        s->waits_for, "needed_bytes", (json_int_t)s->needed_bytes, "available_bytes",
        (json_int_t)s->available_bytes, "progress", s->progress, "took_s",
        is_over ? json_real(s->took_s) : json_null(), "error",
        s->state == SWITCH_FAILED ? json_pack("{s:s, s:o}", "code", error_code_name(s->error.code),
                                        "message", json_lenient_string(s->error.message))
                                  : json_null());
}

static json_t *entry_json(const struct engine_model_entry *entry, const struct model_switch *s) {
    const bool is_next = strcmp(s->name, entry->name) == 0 &&
                         (s->state == SWITCH_DRAINING || s->state == SWITCH_LOADING);
    return json_pack("{s:o, s:o, s:s, s:I, s:b, s:b, s:o}", "name",
        json_lenient_string(entry->name), "path", json_lenient_string(entry->path), "layout",
        entry->is_folder ? "diffusers" : "single_file", "bytes", (json_int_t)entry->bytes,
        "current", entry->current, "loading", is_next, "error",
        entry->leads_out ? json_string("a link in it leads out of the --model-root") : json_null());
}

static bool list(struct task *task, struct error *err) {
    struct engine_models models;
    if (!engine_models(task_of(task)->engine, &models, err))
        return false;
    json_t *items = json_array();
    bool ok = items;
    for (size_t i = 0; ok && i < models.count; i++)
        ok = json_array_append_new(items, entry_json(&models.items[i], &models.last)) == 0;
    task->json = json_pack("{s:o, s:o, s:o, s:b}", "models", ok ? items : NULL, "current",
        name_json(models.current), "switch", switch_json(&models.last), "can_switch",
        models.has_root);
    if (!ok)
        json_decref(items);
    engine_models_finish(&models);
    return task->json;
}

/* Begins a switch. Answers 202 with the state of the switch, or 200 if the model is loaded
 * already. */
static bool begin_switch(struct task *task, struct error *err) {
    struct model_task *t = task_of(task);
    struct model_switch s;
    if (!engine_switch(t->engine, t->name, NULL, NULL, &s, err))
        return false;
    task->status = s.state == SWITCH_DONE ? 200 : 202;
    snprintf(s.name, sizeof(s.name), "%s", t->name);
    task->json = json_pack("{s:s, s:o}", "name", t->name, "switch", switch_json(&s));
    return task->json;
}

static bool parse(
    const char *text, size_t length, char name[MODEL_NAME_MAX_BYTES + 1], struct error *err) {
    json_t *root = json_parse_request(text, length, err);
    bool ok = root || error_prefix(err, "the body");
    const char *key;
    json_t *value;
    if (ok && !json_is_object(root))
        ok = error_set(err, ERROR_INVALID, "the body must be a JSON object");
    if (ok)
        json_object_foreach(root, key, value) {
            if (ok && strcmp(key, "name") != 0)
                ok = json_bad_field(key, value, "there is no such field", err);
        }
    value = json_object_get(root, "name");
    if (ok && (!json_is_string(value) || json_string_length(value) > MODEL_NAME_MAX_BYTES ||
                  !*json_string_value(value)))
        ok = json_bad_field("name", value, "the name of a model: GET /models lists them", err);
    if (ok)
        snprintf(name, MODEL_NAME_MAX_BYTES + 1, "%s", json_string_value(value));
    json_decref(root);
    return ok;
}

static bool may_come(const struct exchange *exchange, struct error *err) {
    return query_none(exchange->target, err);
}

static enum MHD_Result start(struct exchange *exchange, const char *name,
    bool (*run)(struct task *task, struct error *err)) {
    struct model_task *t = calloc(1, sizeof(*t));
    if (t) {
        t->engine = exchange->server->options.engine;
        snprintf(t->name, sizeof(t->name), "%s", name);
    }
    return task_start((struct task *)t, exchange, exchange->server->loaders, run, destroy);
}

static enum MHD_Result handle_list(struct exchange *exchange) {
    return start(exchange, "", list);
}

static enum MHD_Result handle_put(struct exchange *exchange) {
    struct error err = { 0 };
    char name[MODEL_NAME_MAX_BYTES + 1];
    return parse(exchange->body, exchange->body_size, name, &err)
               ? start(exchange, name, begin_switch)
               : respond_error(exchange, &err);
}

const struct route route_models = { .path = "/models",
    .methods = { { "GET", .may_come = may_come, .handle = handle_list,
        .about = "lists the checkpoints that can be loaded",
        .returns = "{models: [ModelFile], current: string|null, "
                   "switch: ModelSwitch|null, can_switch: boolean}" } } };

const struct route route_model = { .path = "/model",
    .methods = { { "PUT", content_types_json, .may_come = may_come, .handle = handle_put,
        .about = "switches to another checkpoint", .takes = "{name: string}",
        .returns = "200 SwitchOrder; 202 SwitchOrder" } } };
