/* Data sets over HTTP: GET /datasets, GET, PUT and DELETE /datasets/{name}. The body of a PUT is a
 * tar archive, plain or gzip. It is written to a file as it arrives. Then an unpacker thread
 * unpacks it, unless the client leaves or the server stops. Walker threads do the work that reads a
 * whole data set. */
#include "server/training/dataset_routes.h"

#include "queue/queue.h"
#include "server/http/caller.h"
#include "server/http/query.h"
#include "server/http/respond.h"
#include "server/http/route.h"
#include "server/later/task.h"
#include "train/data/store.h"

#include <stdlib.h>
#include <string.h>

struct dataset_task {
    struct task task;            /* the first member */
    struct dataset_store *store; /* borrowed */
    struct queue *queue;         /* borrowed; NULL: this daemon has no jobs */
    struct viewer viewer;
    char name[DATASET_NAME_MAX_BYTES + 1];
    struct dataset_upload *upload; /* owned; NULL: none, or ended */
};

static struct dataset_store *store_of(const struct exchange *exchange) {
    return exchange->server->options.datasets;
}

/* Reads the name from the path of the target. */
static bool read_name(
    const struct exchange *exchange, char name[DATASET_NAME_MAX_BYTES + 1], struct error *err) {
    size_t length;
    const char *text = route_piece(exchange->route, exchange->target, &length);
    const int shown = (int)(length < DATASET_NAME_MAX_BYTES ? length : DATASET_NAME_MAX_BYTES);
    snprintf(name, DATASET_NAME_MAX_BYTES + 1, "%.*s", shown, text);
    if (length > DATASET_NAME_MAX_BYTES)
        return error_field(err, "name", name, "at most %d bytes", DATASET_NAME_MAX_BYTES);
    return dataset_name_check("name", name, err);
}

static bool is_open(const struct exchange *exchange, struct error *err) {
    if (!query_none(exchange->target, err))
        return false;
    return store_of(exchange) ||
           error_set(err, ERROR_NOT_FOUND,
               "this daemon has no folder of data sets; start it with --dataset-root FOLDER");
}

static bool is_open_named(const struct exchange *exchange, struct error *err) {
    char name[DATASET_NAME_MAX_BYTES + 1];
    return is_open(exchange, err) && read_name(exchange, name, err);
}

/* --- On the workers' threads --- */

static struct dataset_task *task_of(struct task *task) {
    return (struct dataset_task *)task;
}

static void destroy(struct task *task) {
    dataset_upload_abort(task_of(task)->upload);
    free(task);
}

static bool describe(struct task *task, struct error *err) {
    struct dataset_task *t = task_of(task);
    return dataset_store_describe(t->store, t->name, &task->json, err);
}

/* Returns whether the job's field `key` names the data set, or a folder in it. */
static bool names(const json_t *request, const char *key, const char *dataset) {
    const char *text = json_string_value(json_object_get(request, key));
    const size_t length = strlen(dataset);
    return text && strncmp(text, dataset, length) == 0 &&
           (text[length] == 0 || text[length] == '/');
}

static bool refuse_use(
    const struct job *job, const char *dataset, const struct viewer *viewer, struct error *err) {
    json_t *request = json_loads(job->request, 0, NULL);
    const bool used = names(request, "dataset", dataset) ||
                      names(request, "class_data_dir", dataset);
    json_decref(request);
    if (!used)
        return true;
    const char *state = job_state_name(job->state);
    if (!viewer_sees(viewer, job->owner))
        return error_set(err, ERROR_CONFLICT,
            "data set %s is used by a job of another caller, which is %s", dataset, state);
    return error_set(err, ERROR_CONFLICT,
        "data set %s is used by job %s, which is %s; cancel the job first", dataset, job->id,
        state);
}

bool dataset_is_unused(
    struct queue *queue, const char *dataset, const struct viewer *viewer, struct error *err) {
    struct job_filter filter = { .states = 1u << JOB_QUEUED | 1u << JOB_RUNNING | 1u << JOB_PAUSED,
        .type = JOB_TYPE_TRAIN,
        .limit = JOBS_PAGE_MAX };
    bool ok = true, more = queue != NULL;
    while (ok && more) {
        struct job_list list;
        if (!queue_list(queue, &filter, &list, err))
            return false;
        for (int i = 0; ok && i < list.count; i++) {
            ok = refuse_use(&list.jobs[i], dataset, viewer, err);
            filter.after = list.jobs[i].number;
        }
        more = list.has_more;
        job_list_finish(&list);
    }
    return ok;
}

