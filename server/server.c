#include "server/server.h"

#include <stdarg.h>
#include <stdio.h>

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

void server_log_refusal(struct http_server *server, const char *format, ...) {
    int dropped;
    pthread_mutex_lock(&server->mutex);
    const bool allowed = log_limit_allows(&server->refusals, &dropped);
    pthread_mutex_unlock(&server->mutex);
    if (!allowed)
        return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    for (char *p = line; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    if (dropped)
        log_info("%d more requests were refused", dropped);
    log_info("%s", line);
}
