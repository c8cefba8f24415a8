/* What a training job writes for its users: GET /jobs/{id}/metrics, /plot.svg, /checkpoints,
 * /validation and its files, and /adapter. A loader thread reads all of it from the job's folder,
 * also while the job runs. A job that has not begun has nothing yet. */
#include "base/file.h"
#include "engine/training_job/folder.h"
#include "server/generation/generations.h"
#include "server/generation/results.h"
#include "server/http/query.h"
#include "server/http/respond.h"
#include "server/jobs/jobs.h"
#include "server/later/task.h"
#include "train/report/plot.h"

#include <stdlib.h>
#include <string.h>

#define PREFIX "/jobs/"
#define ID_BYTES 64
#define NAME_BYTES 64 /* more than any file name has */

struct files_task {
    struct task task; /* the first member */
    struct queue *queue;
    const char *state_folder;
    char id[ID_BYTES], name[NAME_BYTES];
    struct viewer viewer;
    int64_t after;
    bool (*read)(
        struct files_task *t, const struct job *job, const char *folder, struct error *err);
};

static void destroy(struct task *task) {
    free(task);
}

/* Reads the file after checking that the job exists and that the viewer may see it. */
static bool run(struct task *task, struct error *err) {
    struct files_task *t = (struct files_task *)task;
    struct job job;
    if (!jobs_get(t->queue, t->id, &t->viewer, &job, err))
        return false;
    char *folder = job_folder_path(t->state_folder, job.id);
    const bool ok = folder && t->read(t, &job, folder, err);
    free(folder);
    job_finish(&job);
    return ok;
}

/* --- The contents of a job's folder --- */

static void give_text(struct files_task *t, const char *type, char *text, size_t size) {
    t->task.body = (struct task_body){ .content_type = type, .bytes = text, .size = size };
}

static bool read_metrics(
    struct files_task *t, const struct job *job, const char *folder, struct error *err) {
    char *text;
    size_t size;
    (void)job;
    if (!records_lines(folder, t->after, &text, &size, err))
        return false;
    give_text(t, "application/x-ndjson", text, size);
    return true;
}

static bool read_plot(
    struct files_task *t, const struct job *job, const char *folder, struct error *err) {
    struct train_record *records;
    size_t count;
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    if (!records_read(folder, &records, &count, err))
        return false;
    const char *title = job_folder_adapter_name(folder, name) ? name : job->id;
    char *text = plot_losses(title, records, count);
    free(records);
    if (text)
        give_text(t, "image/svg+xml", text, strlen(text));
    return text;
}

static bool read_checkpoints(
    struct files_task *t, const struct job *job, const char *folder, struct error *err) {
    json_t *list;
    (void)job;
    if (!job_folder_checkpoints(folder, &list, err))
        return false;
    t->task.json = json_pack("{s:o}", "checkpoints", list);
    return t->task.json;
}

static bool read_validations(
    struct files_task *t, const struct job *job, const char *folder, struct error *err) {
    json_t *list, *item;
    size_t i;
    if (!job_folder_validations(folder, &list, err))
        return false;
    bool ok = true;
    json_array_foreach(list, i, item) ok = ok && jobs_add_validation_urls(job, item);
    char *grid = job_folder_validation_file(folder, "grid.png");
    json_t *url = grid && file_exists(grid) ? json_sprintf("/jobs/%s/validation/grid.png", job->id)
                                            : json_null();
    free(grid);
    t->task.json = json_pack("{s:o, s:o}", "validation", list, "grid_url", url);
    return ok && t->task.json;
}

static bool give_file(struct files_task *t, const char *type, const char *path, struct error *err) {
    uint64_t size;
    const int fd = file_open_regular(path, &size, err);
    if (fd < 0)
        return false;
    t->task.body = (struct task_body){ .content_type = type, .file = fd, .size = size };
    return true;
}

static bool read_validation_file(
    struct files_task *t, const struct job *job, const char *folder, struct error *err) {
    char *path = job_folder_validation_file(folder, t->name);
    const bool is_there = path && file_exists(path);
    const bool ok = is_there ? give_file(t, "image/png", path, err)
                             : error_set(err, ERROR_NOT_FOUND,
                                   "job %s has no validation picture %.64s", job->id, t->name);
    free(path);
    return ok;
}

static bool give_adapter(struct files_task *t, const struct job *job, const char *folder,
    bool is_second, struct error *err) {
    char name[ADAPTER_NAME_MAX_BYTES + 1], *path = NULL;
    if (job_folder_adapter_name(folder, name) &&
        !(path = job_folder_adapter(folder, name, is_second)))
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    bool ok = false;
    if (path && file_exists(path))
        ok = give_file(t, "application/octet-stream", path, err);
    else if (is_second && job->state == JOB_SUCCEEDED)
        error_set(err, ERROR_NOT_FOUND,
            "job %s has no second file: save_format \"both\" writes one in kohya's format",
            job->id);
    else
        error_set(err, ERROR_NOT_FOUND, "job %s has no adapter yet: its state is %s", job->id,
            job_state_name(job->state));
    free(path);
    return ok;
}

static bool read_adapter(
    struct files_task *t, const struct job *job, const char *folder, struct error *err) {
    return give_adapter(t, job, folder, false, err);
}

static bool read_kohya(
    struct files_task *t, const struct job *job, const char *folder, struct error *err) {
    return give_adapter(t, job, folder, true, err);
}

