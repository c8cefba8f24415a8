/* POST /train: writes a job for the runner of training jobs (queue/dispatcher.h) to the queue, and
 * then answers. */
#include "base/text/json.h"
#include "server/http/route.h"
#include "server/jobs/jobs.h"
#include "server/later/reading.h"
#include "server/later/task.h"
#include "server/training/train_order.h"
#include "train/config.h"

#include <stdlib.h>

struct order_task {
    struct task task; /* the first member */
    struct train_order order;
    json_t *body; /* owned */
};

static void destroy(struct task *task) {
    json_decref(((struct order_task *)task)->body);
    free(task);
}

static bool enqueue(struct task *task, struct error *err) {
    struct order_task *t = (struct order_task *)task;
    struct job job;
    if (!train_order_place(&t->order, t->body, t->body, &job, err))
        return false;
    task->status = 202;
    const bool ok = jobs_tell(task, &job, err);
    job_finish(&job);
    return ok;
}

struct read_order {
    json_t *body; /* owned */
};

static bool read_body(const struct exchange *exchange, void *out, struct error *err) {
    struct read_order *order = out;
    order->body = json_parse_request(exchange->body, exchange->body_size, err);
    return order->body;
}

static void finish_body(void *read) {
    json_decref(((struct read_order *)read)->body);
}

static enum MHD_Result start(struct exchange *exchange, void *read) {
    json_t *body = ((struct read_order *)read)->body;
    struct order_task *t = calloc(1, sizeof(*t));
    if (t) {
        train_order_init(&t->order, exchange);
        t->body = body;
    } else {
        json_decref(body);
    }
    return task_start((struct task *)t, exchange, exchange->server->clerks, enqueue, destroy);
}

static enum MHD_Result handle(struct exchange *exchange) {
    static const struct reading_kind kind = {
        .size = sizeof(struct read_order),
        .read = read_body,
        .handle = start,
        .finish = finish_body,
    };
    return reading_start(exchange, &kind);
}

const struct route route_train = { .path = "/train",
    .methods = { { "POST", content_types_json, train_order_may_come, handle, .large = true,
        .about = "orders a training job", .schema = train_config_schema, .returns = "202 Job" } } };
