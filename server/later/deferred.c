#include "server/later/deferred.h"

#include "server/http/caller.h"
#include "server/http/connections.h"
#include "server/http/respond.h"
#include "server/later/job_watch.h"

#include <stddef.h>

bool deferred_init(struct deferred *deferred, const struct deferred_kind *kind,
    struct exchange *exchange, struct error *err) {
    struct http_server *server = exchange->server;
    deferred->kind = kind;
    deferred->server = server;
    deferred->http = exchange->http;
    deferred->references = 2;
    pthread_mutex_init(&deferred->mutex, NULL);
    pthread_mutex_lock(&server->mutex);
    const bool stopping = server->stopping;
    if (!stopping)
        server->pending++;
    pthread_mutex_unlock(&server->mutex);
    if (!stopping)
        return true;
    deferred->references = 1;
    return engine_state_takes(ENGINE_STOPPING, NULL, err);
}

static void count_out(struct http_server *server) {
    pthread_mutex_lock(&server->mutex);
    if (--server->pending == 0)
        pthread_cond_broadcast(&server->idle);
    pthread_mutex_unlock(&server->mutex);
}

bool deferred_begin(struct deferred *deferred, const struct deferred_kind *kind,
    struct exchange *exchange, enum MHD_Result *refused) {
    struct error err = { 0 };
    if (!deferred)
        error_set(&err, ERROR_NO_MEMORY, "no memory for the request");
    else if (deferred_init(deferred, kind, exchange, &err))
        return true;
    deferred_unref(deferred);
    *refused = respond_error(exchange, &err);
    return false;
}

static void release(struct watcher *watcher) {
    deferred_unref(watcher->deferred);
}

bool deferred_watch(struct deferred *deferred, struct watcher *watcher, struct error *err) {
    watcher->deferred = deferred;
    watcher->release = release;
    deferred_ref(deferred);
    if (job_watch_add(deferred->server->job_watch, watcher, err))
        return true;
    deferred->references = 1;
    count_out(deferred->server);
    return false;
}

enum MHD_Result deferred_wait(struct deferred *deferred, struct exchange *exchange) {
    exchange->deferred = deferred;
    if (exchange->connection)
        connections_watch(exchange->server->connections, exchange->connection, deferred);
    pthread_mutex_lock(&deferred->mutex);
    const bool done = deferred->done;
    if (!done)
        deferred_rest(deferred);
    pthread_mutex_unlock(&deferred->mutex);
    return done ? deferred->kind->answer(deferred, exchange) : MHD_YES;
}

static void run(struct work *work) {
    struct deferred *deferred = (struct deferred *)((char *)work - offsetof(struct deferred, work));
    deferred->run(deferred);
}

enum MHD_Result deferred_give(struct deferred *deferred, struct exchange *exchange,
    struct workers *workers, void (*run_later)(struct deferred *deferred)) {
    deferred->work.run = run;
    deferred->work.caller = caller_number(caller_of(exchange).text);
    deferred->run = run_later;
    const enum MHD_Result result = deferred_wait(deferred, exchange);
    workers_give(workers, &deferred->work);
    return result;
}

/* Called when the stream has ended, for whatever reason. */
static void end_stream(void *user) {
    deferred_cancel(user);
    deferred_unref(user);
}

enum MHD_Result deferred_stream(
    struct deferred *deferred, struct exchange *exchange, MHD_ContentReaderCallback read) {
    static const struct answer_header headers[] = { { "X-Accel-Buffering", "no" }, { NULL, NULL } };
    deferred_ref(deferred);
    return respond_stream(exchange, "text/event-stream", read, end_stream, deferred, headers);
}

void deferred_rest(struct deferred *deferred) {
    deferred->suspended = true;
    MHD_suspend_connection(deferred->http);
}

void deferred_go_on(struct deferred *deferred) {
    if (!deferred->suspended)
        return;
    deferred->suspended = false;
    MHD_resume_connection(deferred->http);
}

void deferred_done(struct deferred *deferred) {
    struct http_server *server = deferred->server;
    pthread_mutex_lock(&deferred->mutex);
    deferred->done = true;
    deferred_go_on(deferred);
    pthread_mutex_unlock(&deferred->mutex);
    deferred_unref(deferred);
    count_out(server);
}

void deferred_cancel(void *argument) {
    struct deferred *deferred = argument;
    pthread_mutex_lock(&deferred->mutex);
    if ((!deferred->done || deferred->kind->streams) && !deferred->cancelled) {
        deferred->cancelled = true;
        if (deferred->kind->cancel)
            deferred->kind->cancel(deferred);
    }
    pthread_mutex_unlock(&deferred->mutex);
}

bool deferred_is_cancelled(struct deferred *deferred) {
    pthread_mutex_lock(&deferred->mutex);
    const bool cancelled = deferred->cancelled;
    pthread_mutex_unlock(&deferred->mutex);
    return cancelled;
}

void deferred_ref(struct deferred *deferred) {
    pthread_mutex_lock(&deferred->mutex);
    deferred->references++;
    pthread_mutex_unlock(&deferred->mutex);
}

void deferred_unref(struct deferred *deferred) {
    if (!deferred)
        return;
    pthread_mutex_lock(&deferred->mutex);
    const bool last = --deferred->references == 0;
    pthread_mutex_unlock(&deferred->mutex);
    if (!last)
        return;
    pthread_mutex_destroy(&deferred->mutex);
    deferred->kind->destroy(deferred);
}
