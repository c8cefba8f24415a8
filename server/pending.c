#include "server/pending.h"

#include "base/log.h"
#include "base/metrics.h"
#include "base/monotonic.h"
#include "server/http/connections.h"
#include "server/dialect/generate_answer.h"
#include "server/http/respond.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct pending {
    /* Set before the engine has it, constant afterwards. */
    struct http_server *server;
    struct MHD_Connection *http;
    char id[REQUEST_ID_MAX_BYTES + 1];
    enum pending_format format;
    time_t created;

    /* From here to `next`: one thread after the other. */
    struct resolved_request request; /* the engine borrows it while it draws */
    struct generate_result result;
    struct error error; /* code ERROR_NONE: `body` is the answer */
    char *body;         /* owned */
    size_t body_size;
    uint64_t seed; /* of the one picture of a PENDING_PNG */
    struct pending *next;

    pthread_mutex_t mutex; /* guards what follows */
    int references;
    struct engine_ticket *ticket; /* owned */
    bool suspended, done, cancelled;
};

/* Answers whose pictures are drawn, in order; the mutex guards the list and `stopping`. */
struct pending_worker {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct pending *first, *last;
    bool stopping;
};

void pending_unref(struct pending *pending) {
    if (!pending)
        return;
    pthread_mutex_lock(&pending->mutex);
    bool last = --pending->references == 0;
    pthread_mutex_unlock(&pending->mutex);
    if (!last)
        return;
    if (pending->ticket)
        engine_ticket_release(pending->ticket);
    generate_result_finish(&pending->result);
    resolved_request_finish(&pending->request);
    free(pending->body);
    pthread_mutex_destroy(&pending->mutex);
    free(pending);
}

void pending_cancel(void *argument) {
    struct pending *pending = argument;
    pthread_mutex_lock(&pending->mutex);
    if (!pending->done && !pending->cancelled && pending->ticket) {
        pending->cancelled = true;
        engine_cancel(pending->server->options.engine, pending->ticket);
        log_info("%s: cancelling, since %s", pending->id,
            server_state(pending->server, NULL) == ENGINE_STOPPING ? "the server is stopping"
                                                                   : "the client went away");
    }
    pthread_mutex_unlock(&pending->mutex);
}

