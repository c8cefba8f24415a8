/* The lists: GET /sdapi/v1/samplers, /schedulers, /sd-models, /loras, /memory and so on, and POST
 * /sdapi/v1/refresh-loras. Lists of things that only AUTOMATIC1111 has are empty. */
#include "base/text/json.h"
#include "engine/loop/switch.h"
#include "engine/prompts/embeddings.h"
#include "server/http/respond.h"
#include "server/later/task.h"
#include "server/sdapi/samplers.h"
#include "server/sdapi/sdapi.h"
#include "server/sdapi/styles.h"
#include "server/sdapi/upscale.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum MHD_Result samplers(struct exchange *exchange) {
    return respond_json(exchange, 200, sdapi_samplers_json());
}

static enum MHD_Result schedulers(struct exchange *exchange) {
    return respond_json(exchange, 200, sdapi_schedules_json());
}

/* --- models --- */

/* Hashes are null, because computing one would mean reading gigabytes. */
static json_t *model_json(const char *name, const char *path) {
    return json_pack("{s:o, s:o, s:n, s:n, s:o, s:n}", "title", json_lenient_string(name),
        "model_name", json_lenient_string(name), "hash", "sha256", "filename",
        json_lenient_string(path), "config");
}

static bool list_models(struct task *task, struct error *err) {
    struct engine_models models;
    if (!engine_models(task->deferred.server->options.engine, &models, err))
        return false;
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < models.count; i++) {
        const struct engine_model_entry *entry = &models.items[i];
        ok = entry->leads_out ||
             json_array_append_new(list, model_json(entry->name, entry->path)) == 0;
    }
    engine_models_finish(&models);
    if (!ok)
        json_decref(list);
    task->json = ok ? list : NULL;
    return ok;
}

static void destroy(struct task *task) {
    free(task);
}

static enum MHD_Result models(struct exchange *exchange) {
    return task_start(
        calloc(1, sizeof(struct task)), exchange, exchange->server->loaders, list_models, destroy);
}

/* --- LoRAs --- */

/* AUTOMATIC1111 calls a LoRA by its file's name, also in a subfolder. The alias is the whole name.
 */
static json_t *lora_json(const struct adapter_info *info, const char *folder) {
    char *path;
    if (asprintf(&path, "%s/%s.safetensors", folder ? folder : ".", info->name) < 0)
        return NULL;
    json_t *json = json_pack("{s:s, s:s, s:o, s:{}}", "name", info->name + info->short_name,
        "alias", info->name, "path", json_lenient_string(path), "metadata");
    free(path);
    return json;
}

static enum MHD_Result loras(struct exchange *exchange) {
    struct adapters *adapters = engine_get_adapters(exchange->server->options.engine);
    struct adapters_listing listing = { 0 };
    struct error err = { 0 };
    if (adapters && !adapters_list(adapters, &listing, &err))
        return respond_error(exchange, &err);
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < listing.count; i++)
        ok = json_array_append_new(list, lora_json(&listing.items[i], listing.folder)) == 0;
    adapters_listing_finish(&listing);
    if (!ok) {
        json_decref(list);
        list = NULL;
    }
    return respond_json(exchange, 200, list);
}

static bool tell_null(struct task *task, struct error *err) {
    char *text = strdup("null");
    task->body = (struct task_body){ "application/json", text, 4, -1 };
    return text || error_set(err, ERROR_NO_MEMORY, "no memory for the answer");
}

static bool rescan(struct task *task, struct error *err) {
    struct adapters *adapters = engine_get_adapters(task->deferred.server->options.engine);
    struct adapters_scan scan;
    return (!adapters || adapters_rescan(adapters, &scan, err)) && tell_null(task, err);
}

static enum MHD_Result refresh_loras(struct exchange *exchange) {
    return task_start(
        calloc(1, sizeof(struct task)), exchange, exchange->server->loaders, rescan, destroy);
}

/* --- textual inversions --- */

static json_t *embedding_json(const struct embedding *embedding) {
    return json_pack("{s:n, s:n, s:n, s:i, s:i}", "step", "sd_checkpoint", "sd_checkpoint_name",
        "shape", embedding->width, "vectors", embedding->vectors);
}

