/* Textual inversion over HTTP. GET /embeddings lists the embeddings that prompts can name. POST
 * /embeddings/rescan reads the folder again, on a loader thread. */
#include "base/text/json.h"
#include "server/http/query.h"
#include "server/http/respond.h"
#include "server/http/route.h"
#include "server/later/task.h"

#include <stdlib.h>

static bool may_come(const struct exchange *exchange, struct error *err) {
    return query_none(exchange->target, err) && server_takes(exchange->server, err);
}

static json_t *string_or_null(const char *text) {
    return text ? json_lenient_string(text) : json_null();
}

static json_t *embedding_json(const struct embedding *e) {
    return json_pack("{s:o, s:o, s:o, s:b, s:s, s:i, s:i, s:I}", "name",
        json_lenient_string(e->name), "file", json_lenient_string(e->file), "token",
        string_or_null(e->token), "named_in_plain_texts", e->named_plainly, "format", e->format,
        "vectors", e->vectors, "width", e->width, "file_bytes", (json_int_t)e->bytes);
}

static json_t *skipped_json(const struct embedding *e) {
    return json_pack("{s:o, s:o, s:{s:s, s:o}}", "name", json_lenient_string(e->name), "file",
        json_lenient_string(e->file), "error", "code", error_code_name(e->error.code), "message",
        json_lenient_string(e->error.message));
}

static json_t *listing_json(const struct embedding_set *set) {
    json_t *usable = json_array(), *skipped = json_array();
    for (size_t i = 0; i < embedding_set_count(set); i++) {
        const struct embedding *e = embedding_set_at(set, i);
        if (e->error.code == ERROR_NONE)
            json_array_append_new(usable, embedding_json(e));
        else
            json_array_append_new(skipped, skipped_json(e));
    }
    return json_pack("{s:o, s:o, s:o}", "folder", string_or_null(embedding_set_folder(set)),
        "embeddings", usable, "skipped", skipped);
}

static enum MHD_Result handle_list(struct exchange *exchange) {
    struct embedding_set *set = engine_take_embeddings(exchange->server->options.engine);
    json_t *json = listing_json(set);
    embedding_set_release(set);
    return respond_json(exchange, 200, json);
}

struct rescan_task {
    struct task task; /* the first member */
    struct engine *engine;
};

static void destroy(struct task *task) {
    free(task);
}

static bool rescan(struct task *task, struct error *err) {
    struct engine *engine = ((struct rescan_task *)task)->engine;
    if (!engine_rescan_embeddings(engine, err))
        return false;
    struct embedding_set *set = engine_take_embeddings(engine);
    task->json = listing_json(set);
    embedding_set_release(set);
    return task->json;
}

static enum MHD_Result handle_rescan(struct exchange *exchange) {
    struct rescan_task *t = calloc(1, sizeof(*t));
    if (t)
        t->engine = exchange->server->options.engine;
    return task_start(t ? &t->task : NULL, exchange, exchange->server->loaders, rescan, destroy);
}

const struct route route_embeddings = { .path = "/embeddings",
    .methods = { { "GET", .may_come = may_come, .handle = handle_list,
        .about = "lists the textual inversions that prompts can name",
        .returns = "Embeddings" } } };

const struct route route_embeddings_rescan = { .path = "/embeddings/rescan",
    .methods = { { "POST", .may_come = may_come, .handle = handle_rescan,
        .about = "reads the folder of textual inversions again", .returns = "Embeddings" } } };