static bool delete_one(struct task *task, struct error *err) {
    struct dataset_task *t = task_of(task);
    task->status = 204;
    return dataset_is_unused(t->queue, t->name, &t->viewer, err) &&
           dataset_store_delete(t->store, t->name, err);
}

static bool end_upload(struct task *task, struct error *err) {
    struct dataset_task *t = task_of(task);
    struct dataset_upload *upload = t->upload;
    t->upload = NULL;
    task->status = 201;
    return dataset_upload_end(upload, (struct cancel){ task_is_cancelled, task }, &task->json, err);
}

static bool list(struct task *task, struct error *err) {
    json_t *names;
    if (!dataset_store_list(task_of(task)->store, &names, err))
        return false;
    task->json = json_pack("{s:o}", "datasets", names);
    return task->json;
}

/* Starts a task. Takes over `upload`. */
static enum MHD_Result start(struct exchange *exchange, struct workers *workers,
    bool (*run)(struct task *task, struct error *err), bool named, struct dataset_upload *upload) {
    struct error err = { 0 };
    struct dataset_task *t = calloc(1, sizeof(*t));
    if (!t || (named && !read_name(exchange, t->name, &err))) {
        dataset_upload_abort(upload);
        const bool memory = !t;
        free(t);
        return memory ? task_start(NULL, exchange, NULL, run, destroy)
                      : respond_error(exchange, &err);
    }
    t->store = store_of(exchange);
    t->queue = exchange->server->options.queue;
    t->viewer = viewer_of(exchange);
    t->upload = upload;
    return task_start(&t->task, exchange, workers, run, destroy);
}

/* --- The methods --- */

static enum MHD_Result handle_list(struct exchange *exchange) {
    return start(exchange, exchange->server->loaders, list, false, NULL);
}

static enum MHD_Result handle_get(struct exchange *exchange) {
    return start(exchange, exchange->server->walkers, describe, true, NULL);
}

static enum MHD_Result handle_delete(struct exchange *exchange) {
    return start(exchange, exchange->server->walkers, delete_one, true, NULL);
}

static enum MHD_Result handle_put(struct exchange *exchange) {
    struct dataset_upload *upload = exchange->upload;
    exchange->upload = NULL;
    return start(exchange, exchange->server->unpackers, end_upload, true, upload);
}

/* --- The body of PUT --- */

static uint64_t upload_max_bytes(const struct exchange *exchange) {
    return exchange->server->options.dataset_max_bytes;
}

static bool upload_begin(struct exchange *exchange, struct error *err) {
    struct dataset_upload *upload;
    char name[DATASET_NAME_MAX_BYTES + 1];
    const uint64_t bytes = exchange->body_bytes == BODY_BYTES_UNKNOWN ? 0 : exchange->body_bytes;
    if (!read_name(exchange, name, err) ||
        !dataset_upload_begin(store_of(exchange), name, bytes, &upload, err))
        return false;
    exchange->upload = upload;
    return true;
}

static bool upload_write(
    struct exchange *exchange, const void *bytes, size_t size, struct error *err) {
    return dataset_upload_write(exchange->upload, bytes, size, err);
}

static void upload_give_up(struct exchange *exchange) {
    dataset_upload_abort(exchange->upload);
    exchange->upload = NULL;
}

static const struct body_sink upload = { upload_max_bytes, upload_begin, upload_write,
    upload_give_up };
static const char *const archive_types[] = { "application/x-tar", "application/gzip",
    "application/x-gzip", "application/octet-stream", "", NULL };

const struct route route_datasets = { .path = "/datasets",
    .methods = { { "GET", .may_come = is_open, .handle = handle_list,
        .about = "lists the data sets", .returns = "{datasets: [string]}" } } };

const struct route route_dataset = { .path = "/datasets/",
    .is_prefix = true,
    .methods = { { "GET", .may_come = is_open_named, .handle = handle_get,
                     .about = "a report on a data set", .returns = "Dataset" },
        { "PUT", archive_types, is_open_named, handle_put, &upload,
            "uploads a data set as a tar archive", .returns = "201 Dataset" },
        { "DELETE", .may_come = is_open_named, .handle = handle_delete,
            .about = "deletes a data set", .returns = "204" } } };
