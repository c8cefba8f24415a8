/* GET /v1/models and /v1/models/{id}, and the meaning of "model" in a request. */
#include "base/file.h"
#include "base/text/json.h"
#include "engine/adapters/adapters.h"
#include "engine/loop/switch.h"
#include "server/http/query.h"
#include "server/http/respond.h"
#include "server/later/task.h"
#include "server/openai/openai.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ID_BYTES 512

/* --- The model of a request --- */

struct openai_models openai_models_of(const struct exchange *exchange) {
    struct engine *engine = exchange->server->options.engine;
    struct pipeline_info info;
    return (struct openai_models){
        .loaded = engine_get_info(engine, &info) && info.model_name ? info.model_name : "",
        .adapters = engine_get_adapters(engine),
        .can_switch = engine_has_models(engine),
        .served = exchange->server->options.served_names,
    };
}

static bool not_found(struct error *err) {
    if (err)
        err->code = ERROR_NOT_FOUND;
    return false;
}

static bool refuse(const char *model, const struct openai_models *models, struct error *err) {
    return error_field(err, "model", model,
               "\"%.64s\", which is loaded, \"sd15\", or one of its adapters: see GET /v1/models%s",
               models->loaded, models->can_switch ? "; PUT /model loads another model" : "") ||
           not_found(err);
}

static bool is_none(const char *id, struct error *err) {
    return error_field(err, "model", id, "one that GET /v1/models lists") || not_found(err);
}

static bool add_adapter(struct generate_request *request, const char *name, struct error *err) {
    struct lora_choice *more = realloc(
        request->loras, ((size_t)request->lora_count + 1) * sizeof(*more));
    if (!more)
        return error_set(err, ERROR_NO_MEMORY, "no memory for loras");
    request->loras = more;
    request->loras_given = true;
    struct lora_choice *added = &more[request->lora_count++];
    *added = (struct lora_choice){ .weight = 1, .text_encoder_weight = 1 };
    snprintf(added->name, sizeof(added->name), "%s", name);
    return true;
}

/* Finds the adapter by its name or, if only one has it, the last part of its name. */
static bool find_adapter(
    const struct openai_models *models, const char *asked, char name[ADAPTER_NAME_MAX_BYTES + 1]) {
    if (!adapter_reference_check("model", asked, NULL))
        return false;
    /* Without the list of adapters, the name is checked when the request is resolved. */
    if (!models->adapters)
        memcpy(name, asked, strlen(asked) + 1);
    return !models->adapters || adapters_find(models->adapters, asked, name, NULL);
}

/* Returns the text of `asked` after `name`, ":ADAPTER" or ""; NULL if it names another model. */
static const char *behind(const char *asked, const char *name) {
    const size_t length = strlen(name);
    return strncmp(asked, name, length) == 0 && (!asked[length] || asked[length] == ':')
               ? asked + length
               : NULL;
}

/* Does what `behind` does, for all names of the loaded model. */
static const char *behind_name(const char *asked, const struct openai_models *models) {
    const char *found = behind(asked, models->loaded);
    if (!found)
        found = behind(asked, "sd15");
    for (const char *const *name = models->served; !found && name && *name; name++)
        found = behind(asked, *name);
    return found;
}

bool openai_choose_model(const char *asked, const struct openai_models *models,
    struct generate_request *request, struct error *err) {
    const char *rest = asked[0] ? behind_name(asked, models) : "";
    if (rest && !rest[0])
        return true;
    const char *adapter = rest ? rest + 1 : models->adapters ? asked : "";
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    return find_adapter(models, adapter, name) ? add_adapter(request, name, err)
                                               : refuse(asked, models, err);
}

/* --- The list --- */

struct models_task {
    struct task task; /* the first member */
    struct engine *engine;
    struct openai_models models;
    const char *lora_dir; /* NULL: none */
    time_t created;
    char id[ID_BYTES]; /* "": all */
};

static void destroy(struct task *task) {
    free(task);
}

static json_t *model_json(const struct models_task *t, const char *name) {
    return json_pack("{s:o, s:s, s:I, s:s}", "id", json_lenient_string(name), "object", "model",
        "created", (json_int_t)t->created, "owned_by", "latentd");
}

/* Returns another name of the loaded model; "root" tells the model's own name, as in vLLM. */
static json_t *served_json(const struct models_task *t, const char *name) {
    json_t *json = model_json(t, name);
    json_object_set_new(json, "root", json_lenient_string(t->models.loaded));
    return json;
}

static bool append_served(const struct models_task *t, json_t *out) {
    bool ok = true;
    for (const char *const *name = t->models.served; ok && name && *name; name++)
        ok = json_array_append_new(out, served_json(t, *name)) == 0;
    return ok;
}

static bool is_served(const struct models_task *t, const char *id) {
    const char *const *name = t->models.served;
    while (name && *name && strcmp(*name, id) != 0)
        name++;
    return name && *name;
}

/* Returns whether PUT /model can switch to the entry, and it is not the loaded model. */
static bool is_other(const struct models_task *t, const struct engine_model_entry *entry) {
    return !entry->leads_out && strcmp(entry->name, t->models.loaded) != 0;
}

