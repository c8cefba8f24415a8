#include "server/pending.h"

#include "base/log.h"
#include "server/http/connections.h"
#include "server/dialect/generate_answer.h"
#include "server/http/respond.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct job {
    /* Set before the engine has it, constant afterwards. */
    struct http_server *server;
    struct MHD_Connection *http;
    char id[REQUEST_ID_MAX_BYTES + 1];
    enum job_format format;
    time_t created;

    /* From here to `next`: one thread after the other. */
    json_t *parameters; /* owned */
    struct generate_result result;
    struct error error; /* code ERROR_NONE: `body` is the answer */
    char *body;         /* owned */
    size_t body_size;
    uint64_t seed; /* of the one picture of a JOB_PNG */
    struct job *next;

    pthread_mutex_t mutex; /* guards what follows */
    int references;
    struct engine_ticket *ticket; /* owned */
    bool suspended, done, cancelled;
};

/* Jobs whose pictures are drawn, in order; the mutex guards the list and `stopping`. */
struct job_worker {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct job *first, *last;
    bool stopping;
};

void job_unref(struct job *job) {
    if (!job)
        return;
    pthread_mutex_lock(&job->mutex);
    bool last = --job->references == 0;
    pthread_mutex_unlock(&job->mutex);
    if (!last)
        return;
    if (job->ticket)
        engine_ticket_release(job->ticket);
    generate_result_finish(&job->result);
    json_decref(job->parameters);
    free(job->body);
    pthread_mutex_destroy(&job->mutex);
    free(job);
}

void job_cancel(void *argument) {
    struct job *job = argument;
    pthread_mutex_lock(&job->mutex);
    if (!job->done && !job->cancelled && job->ticket) {
        job->cancelled = true;
        engine_cancel(job->server->options.engine, job->ticket);
        log_info("%s: the client went away, cancelling", job->id);
    }
    pthread_mutex_unlock(&job->mutex);
}

