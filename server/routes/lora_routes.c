/* The adapters over HTTP: GET /loras, GET, PUT, POST and DELETE /loras/{name}, POST /loras/rescan.
 *
 * Listing only holds a lock for a short time. Work that reads files or computes weights runs on a
 * loader thread while the connection is suspended. The body of a PUT is written to a file of the
 * registry as it arrives.
 */
#include "server/dialect/loras_json.h"
#include "server/http/query.h"
#include "server/http/respond.h"
#include "server/http/route.h"
#include "server/later/task.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "/loras/"

/* A change in progress. */
struct lora_task {
    struct task task;          /* the first member */
    struct adapters *adapters; /* borrowed */
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    struct adapter_upload *upload; /* owned; NULL: none, or ended */
    struct lora_change change;
};

/* --- Checks and parsing --- */

/* Decodes the text after "/loras/" in the target, without a query. The route was found by the
 * encoded text, so the slash between a folder and a name may be encoded or not. */
static bool read_name(
    const struct exchange *exchange, char name[ADAPTER_NAME_MAX_BYTES + 1], struct error *err) {
    size_t length;
    const char *text = route_piece(exchange->route, exchange->target, &length);
    char shown[128];
    if (query_unescape(text, length, false, name, ADAPTER_NAME_MAX_BYTES + 1))
        return adapter_reference_check("name", name, err);
    snprintf(shown, sizeof(shown), "%.*s", (int)(length < 127 ? length : 127), text);
    return error_field(err, "name", shown, "at most %d bytes, rightly escaped and without a NUL",
        ADAPTER_NAME_MAX_BYTES);
}

static struct adapters *adapters_of(const struct exchange *exchange) {
    return engine_get_adapters(exchange->server->options.engine);
}

static bool is_open(const struct exchange *exchange, struct error *err) {
    if (!query_none(exchange->target, err) || !server_takes(exchange->server, err))
        return false;
    return adapters_of(exchange) ||
           error_set(err, ERROR_NOT_FOUND, "this pipeline has no adapters");
}

/* Refuses changes if the daemon has no folder of adapters. */
static bool may_change(const struct exchange *exchange, struct error *err) {
    if (!is_open(exchange, err))
        return false;
    return exchange->server->options.lora_dir ||
           error_set(err, ERROR_NOT_FOUND,
               "this daemon has no folder of adapters; start it with --lora-dir FOLDER");
}

/* Does what may_change does, and refuses a path without a valid name. */
static bool may_change_named(const struct exchange *exchange, struct error *err) {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    return may_change(exchange, err) && read_name(exchange, name, err);
}

/* --- On a loader thread --- */

static struct lora_task *task_of(struct task *task) {
    return (struct lora_task *)task;
}

static void destroy(struct task *task) {
    adapter_upload_abort(task_of(task)->upload);
    free(task);
}

/* Starts a task. Takes over `upload`. */
static enum MHD_Result start(struct exchange *exchange, const char *name,
    bool (*run)(struct task *task, struct error *err), struct adapter_upload *upload,
    const struct lora_change *change) {
    struct lora_task *t = calloc(1, sizeof(*t));
    if (!t) {
        adapter_upload_abort(upload);
        return task_start(NULL, exchange, NULL, run, destroy);
    }
    t->adapters = adapters_of(exchange);
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->upload = upload;
    if (change)
        t->change = *change;
    return task_start(&t->task, exchange, exchange->server->loaders, run, destroy);
}

/* Answers with `info` as JSON, and finishes it. */
static bool tell(struct task *task, struct adapter_info *info) {
    task->json = lora_json(info);
    adapter_info_finish(info);
    return task->json;
}

static bool describe(struct task *task, struct error *err) {
    struct lora_task *t = task_of(task);
    struct adapter_info info;
    return adapters_describe(t->adapters, t->name, &info, err) && tell(task, &info);
}

static bool end_upload(struct task *task, struct error *err) {
    struct lora_task *t = task_of(task);
    struct adapter_upload *upload = t->upload;
    struct adapter_info info;
    t->upload = NULL;
    const bool existed = adapters_describe(t->adapters, t->name, &info, NULL);
    if (existed)
        adapter_info_finish(&info);
    task->status = existed ? 200 : 201;
    return adapter_upload_end(upload, &info, err) && tell(task, &info);
}

static bool change(struct task *task, struct error *err) {
    struct lora_task *t = task_of(task);
    const struct lora_change *c = &t->change;
    const bool settings = c->settings.has_default || c->settings.has_pinned;
    if (c->has_loaded && c->loaded && !adapters_load(t->adapters, t->name, NULL, err))
        return false;
    if (settings && !adapters_set(t->adapters, t->name, &c->settings, NULL, err))
        return false;
    if (c->has_loaded && !c->loaded && !adapters_unload(t->adapters, t->name, err))
        return false;
    return describe(task, err);
}

static bool delete_one(struct task *task, struct error *err) {
    struct lora_task *t = task_of(task);
    task->status = 204;
    return adapters_delete(t->adapters, t->name, err);
}

