#include "server/later/task.h"

#include "server/http/respond.h"

#include <stdlib.h>
#include <unistd.h>

/* Gives away what the task owns of it. */
static enum MHD_Result answer_body(struct task *task, struct exchange *exchange) {
    const struct task_body body = task->body;
    task->body = (struct task_body){ 0 };
    if (body.content_type && !body.bytes)
        return respond_file(exchange, body.content_type, body.file, body.size);
    return respond_bytes(
        exchange, task->status, body.content_type, body.bytes, (size_t)body.size, NULL, false);
}

static enum MHD_Result answer(struct deferred *deferred, struct exchange *exchange) {
    struct task *task = (struct task *)deferred;
    if (task->error.code != ERROR_NONE)
        return respond_error(exchange, &task->error);
    if (!task->json)
        return answer_body(task, exchange);
    return respond_json(exchange, task->status, json_incref(task->json));
}

static void destroy(struct deferred *deferred) {
    struct task *task = (struct task *)deferred;
    json_decref(task->json);
    if (task->body.content_type && !task->body.bytes)
        close(task->body.file);
    free(task->body.bytes);
    task->destroy(task);
}

bool task_is_cancelled(void *task) {
    return deferred_is_cancelled(task);
}

static void run_task(struct deferred *deferred) {
    struct task *task = (struct task *)deferred;
    if (!task->run(task, &task->error) && task->error.code == ERROR_NONE)
        error_set(&task->error, ERROR_NO_MEMORY, "no memory for the answer");
    deferred_done(deferred);
}

enum MHD_Result task_start(struct task *task, struct exchange *exchange, struct workers *workers,
    bool (*run)(struct task *task, struct error *err), void (*free_task)(struct task *task)) {
    static const struct deferred_kind kind = { .answer = answer, .destroy = destroy };
    enum MHD_Result refused;
    if (task) {
        task->run = run;
        task->destroy = free_task;
        task->status = 200;
    }
    return deferred_begin((struct deferred *)task, &kind, exchange, &refused)
               ? deferred_give(&task->deferred, exchange, workers, run_task)
               : refused;
}