/* From the engine's thread: must not wait. The result's contents become ours. */
static void on_done(struct generate_result *result, const struct error *err, void *user) {
    struct job *job = user;
    struct job_worker *worker = job->server->worker;
    if (result) {
        job->result = *result;
        memset(result, 0, sizeof(*result));
    } else {
        job->error = *err;
    }
    pthread_mutex_lock(&worker->mutex);
    if (worker->last)
        worker->last->next = job;
    else
        worker->first = job;
    worker->last = job;
    pthread_cond_signal(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
}

static void encode(struct job *job) {
    struct generate_answer answer = {
        .id = job->id,
        .created = job->created,
        .model_name = job->server->options.model_name,
        .parameters = job->parameters,
        .result = &job->result,
    };
    if (job->format == JOB_JSON) {
        job->body = generate_answer_json(&answer, &job->body_size, &job->error);
    } else {
        uint8_t *png = NULL;
        if (generate_answer_png(&answer, 0, &png, &job->body_size, &job->error))
            job->body = (char *)png;
        job->seed = job->result.seeds[0];
    }
}

/* Makes the answer and wakes the connection. */
static void finish(struct job *job) {
    struct http_server *server = job->server;
    double total_s = job->result.timings.total_s;
    if (job->error.code == ERROR_NONE)
        encode(job);
    if (job->error.code == ERROR_NONE)
        log_info("%s: %d image(s) in %.2f s", job->id, job->result.image_count, total_s);
    else if (error_http_status(job->error.code) >= 500)
        log_error("%s: %s", job->id, job->error.message);
    generate_result_finish(&job->result);
    memset(&job->result, 0, sizeof(job->result));

    pthread_mutex_lock(&job->mutex);
    job->done = true;
    if (job->suspended) {
        job->suspended = false;
        MHD_resume_connection(job->http);
    }
    pthread_mutex_unlock(&job->mutex);
    job_unref(job);

    pthread_mutex_lock(&server->mutex);
    if (total_s > 0)
        server->last_total_s = total_s;
    if (--server->jobs == 0)
        pthread_cond_broadcast(&server->idle);
    pthread_mutex_unlock(&server->mutex);
}

static void *work(void *argument) {
    struct job_worker *worker = argument;
    pthread_mutex_lock(&worker->mutex);
    for (;;) {
        while (!worker->first && !worker->stopping)
            pthread_cond_wait(&worker->changed, &worker->mutex);
        struct job *job = worker->first;
        if (!job)
            break;
        worker->first = job->next;
        if (!worker->first)
            worker->last = NULL;
        pthread_mutex_unlock(&worker->mutex);
        finish(job);
        pthread_mutex_lock(&worker->mutex);
    }
    pthread_mutex_unlock(&worker->mutex);
    return NULL;
}

bool job_worker_create(struct job_worker **out, struct error *err) {
    struct job_worker *worker = calloc(1, sizeof(*worker));
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

void job_worker_destroy(struct job_worker *worker) {
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

/* Counts the job in, unless the server stops: from then on http_server_drain waits for it. */
static bool admit(struct http_server *server, struct error *err) {
    pthread_mutex_lock(&server->mutex);
    bool stopping = server->stopping;
    if (!stopping)
        server->jobs++;
    pthread_mutex_unlock(&server->mutex);
    return !stopping || error_set(err, ERROR_UNAVAILABLE, "the server is stopping");
}

static void take_back(struct http_server *server) {
    pthread_mutex_lock(&server->mutex);
    if (--server->jobs == 0)
        pthread_cond_broadcast(&server->idle);
    pthread_mutex_unlock(&server->mutex);
}

bool job_start(struct exchange *exchange, struct generate_request *request, json_t *parameters,
    enum job_format format, bool *suspended, struct error *err) {
    struct http_server *server = exchange->server;
    struct job *job = calloc(1, sizeof(*job));
    if (!job) {
        json_decref(parameters);
        return error_set(err, ERROR_NO_MEMORY, "not enough memory for the request");
    }
    job->server = server;
    job->http = exchange->http;
    job->parameters = parameters;
    job->format = format;
    job->created = time(NULL);
    job->references = 2; /* the exchange's, and the engine's that the worker takes over */
    memcpy(job->id, exchange->id, sizeof(job->id));
    pthread_mutex_init(&job->mutex, NULL);

    const struct engine_callbacks callbacks = { .done = on_done, .user = job };
    struct engine_ticket *ticket = NULL;
    bool ok = admit(server, err);
    if (ok && !engine_submit(server->options.engine, request, &callbacks, &ticket, err)) {
        take_back(server);
        ok = false;
    }
    if (!ok) {
        job->references = 1;
        job_unref(job);
        return false;
    }
    exchange->job = job;
    pthread_mutex_lock(&job->mutex);
    job->ticket = ticket;
    pthread_mutex_unlock(&job->mutex);
    if (exchange->connection)
        connections_watch(server->connections, exchange->connection, job);
    pthread_mutex_lock(&job->mutex);
    *suspended = !job->done;
    if (!job->done) {
        job->suspended = true;
        MHD_suspend_connection(exchange->http);
    }
    pthread_mutex_unlock(&job->mutex);
    return true;
}

enum MHD_Result job_answer(struct exchange *exchange) {
    struct job *job = exchange->job;
    if (job->error.code != ERROR_NONE)
        return respond_error(exchange, &job->error);
    char seed[24];
    snprintf(seed, sizeof(seed), "%" PRIu64, job->seed);
    const struct answer_header headers[] = {
        { "X-Seed", job->format == JOB_PNG ? seed : NULL },
        { NULL, NULL },
    };
    char *body = job->body;
    job->body = NULL;
    return respond_bytes(exchange, 200, job->format == JOB_PNG ? "image/png" : "application/json",
        body, job->body_size, headers, false);
}