static bool rescan(struct task *task, struct error *err) {
    struct lora_task *t = task_of(task);
    struct adapters_scan scan;
    if (!adapters_rescan(t->adapters, &scan, err))
        return false;
    task->json = json_pack("{s:i, s:i, s:i, s:i, s:i}", "added", scan.added, "replaced",
        scan.replaced, "removed", scan.removed, "failed", scan.failed, "passed_over",
        scan.passed_over);
    return task->json;
}

/* --- The methods --- */

static enum MHD_Result handle_list(struct exchange *exchange) {
    struct error err = { 0 };
    struct adapters_listing listing;
    if (!adapters_list(adapters_of(exchange), &listing, &err))
        return respond_error(exchange, &err);
    json_t *json = loras_json(&listing);
    adapters_listing_finish(&listing);
    return respond_json(exchange, 200, json);
}

static enum MHD_Result handle_get(struct exchange *exchange) {
    struct error err = { 0 };
    struct adapter_info info;
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    if (!read_name(exchange, name, &err) ||
        !adapters_describe(adapters_of(exchange), name, &info, &err))
        return respond_error(exchange, &err);
    json_t *json = lora_json(&info);
    adapter_info_finish(&info);
    return respond_json(exchange, 200, json);
}

static enum MHD_Result handle_delete(struct exchange *exchange) {
    struct error err = { 0 };
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    return read_name(exchange, name, &err) ? start(exchange, name, delete_one, NULL, NULL)
                                           : respond_error(exchange, &err);
}

static enum MHD_Result handle_post(struct exchange *exchange) {
    struct error err = { 0 };
    struct lora_change given;
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    return read_name(exchange, name, &err) &&
                   lora_change_parse(exchange->body, exchange->body_size, &given, &err)
               ? start(exchange, name, change, NULL, &given)
               : respond_error(exchange, &err);
}

static enum MHD_Result handle_rescan(struct exchange *exchange) {
    return start(exchange, "", rescan, NULL, NULL);
}

/* --- PUT --- */

static uint64_t upload_max_bytes(const struct exchange *exchange) {
    return exchange->server->options.lora_max_bytes;
}

static bool upload_begin(struct exchange *exchange, struct error *err) {
    struct adapter_upload *upload;
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    const uint64_t bytes = exchange->body_bytes == BODY_BYTES_UNKNOWN ? 0 : exchange->body_bytes;
    if (!read_name(exchange, name, err) ||
        !adapter_upload_begin(adapters_of(exchange), name, bytes, &upload, err))
        return false;
    exchange->upload = upload;
    return true;
}

static bool upload_write(
    struct exchange *exchange, const void *bytes, size_t size, struct error *err) {
    const uint64_t max = upload_max_bytes(exchange);
    if (size <= max && exchange->body_received <= max - size)
        return adapter_upload_write(exchange->upload, bytes, size, err);
    char value[48];
    snprintf(value, sizeof(value), "more than %" PRIu64 " bytes", max);
    error_field(err, "body", value, "at most %" PRIu64 " bytes", max);
    err->code = ERROR_TOO_LARGE;
    return false;
}

static void upload_give_up(struct exchange *exchange) {
    adapter_upload_abort(exchange->upload);
    exchange->upload = NULL;
}

static enum MHD_Result handle_put(struct exchange *exchange) {
    struct error err = { 0 };
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    struct adapter_upload *upload = exchange->upload;
    exchange->upload = NULL;
    if (read_name(exchange, name, &err))
        return start(exchange, name, end_upload, upload, NULL);
    adapter_upload_abort(upload);
    return respond_error(exchange, &err);
}

static const struct body_sink upload = { upload_max_bytes, upload_begin, upload_write,
    upload_give_up };
static const char *const file_types[] = { "application/octet-stream", "application/x-safetensors",
    "application/safetensors", "", NULL };

const struct route route_loras = { .path = "/loras",
    .methods = { { "GET", .may_come = is_open, .handle = handle_list, .about = "lists the LoRAs",
        .returns = "{loras: [Lora], folder: string|null, resident_bytes: integer, "
                   "limit_bytes: integer|null, merge: boolean}" } } };

/* routes.c lists this route before route_lora, which would take "rescan" for a name. */
const struct route route_loras_rescan = { .path = "/loras/rescan",
    .methods = { { "POST", .may_come = may_change, .handle = handle_rescan,
        .about = "reads the folder of LoRAs again",
        .returns = "{added: integer, replaced: integer, removed: integer, "
                   "failed: integer, passed_over: integer}" } } };

const struct route route_lora = { .path = PREFIX,
    .is_prefix = true,
    .methods = {
        { "GET", .may_come = is_open, .handle = handle_get, .about = "a LoRA", .returns = "Lora" },
        { "PUT", file_types, may_change_named, handle_put, &upload, "uploads a LoRA's file",
            .returns = "200 Lora; 201 Lora" },
        { "POST", content_types_json, may_change_named, handle_post,
            .about = "sets a LoRA's default weight, pins, loads or unloads it",
            .takes = "{default_weight?: number|null, text_encoder_weight?: number, "
                     "pinned?: boolean, loaded?: boolean}",
            .returns = "Lora" },
        { "DELETE", .may_come = may_change_named, .handle = handle_delete,
            .about = "deletes a LoRA", .returns = "204" } } };