/* Answers with the usable embeddings in the object "loaded", and the others in "skipped". */
static enum MHD_Result embeddings(struct exchange *exchange) {
    struct embedding_set *set = engine_take_embeddings(exchange->server->options.engine);
    const size_t count = set ? embedding_set_count(set) : 0;
    json_t *loaded = json_object(), *skipped = json_object();
    bool ok = loaded && skipped;
    for (size_t i = 0; ok && i < count; i++) {
        const struct embedding *embedding = embedding_set_at(set, i);
        ok = json_object_set_new(embedding->error.code == ERROR_NONE ? loaded : skipped,
                 embedding->name, embedding_json(embedding)) == 0;
    }
    embedding_set_release(set);
    json_t *json = ok ? json_pack("{s:O, s:O}", "loaded", loaded, "skipped", skipped) : NULL;
    json_decref(loaded);
    json_decref(skipped);
    return respond_json(exchange, 200, json);
}

/* --- memory --- */

static json_t *ram_json(void) {
    const json_int_t page = sysconf(_SC_PAGESIZE), total = page * sysconf(_SC_PHYS_PAGES);
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%*s %lld", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return json_pack("{s:I, s:I, s:I}", "free", total - pages * page, "used",
        (json_int_t)(pages * page), "total", total);
}

static enum MHD_Result memory(struct exchange *exchange) {
    struct device_figures f;
    double age_s;
    json_t *cuda;
    if (engine_get_figures(exchange->server->options.engine, &f, &age_s)) {
        const json_int_t ours = (json_int_t)(f.weight_bytes + f.activation_bytes);
        cuda = json_pack("{s:{s:I, s:I, s:I}, s:{s:I}, s:{s:I}}", "system", "free",
            (json_int_t)f.memory_free, "used", (json_int_t)(f.memory_total - f.memory_free),
            "total", (json_int_t)f.memory_total, "allocated", "current", ours, "reserved",
            "current", ours);
    } else {
        cuda = json_pack("{s:s}", "error", "unavailable");
    }
    return respond_json(exchange, 200, json_pack("{s:o, s:o}", "ram", ram_json(), "cuda", cuda));
}

/* --- upscalers --- */

static enum MHD_Result upscalers(struct exchange *exchange) {
    json_t *list = json_array();
    bool ok = list != NULL;
    for (int i = 0; ok && i < SDAPI_UPSCALERS; i++)
        ok = json_array_append_new(
                 list, json_pack("{s:s, s:n, s:n, s:n, s:i}", "name", sdapi_upscaler_names[i],
                           "model_name", "model_path", "model_url", "scale", 4)) == 0;
    if (!ok) {
        json_decref(list);
        list = NULL;
    }
    return respond_json(exchange, 200, list);
}

static enum MHD_Result prompt_styles(struct exchange *exchange) {
    return respond_json(exchange, 200, sdapi_styles_json(exchange->server->options.styles));
}

/* --- empty lists --- */

static enum MHD_Result empty_list(struct exchange *exchange) {
    return respond_json(exchange, 200, json_array());
}

static enum MHD_Result empty_object(struct exchange *exchange) {
    return respond_json(exchange, 200, json_object());
}

static enum MHD_Result scripts(struct exchange *exchange) {
    return respond_json(exchange, 200, json_pack("{s:[], s:[]}", "txt2img", "img2img"));
}

#define LIST(name, last_piece, answer, what, shape)                                                \
    const struct route route_sdapi_##name = { .path = "/sdapi/v1/" last_piece,                     \
        .dialect = &dialect_sdapi,                                                                 \
        .methods = { { "GET", .handle = answer, .about = what, .returns = shape } } }
#define NOTHING "Nothing: for clients of AUTOMATIC1111 that ask"
#define EMPTY(name, last_piece) LIST(name, last_piece, empty_list, NOTHING, "[object]")

