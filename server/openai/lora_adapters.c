/* vLLM's POST /v1/load_lora_adapter and /v1/unload_lora_adapter. Files are only read from the
 * folder of adapters; a path that leads out of it is refused. */
#include "base/file.h"
#include "engine/adapters/adapters.h"
#include "server/http/respond.h"
#include "server/later/task.h"
#include "server/openai/lora_order.h"
#include "server/openai/openai.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define SUCCESS_BYTES (ADAPTER_NAME_MAX_BYTES + 64)

struct change_task {
    struct task task; /* the first member */
    struct adapters *adapters;
    const char *folder; /* borrowed */
    struct lora_order order;
};

static void destroy(struct task *task) {
    lora_order_finish(&((struct change_task *)task)->order);
    free(task);
}

static bool tell(struct task *task, const char *what) {
    const struct change_task *t = (struct change_task *)task;
    char *text = malloc(SUCCESS_BYTES);
    if (!text)
        return false;
    snprintf(
        text, SUCCESS_BYTES, "Success: LoRA adapter '%s' %s successfully.", t->order.name, what);
    task->body = (struct task_body){ "text/plain; charset=utf-8", text, strlen(text), -1 };
    return true;
}

/* --- Loading --- */

/* Returns the path of the file, malloc'd and without symbolic links. Refuses files outside the
 * folder of adapters. */
static char *find_file(const struct change_task *t, struct error *err) {
    char folder[PATH_MAX], found[PATH_MAX];
    char *path = t->order.path[0] == '/' ? strdup(t->order.path)
                                         : file_join(t->folder, t->order.path);
    const bool ok = path && realpath(t->folder, folder);
    const bool there = ok && realpath(path, found);
    free(path);
    if (!ok) {
        error_set(err, ERROR_IO, "the folder of adapters cannot be read");
        return NULL;
    }
    const size_t length = strlen(folder);
    if (there && strncmp(found, folder, length) == 0 && found[length] == '/')
        return strdup(found);
    error_field(err, "lora_path", t->order.path, "a .safetensors file in the folder of adapters");
    if (err && !there && t->order.path[0] != '/' && !strstr(t->order.path, ".."))
        err->code = ERROR_NOT_FOUND;
    return NULL;
}

/* Returns whether the path is the folder's file for the adapter's name, NAME.safetensors. */
static bool is_own_file(const struct change_task *t, const char *path) {
    char name[ADAPTER_NAME_MAX_BYTES + 16], own[PATH_MAX];
    snprintf(name, sizeof(name), "%s.safetensors", t->order.name);
    char *joined = file_join(t->folder, name);
    const bool is = joined && realpath(joined, own) && strcmp(own, path) == 0;
    free(joined);
    return is;
}

/* Without load_inplace, refuses to replace an adapter that is loaded or whose name belongs to
 * another file. */
static bool is_free(const struct change_task *t, bool is_own, struct error *err) {
    struct adapter_info info;
    if (t->order.replace || !adapters_describe(t->adapters, t->order.name, &info, NULL))
        return true;
    const bool loaded = info.state == ADAPTER_LOADED;
    adapter_info_finish(&info);
    return (!loaded && is_own) ||
           error_field(err, "lora_name", t->order.name,
               loaded ? "one that is not loaded, or \"load_inplace\": true"
                      : "one of which there is no other file, or \"load_inplace\": true");
}

static bool load(struct task *task, struct error *err) {
    struct change_task *t = (struct change_task *)task;
    struct adapters_scan scan;
    char *path = find_file(t, err);
    if (!path)
        return false;
    const bool is_own = is_own_file(t, path);
    const bool ok = is_free(t, is_own, err) &&
                    (is_own ? adapters_rescan(t->adapters, &scan, err) &&
                                  adapters_load(t->adapters, t->order.name, NULL, err)
                            : adapters_add_file(t->adapters, t->order.name, path, err));
    free(path);
    return ok && tell(task, "added");
}

static bool unload(struct task *task, struct error *err) {
    struct change_task *t = (struct change_task *)task;
    return adapters_unload(t->adapters, t->order.name, err) && tell(task, "removed");
}

/* --- The request --- */

static bool may_come(const struct exchange *exchange, struct error *err) {
    const struct http_options *options = &exchange->server->options;
    if (!server_takes(exchange->server, err))
        return false;
    return (options->lora_dir && engine_get_adapters(options->engine)) ||
           error_set(err, ERROR_NOT_FOUND,
               "this daemon has no folder of adapters; start it with --lora-dir FOLDER");
}

static enum MHD_Result start(struct exchange *exchange, bool loads) {
    struct error err = { 0 };
    struct change_task *t = calloc(1, sizeof(*t));
    if (t && !lora_order_parse(exchange->body, exchange->body_size, loads, &t->order, &err)) {
        destroy(&t->task);
        return respond_error(exchange, &err);
    }
    if (t) {
        t->adapters = engine_get_adapters(exchange->server->options.engine);
        t->folder = exchange->server->options.lora_dir;
    }
    return task_start(
        (struct task *)t, exchange, exchange->server->loaders, loads ? load : unload, destroy);
}

static enum MHD_Result handle_load(struct exchange *exchange) {
    return start(exchange, true);
}

static enum MHD_Result handle_unload(struct exchange *exchange) {
    return start(exchange, false);
}

const struct route route_vllm_load = { .path = "/v1/load_lora_adapter",
    .dialect = &dialect_openai,
    .methods = { { "POST", content_types_json, may_come, handle_load,
        .about = "loads an adapter's file from the folder of adapters",
        .takes = "{lora_name: string, lora_path: string, load_inplace?: boolean}",
        .answers = "text/plain" } } };

const struct route route_vllm_unload = { .path = "/v1/unload_lora_adapter",
    .dialect = &dialect_openai,
    .methods = {
        { "POST", content_types_json, may_come, handle_unload, .about = "frees an adapter's memory",
            .takes = "{lora_name: string, lora_int_id?: null}", .answers = "text/plain" } } };