static bool read_image(
    struct files_task *t, const struct job *job, const char *folder, struct error *err) {
    const char *type;
    char *path = results_picture(folder, t->name, &type);
    const bool is_there = path && job->state == JOB_SUCCEEDED && file_exists(path);
    bool ok = false;
    if (is_there)
        ok = give_file(t, type, path, err);
    else if (path && job->state == JOB_SUCCEEDED)
        error_set(
            err, ERROR_NOT_FOUND, "job %s has no picture %.64s, or not any more", job->id, t->name);
    else
        error_set(err, ERROR_NOT_FOUND, "job %s has no picture %.64s: its state is %s", job->id,
            t->name, job_state_name(job->state));
    free(path);
    return ok;
}

/* --- The routes --- */

static void copy_piece(char *out, size_t size, const char *piece, size_t length) {
    snprintf(out, size, "%.*s", (int)(length < size ? length : size - 1), piece);
}

static enum MHD_Result start(
    struct exchange *exchange, bool (*read)(struct files_task *t, const struct job *job,
                                   const char *folder, struct error *err)) {
    struct query_field after = { "after" };
    struct error err = { 0 };
    long long step = 0;
    size_t length;
    const bool pages = read == read_metrics;
    if (!query_parse(exchange->target, &after, pages, &err) ||
        !query_integer(&after, 0, INT64_MAX, &step, &err))
        return respond_error(exchange, &err);
    struct files_task *t = calloc(1, sizeof(*t));
    if (t) {
        const char *piece = route_piece(exchange->route, exchange->target, &length);
        copy_piece(t->id, sizeof(t->id), piece, length);
        piece = route_below(exchange->route, exchange->target, &length);
        copy_piece(t->name, sizeof(t->name), piece, length);
        t->queue = exchange->server->options.queue;
        t->viewer = viewer_of(exchange);
        t->state_folder = exchange->server->options.state_folder;
        t->after = step;
        t->read = read;
    }
    return task_start((struct task *)t, exchange, exchange->server->loaders, run, destroy);
}

static enum MHD_Result handle_metrics(struct exchange *exchange) {
    return start(exchange, read_metrics);
}

static enum MHD_Result handle_plot(struct exchange *exchange) {
    return start(exchange, read_plot);
}

static enum MHD_Result handle_checkpoints(struct exchange *exchange) {
    return start(exchange, read_checkpoints);
}

static enum MHD_Result handle_validations(struct exchange *exchange) {
    return start(exchange, read_validations);
}

static enum MHD_Result handle_validation_file(struct exchange *exchange) {
    return start(exchange, read_validation_file);
}

static enum MHD_Result handle_image(struct exchange *exchange) {
    return start(exchange, read_image);
}

/* Answers with the latest preview of a job that is being drawn. Previews are kept in memory
 * only. */
static enum MHD_Result handle_preview(struct exchange *exchange) {
    struct generation_look look = { 0 };
    struct error err = { 0 };
    char id[ID_BYTES];
    size_t length;
    const char *piece = route_piece(exchange->route, exchange->target, &length);
    copy_piece(id, sizeof(id), piece, length);
    if (!query_none(exchange->target, &err))
        return respond_error(exchange, &err);
    const struct viewer viewer = viewer_of(exchange);
    const bool found = generations_find(exchange->server->generations, &viewer, id, &look);
    const size_t size = look.preview ? look.preview->size : 0;
    uint8_t *bytes = look.preview ? malloc(size) : NULL;
    if (bytes)
        memcpy(bytes, look.preview->jpeg, size);
    generation_look_finish(&look);
    if (bytes)
        return respond_bytes(exchange, 200, "image/jpeg", bytes, size, NULL, false);
    error_set(&err, ERROR_NOT_FOUND,
        found ? "job %s has no preview yet" : "no job %s of yours is being drawn", id);
    return respond_error(exchange, &err);
}

static enum MHD_Result handle_adapter(struct exchange *exchange) {
    return start(exchange, read_adapter);
}

static enum MHD_Result handle_kohya(struct exchange *exchange) {
    return start(exchange, read_kohya);
}

#define GET_ROUTE(name, suffix_, handler, ...)                                                     \
    const struct route name = { .path = PREFIX,                                                    \
        .piece = "id",                                                                             \
        .suffix = suffix_,                                                                         \
        .methods = { { "GET", .may_come = jobs_are_kept, .handle = handler, __VA_ARGS__ } } }

GET_ROUTE(route_job_metrics, "/metrics", handle_metrics,
    .about = "a line of JSON, a TrainRecord, for each step of a training job",
    .query = "after:integer", .answers = "application/x-ndjson");
GET_ROUTE(route_job_plot, "/plot.svg", handle_plot,
    .about = "the losses of a training job as a picture", .answers = "image/svg+xml");
GET_ROUTE(route_job_checkpoints, "/checkpoints", handle_checkpoints,
    .about = "lists the checkpoints of a training job",
    .returns = "{checkpoints: [TrainCheckpoint]}");
GET_ROUTE(route_job_validations, "/validation", handle_validations,
    .about = "lists the validation pictures of a training job",
    .returns = "{validation: [TrainValidation], grid_url: string|null}");
GET_ROUTE(route_job_validation_file, "/validation/", handle_validation_file,
    .about = "a validation picture, or grid.png with all of them", .answers = "image/png");
GET_ROUTE(route_job_adapter, "/adapter", handle_adapter,
    .about = "the file of the adapter that a job has trained",
    .answers = "application/octet-stream");
GET_ROUTE(route_job_kohya, "/adapter/kohya", handle_kohya,
    .about = "the same adapter in kohya's format, if save_format was both",
    .answers = "application/octet-stream");
GET_ROUTE(route_job_image, "/images/", handle_image, .about = "a picture that a job has drawn",
    .answers = "image/png image/jpeg image/webp application/octet-stream");
GET_ROUTE(route_job_preview, "/preview", handle_preview,
    .about = "the picture that a job is drawing, in its current state", .answers = "image/jpeg");
