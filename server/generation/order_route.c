#include "server/generation/order_route.h"

#include "base/sha256.h"
#include "base/text/json.h"
#include "engine/loop/switch.h"
#include "engine/training_job/folder.h"
#include "server/generation/generate_json.h"
#include "server/generation/orders.h"
#include "server/generation/run.h"
#include "server/http/caller.h"
#include "server/http/query.h"
#include "server/http/respond.h"
#include "server/jobs/jobs.h"
#include "server/keys/keys.h"
#include "server/later/reading.h"
#include "server/later/task.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct order_task {
    struct task task; /* the first member */
    struct http_server *server;
    json_t *body; /* owned, as sent */
    char caller[KEY_NAME_MAX_BYTES + 1];
    struct caller account;
    unsigned rights;
    char key[JOB_KEY_MAX_BYTES + 1]; /* "": none */
};

static void destroy(struct task *task) {
    json_decref(((struct order_task *)task)->body);
    free(task);
}

static bool no_memory(struct error *err) {
    return error_set(err, ERROR_NO_MEMORY, "no memory for the request");
}

/* Returns whether `word` is in a comma-separated list; ignores parameters. */
static bool has_word(const char *list, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = list; at && *at;) {
        at += strspn(at, " \t,");
        const size_t found = strcspn(at, " \t,;");
        if (found == length && strncasecmp(at, word, length) == 0)
            return true;
        at += strcspn(at, ",");
    }
    return false;
}

bool generation_is_order(const struct exchange *exchange, bool *out, struct error *err) {
    struct query_field async = { "async" };
    long long value = 0;
    if (!query_parse(exchange->target, &async, 1, err) || !query_integer(&async, 0, 1, &value, err))
        return false;
    *out = async.given ? value == 1
                       : has_word(exchange_header(exchange, "Prefer"), "respond-async");
    return true;
}

/* --- Storing an order as a job, on a loader or reader thread --- */

static bool read_request(const struct order_task *t, struct generate_request *request,
    struct resolved_request *resolved, struct error *err) {
    struct generate_delivery delivery;
    char value[16];
    if (!generate_json_read(t->body, request, &delivery, err))
        return false;
    bool ok = !delivery.stream ||
              error_field(err, "stream", "true",
                  "false with async: GET /jobs/{id}/events has the job's events");
    snprintf(value, sizeof(value), "%d", request->quality);
    if (ok && request->quality && (request->latent_output || request->format == PICTURE_PNG))
        ok = error_field(err, "quality", value, "only with output \"jpeg\" or \"webp\"");
    ok = ok && generation_check_priority(t->rights & KEY_MAY_PRIORITY, request, err) &&
         engine_resolve(t->server->options.engine, request, resolved, err);
    if (!ok)
        generate_request_finish(request);
    return ok;
}

/* Writes the job's files before adding the job to the queue, so that every job in the queue has its
 * files when it begins. */
static bool write_and_enqueue(const struct order_task *t, const char *folder,
    const struct resolved_request *resolved, struct job_order *order, struct job *job, bool *known,
    struct error *err) {
    json_t *shown = NULL;
    bool ok = job_folder_make(folder, err) &&
              orders_write(folder, &t->server->options, t->body, resolved, &shown, err);
    char *text = ok ? json_dumps(shown, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(shown);
    if (ok && !text)
        ok = no_memory(err);
    order->request = text;
    order->priority = resolved->asked.priority;
    ok = ok && queue_enqueue(t->server->options.queue, order, job, known, err);
    free(text);
    if (!ok || *known)
        job_folder_remove(folder);
    return ok;
}

/* Resolves the request and writes the job. No switch can change the model meanwhile. */
static bool make_now(const struct order_task *t, struct job_order *order, struct job *job,
    bool *known, struct error *err) {
    struct generate_request request;
    struct resolved_request resolved;
    char id[JOB_ID_BYTES];
    if (!queue_make_id(id, err) || !read_request(t, &request, &resolved, err))
        return false;
    order->id = id;
    char *folder = job_folder_path(t->server->options.state_folder, id);
    const bool ok = folder ? write_and_enqueue(t, folder, &resolved, order, job, known, err)
                           : no_memory(err);
    free(folder);
    resolved_request_finish(&resolved);
    generate_request_finish(&request);
    return ok;
}

static bool make(const struct order_task *t, struct job_order *order, struct job *job, bool *known,
    struct error *err) {
    struct engine *engine = t->server->options.engine;
    if (!engine_begin_order(engine, err))
        return false;
    const bool ok = make_now(t, order, job, known, err);
    engine_end_order(engine);
    return ok;
}

/* Returns the job of the request: the existing one if the request was sent before, else a new
 * one. */
static bool find_or_make(const struct order_task *t, struct job *job, struct error *err) {
    struct job_order order = {
        .type = GENERATE_JOB_TYPE, .owner = t->caller, .caller = t->account.text
    };
    char digest[DIGEST_TEXT_BYTES];
    bool known = false;
    if (t->key[0]) {
        char *canonical = json_dumps(t->body, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
        if (!canonical)
            return no_memory(err);
        const struct digest sum = sha256_of(canonical, strlen(canonical));
        free(canonical);
        digest_to_text(&sum, digest);
        order.key = t->key;
        order.body = digest;
    }
    return queue_find_known(t->server->options.queue, &order, job, &known, err) &&
           (known || make(t, &order, job, &known, err));
}

static bool enqueue(struct task *task, struct error *err) {
    struct order_task *t = (struct order_task *)task;
    struct job job;
    if (!find_or_make(t, &job, err))
        return false;
    task->status = 202;
    const bool ok = jobs_tell(task, &job, err);
    job_finish(&job);
    return ok;
}

/* --- The request --- */

struct order {
    json_t *body; /* owned */
};

static bool read_body(const struct exchange *exchange, void *out, struct error *err) {
    struct order *order = out;
    order->body = json_parse_request(exchange->body, exchange->body_size, err);
    return order->body || error_prefix(err, "the body");
}

static void finish_body(void *read) {
    json_decref(((struct order *)read)->body);
}

/* Gives orders with pictures to the readers, so that decoding does not delay orders without
 * pictures. */
static struct workers *workers_for(struct http_server *server, const json_t *body) {
    const bool has_picture = json_object_get(body, "init_image") ||
                             json_object_get(body, "mask_image");
    return has_picture ? server->readers : server->loaders;
}

static enum MHD_Result start(struct exchange *exchange, void *read) {
    struct order *order = read;
    struct error err = { 0 };
    char key[JOB_KEY_MAX_BYTES + 1];
    struct order_task *t = NULL;
    if (!jobs_read_key(exchange, key, &err)) {
        json_decref(order->body);
        return respond_error(exchange, &err);
    }
    t = calloc(1, sizeof(*t));
    if (!t) {
        json_decref(order->body);
        return task_start(NULL, exchange, NULL, enqueue, destroy);
    }
    t->body = order->body;
    t->server = exchange->server;
    snprintf(t->caller, sizeof(t->caller), "%s", exchange->caller);
    t->account = caller_of(exchange);
    t->rights = exchange->rights;
    snprintf(t->key, sizeof(t->key), "%s", key);
    return task_start(&t->task, exchange, workers_for(exchange->server, t->body), enqueue, destroy);
}

enum MHD_Result generation_order(struct exchange *exchange) {
    static const struct reading_kind kind = {
        .size = sizeof(struct order), .read = read_body, .handle = start, .finish = finish_body
    };
    struct error err = { 0 };
    return jobs_are_kept(exchange, &err) ? reading_start(exchange, &kind)
                                         : respond_error(exchange, &err);
}