/* Returns when an adapter's file was written; if that is unknown, when the daemon began. */
static time_t adapter_created(const struct models_task *t, const char *name) {
    char file[ADAPTER_NAME_MAX_BYTES + sizeof(".safetensors")];
    struct stat about;
    snprintf(file, sizeof(file), "%.*s.safetensors", ADAPTER_NAME_MAX_BYTES, name);
    char *path = t->lora_dir ? file_join(t->lora_dir, file) : NULL;
    const bool known = path && stat(path, &about) == 0;
    free(path);
    return known ? about.st_mtime : t->created;
}

/* Returns an adapter in the form of vLLM's list. */
static json_t *adapter_json(const struct models_task *t, const char *name) {
    char id[ID_BYTES];
    snprintf(id, sizeof(id), "%.300s:%s", t->models.loaded, name);
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s}", "id", id, "object", "model", "created",
        (json_int_t)adapter_created(t, name), "owned_by", "latentd", "root", name, "parent",
        t->models.loaded);
}

/* Adds the adapters of the loaded model. */
static bool append_adapters(const struct models_task *t, json_t *out, struct error *err) {
    struct adapters_listing listing = { 0 };
    bool ok = !t->models.adapters || adapters_list(t->models.adapters, &listing, err);
    for (size_t i = 0; ok && i < listing.count; i++)
        if (listing.items[i].state != ADAPTER_FAILED)
            ok = json_array_append_new(out, adapter_json(t, listing.items[i].name)) == 0;
    adapters_listing_finish(&listing);
    return ok;
}

static bool append_others(const struct models_task *t, json_t *out, struct error *err) {
    struct engine_models known;
    if (!engine_models(t->engine, &known, err))
        return false;
    bool ok = true;
    for (size_t i = 0; ok && i < known.count; i++)
        if (is_other(t, &known.items[i]))
            ok = json_array_append_new(out, model_json(t, known.items[i].name)) == 0;
    engine_models_finish(&known);
    return ok;
}

static bool list(struct task *task, struct error *err) {
    struct models_task *t = (struct models_task *)task;
    const char *loaded = t->models.loaded;
    json_t *models = json_array();
    if (models &&
        (!loaded[0] || (json_array_append_new(models, model_json(t, loaded)) == 0 &&
                           append_served(t, models))) &&
        append_adapters(t, models, err) && append_others(t, models, err))
        task->json = json_pack("{s:s, s:O}", "object", "list", "data", models);
    json_decref(models);
    return task->json;
}

/* Looks for a model that is not loaded. *json stays NULL if there is none of this name. */
static bool describe_other(const struct models_task *t, json_t **json, struct error *err) {
    struct engine_models known;
    if (!engine_models(t->engine, &known, err))
        return false;
    for (size_t i = 0; !*json && i < known.count; i++)
        if (is_other(t, &known.items[i]) && strcmp(known.items[i].name, t->id) == 0)
            *json = model_json(t, t->id);
    engine_models_finish(&known);
    return true;
}

static bool describe(struct task *task, struct error *err) {
    struct models_task *t = (struct models_task *)task;
    const char *rest = behind_name(t->id, &t->models);
    if (rest && !rest[0]) {
        task->json = is_served(t, t->id) ? served_json(t, t->id) : model_json(t, t->models.loaded);
        return task->json;
    }
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    if (t->models.adapters && find_adapter(&t->models, rest ? rest + 1 : t->id, name)) {
        task->json = adapter_json(t, name);
        return task->json;
    }
    if (!describe_other(t, &task->json, err))
        return false;
    return task->json || is_none(t->id, err);
}

static enum MHD_Result start(struct exchange *exchange, const char *id) {
    struct models_task *t = calloc(1, sizeof(*t));
    if (t) {
        t->engine = exchange->server->options.engine;
        t->models = openai_models_of(exchange);
        t->lora_dir = exchange->server->options.lora_dir;
        t->created = exchange->server->started;
        snprintf(t->id, sizeof(t->id), "%s", id);
    }
    return task_start(
        (struct task *)t, exchange, exchange->server->loaders, id[0] ? describe : list, destroy);
}

static enum MHD_Result handle_list(struct exchange *exchange) {
    struct error err = { 0 };
    return openai_query_none(exchange->target, &err) ? start(exchange, "")
                                                     : respond_error(exchange, &err);
}

static enum MHD_Result handle_one(struct exchange *exchange) {
    struct error err = { 0 };
    char id[ID_BYTES];
    size_t length;
    const char *piece = route_piece(exchange->route, exchange->target, &length);
    if (!openai_query_none(exchange->target, &err))
        return respond_error(exchange, &err);
    if (length > 0 && query_unescape(piece, length, false, id, sizeof(id)))
        return start(exchange, id);
    snprintf(id, sizeof(id), "%.*s", (int)(length < 100 ? length : 100), piece);
    is_none(id, &err);
    return respond_error(exchange, &err);
}

const struct route route_openai_models = { .path = "/v1/models",
    .dialect = &dialect_openai,
    .methods = { { "GET", .handle = handle_list, .about = "lists the models and adapters",
        .returns = "{object: 'list', data: [OpenaiModel]}" } } };

const struct route route_openai_model = { .path = "/v1/models/",
    .is_prefix = true,
    .piece = "id",
    .dialect = &dialect_openai,
    .methods = { { "GET", .handle = handle_one, .about = "a model or an adapter",
        .returns = "OpenaiModel" } } };
