#include "server/later/deferred.h"

#include "server/http/connections.h"

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

void deferred_take_back(struct deferred *deferred) {
    deferred->references = 1;
    count_out(deferred->server);
}

bool deferred_suspend(struct deferred *deferred, struct exchange *exchange) {
    exchange->deferred = deferred;
    if (exchange->connection)
        connections_watch(exchange->server->connections, exchange->connection, deferred);
    pthread_mutex_lock(&deferred->mutex);
    const bool suspend = !deferred->done;
    if (suspend) {
        deferred->suspended = true;
        MHD_suspend_connection(exchange->http);
    }
    pthread_mutex_unlock(&deferred->mutex);
    return suspend;
}

void deferred_done(struct deferred *deferred) {
    struct http_server *server = deferred->server;
    pthread_mutex_lock(&deferred->mutex);
    deferred->done = true;
    if (deferred->suspended) {
        deferred->suspended = false;
        MHD_resume_connection(deferred->http);
    }
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