/* From the engine's thread: must not wait. The result's contents become ours. */
static void on_done(struct generate_result *result, const struct error *err, void *user) {
    struct pending *pending = user;
    struct pending_worker *worker = pending->server->worker;
    if (result) {
        pending->result = *result;
        memset(result, 0, sizeof(*result));
    } else {
        pending->error = *err;
    }
    pthread_mutex_lock(&worker->mutex);
    if (worker->last)
        worker->last->next = pending;
    else
        worker->first = pending;
    worker->last = pending;
    pthread_cond_signal(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
}

static void encode(struct pending *pending) {
    struct generate_answer answer = {
        .id = pending->id,
        .created = pending->created,
        .model_name = pending->server->options.model_name,
        .request = &pending->request,
        .result = &pending->result,
    };
    if (pending->format == PENDING_JSON) {
        pending->body = generate_answer_json(&answer, &pending->body_size, &pending->error);
    } else {
        uint8_t *png = NULL;
        if (generate_answer_png(&answer, 0, &png, &pending->body_size, &pending->error))
            pending->body = (char *)png;
        pending->seed = pending->result.seeds[0];
    }
}

static void count_end(const struct pending *pending) {
    switch (pending->error.code) {
    case ERROR_NONE:
        metric_add(METRIC_requests_total_succeeded, 1);
        metric_add(METRIC_images_total, (uint64_t)pending->result.image_count);
        metric_observe(METRIC_queue_seconds, pending->result.timings.queue_s);
        metric_observe(METRIC_request_seconds, pending->result.timings.total_s);
        break;
    case ERROR_CANCELLED:
        metric_add(METRIC_requests_total_cancelled, 1);
        break;
    case ERROR_TIMEOUT:
        metric_add(METRIC_requests_total_timed_out, 1);
        break;
    default:
        metric_add(METRIC_requests_total_failed, 1);
    }
}

/* Makes the answer and wakes the connection. */
static void finish(struct pending *pending) {
    struct http_server *server = pending->server;
    double total_s = pending->result.timings.total_s;
    if (pending->error.code == ERROR_NONE) {
        const double begun_s = monotonic_seconds();
        encode(pending);
        metric_observe(METRIC_png_seconds, monotonic_seconds() - begun_s);
    }
    count_end(pending);
    if (pending->error.code == ERROR_NONE)
        log_info("%s: %d image(s) in %.2f s", pending->id, pending->result.image_count, total_s);
    else if (error_http_status(pending->error.code) >= 500)
        log_error("%s: %s", pending->id, pending->error.message);
    generate_result_finish(&pending->result);
    memset(&pending->result, 0, sizeof(pending->result));

    pthread_mutex_lock(&pending->mutex);
    pending->done = true;
    if (pending->suspended) {
        pending->suspended = false;
        MHD_resume_connection(pending->http);
    }
    pthread_mutex_unlock(&pending->mutex);
    pending_unref(pending);

    pthread_mutex_lock(&server->mutex);
    if (total_s > 0)
        server->last_total_s = total_s;
    if (--server->pending == 0)
        pthread_cond_broadcast(&server->idle);
    pthread_mutex_unlock(&server->mutex);
}

static void *work(void *argument) {
    struct pending_worker *worker = argument;
    pthread_mutex_lock(&worker->mutex);
    for (;;) {
        while (!worker->first && !worker->stopping)
            pthread_cond_wait(&worker->changed, &worker->mutex);
        struct pending *pending = worker->first;
        if (!pending)
            break;
        worker->first = pending->next;
        if (!worker->first)
            worker->last = NULL;
        pthread_mutex_unlock(&worker->mutex);
        finish(pending);
        pthread_mutex_lock(&worker->mutex);
    }
    pthread_mutex_unlock(&worker->mutex);
    return NULL;
}

bool pending_worker_create(struct pending_worker **out, struct error *err) {
    struct pending_worker *worker = calloc(1, sizeof(*worker));
    if (!worker)
        return error_set(err, ERROR_NO_MEMORY, "not enough memory for the worker");
    pthread_mutex_init(&worker->mutex, NULL);
    pthread_cond_init(&worker->changed, NULL);
    if (pthread_create(&worker->thread, NULL, work, worker) != 0) {
        pthread_cond_destroy(&worker->changed);
        pthread_mutex_destroy(&worker->mutex);
        free(worker);
        return error_set(err, ERROR_NO_MEMORY, "cannot start a thread");
    }
    *out = worker;
    return true;
}

void pending_worker_destroy(struct pending_worker *worker) {
    if (!worker)
        return;
    pthread_mutex_lock(&worker->mutex);
    worker->stopping = true;
    pthread_cond_signal(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
    pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->changed);
    pthread_mutex_destroy(&worker->mutex);
    free(worker);
}

/* Counts the answer in, unless the server stops: from then on http_server_drain waits for it. */
static bool admit(struct http_server *server, struct error *err) {
    pthread_mutex_lock(&server->mutex);
    bool stopping = server->stopping;
    if (!stopping)
        server->pending++;
    pthread_mutex_unlock(&server->mutex);
    return !stopping || engine_state_takes(ENGINE_STOPPING, NULL, err);
}

static void take_back(struct http_server *server) {
    pthread_mutex_lock(&server->mutex);
    if (--server->pending == 0)
        pthread_cond_broadcast(&server->idle);
    pthread_mutex_unlock(&server->mutex);
}

static struct pending *pending_create(struct exchange *exchange, enum pending_format format) {
    struct pending *pending = calloc(1, sizeof(*pending));
    if (!pending)
        return NULL;
    pending->server = exchange->server;
    pending->http = exchange->http;
    pending->format = format;
    pending->created = time(NULL);
    pending->references = 2; /* the exchange's, and the engine's that the worker takes over */
    memcpy(pending->id, exchange->id, sizeof(pending->id));
    pthread_mutex_init(&pending->mutex, NULL);
    return pending;
}

bool pending_start(struct exchange *exchange, struct resolved_request *request,
    enum pending_format format, bool *suspended, struct error *err) {
    struct http_server *server = exchange->server;
    struct pending *pending = pending_create(exchange, format);
    if (!pending)
        return error_set(err, ERROR_NO_MEMORY, "not enough memory for the request");
    const struct engine_callbacks callbacks = { .done = on_done, .user = pending };
    struct engine_ticket *ticket = NULL;
    pending->request = *request;
    bool ok = admit(server, err);
    if (ok && !engine_submit(server->options.engine, &pending->request, &callbacks, &ticket, err)) {
        take_back(server);
        ok = false;
    }
    if (!ok) {
        memset(&pending->request, 0, sizeof(pending->request)); /* the caller's again */
        pending->references = 1;
        pending_unref(pending);
        return false;
    }
    memset(request, 0, sizeof(*request));
    exchange->pending = pending;
    pthread_mutex_lock(&pending->mutex);
    pending->ticket = ticket;
    pthread_mutex_unlock(&pending->mutex);
    if (exchange->connection)
        connections_watch(server->connections, exchange->connection, pending);
    pthread_mutex_lock(&pending->mutex);
    *suspended = !pending->done;
    if (!pending->done) {
        pending->suspended = true;
        MHD_suspend_connection(exchange->http);
    }
    pthread_mutex_unlock(&pending->mutex);
    return true;
}

enum MHD_Result pending_answer(struct exchange *exchange) {
    struct pending *pending = exchange->pending;
    if (pending->error.code == ERROR_CANCELLED) /* and the client is there: we are in a hurry */
        error_set(&pending->error, ERROR_UNAVAILABLE, "the server stopped before it was done");
    if (pending->error.code != ERROR_NONE)
        return respond_error(exchange, &pending->error);
    char seed[24];
    snprintf(seed, sizeof(seed), "%" PRIu64, pending->seed);
    const struct answer_header headers[] = {
        { "X-Seed", pending->format == PENDING_PNG ? seed : NULL },
        { NULL, NULL },
    };
    char *body = pending->body;
    pending->body = NULL;
    return respond_bytes(exchange, 200,
        pending->format == PENDING_PNG ? "image/png" : "application/json", body, pending->body_size,
        headers, false);
}
