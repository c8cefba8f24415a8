#include "server/server.h"

enum engine_state server_state(struct http_server *server, struct error *why_failed) {
    pthread_mutex_lock(&server->mutex);
    bool stopping = server->stopping;
    pthread_mutex_unlock(&server->mutex);
    return stopping ? ENGINE_STOPPING : engine_get_state(server->options.engine, why_failed);
}

int server_retry_after_s(struct http_server *server) {
    pthread_mutex_lock(&server->mutex);
    double seconds = server->last_total_s;
    pthread_mutex_unlock(&server->mutex);
    return seconds <= 1 ? 1 : seconds >= 60 ? 60 : (int)seconds + 1;
}