LIST(samplers, "samplers", samplers, "AUTOMATIC1111's samplers that there are",
    "[{name: string, aliases: [string], options: {scheduler?: string, "
    "second_order?: boolean, brownian_noise?: boolean}}]");
LIST(schedulers, "schedulers", schedulers, "AUTOMATIC1111's schedules that there are",
    "[{name: string, label: string, aliases: [string]|null, "
    "default_rho: number, need_inner_model: boolean}]");
LIST(models, "sd-models", models, "The checkpoints",
    "[{title: string, model_name: string, hash: string|null, "
    "sha256: string|null, filename: string, config: string|null}]");
LIST(loras, "loras", loras, "The LoRAs",
    "[{name: string, alias: string, path: string, metadata: object}]");
LIST(memory, "memory", memory, "How much memory the daemon takes",
    "{ram: {free: integer, used: integer, total: integer}, "
    "cuda: {system?: {free: integer, used: integer, total: integer}, "
    "allocated?: {current: integer}, reserved?: {current: integer}, "
    "error?: string}}");
LIST(embeddings, "embeddings", embeddings, "The textual inversions",
    "{loaded: {*: SdapiEmbedding}, skipped: {*: SdapiEmbedding}}");
LIST(scripts, "scripts", scripts, "No scripts, in two lists",
    "{txt2img: [string], img2img: [string]}");
LIST(cmd_flags, "cmd-flags", empty_object, NOTHING, "{}");
LIST(upscalers, "upscalers", upscalers, "The upscalers, which need no model",
    "[{name: string, model_name: null, model_path: null, model_url: null, scale: number}]");
LIST(prompt_styles, "prompt-styles", prompt_styles, "The prompt styles",
    "[{name: string, prompt: string, negative_prompt: string}]");
EMPTY(latent_upscale_modes, "latent-upscale-modes");
EMPTY(vae, "sd-vae");
EMPTY(modules, "sd-modules");
EMPTY(hypernetworks, "hypernetworks");
EMPTY(face_restorers, "face-restorers");
EMPTY(realesrgan_models, "realesrgan-models");
EMPTY(script_info, "script-info");
EMPTY(extensions, "extensions");

static bool rescan_embeddings(struct task *task, struct error *err) {
    return engine_rescan_embeddings(task->deferred.server->options.engine, err) &&
           tell_null(task, err);
}

static enum MHD_Result refresh_embeddings(struct exchange *exchange) {
    return task_start(calloc(1, sizeof(struct task)), exchange, exchange->server->loaders,
        rescan_embeddings, destroy);
}

#define STUB(name, last_piece, answer, what, shape)                                                \
    const struct route route_sdapi_##name = { .path = "/sdapi/v1/" last_piece,                     \
        .dialect = &dialect_sdapi,                                                                 \
        .methods = { { "POST", sdapi_json_or_none, .handle = answer, .about = what,                \
            .takes = "{...}", .returns = shape } } }
STUB(refresh_checkpoints, "refresh-checkpoints", sdapi_respond_null,
    "Nothing: GET /sdapi/v1/sd-models always reads the folder", "null");
STUB(refresh_vae, "refresh-vae", sdapi_respond_null, NOTHING, "null");
STUB(refresh_embeddings, "refresh-embeddings", refresh_embeddings,
    "Reads the folder of textual inversions again", "null");
STUB(unload_checkpoint, "unload-checkpoint", empty_object, "Nothing: the checkpoint stays loaded",
    "{}");
STUB(reload_checkpoint, "reload-checkpoint", empty_object, "Nothing: the checkpoint stays loaded",
    "{}");

const struct route route_internal_ping = { .path = "/internal/ping",
    .dialect = &dialect_sdapi,
    .methods = { { "GET", .handle = empty_object, .about = "Says that the daemon is there",
        .returns = "{}" } } };

const struct route route_sdapi_refresh_loras = { .path = "/sdapi/v1/refresh-loras",
    .dialect = &dialect_sdapi,
    .methods = { { "POST", sdapi_json_or_none, .handle = refresh_loras,
        .about = "Reads the folder of LoRAs again", .takes = "{...}", .returns = "null" } } };
