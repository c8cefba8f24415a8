#include "server/http/server.h"

#include "base/limits.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

static enum engine_state state_of(struct http_server *server, struct error *why_failed) {
    pthread_mutex_lock(&server->mutex);
    bool stopping = server->stopping;
    pthread_mutex_unlock(&server->mutex);
    return stopping ? ENGINE_STOPPING : engine_get_state(server->options.engine, why_failed);
}

enum engine_state server_state(struct http_server *server) {
    return state_of(server, NULL);
}

bool server_takes(struct http_server *server, struct error *err) {
    struct error why = { 0 };
    const enum engine_state state = state_of(server, &why);
    return engine_state_takes(state, &why, err);
}

int server_retry_after_s(struct http_server *server, uint64_t caller) {
    const double wait_s = engine_wait_s(server->options.engine, caller);
    return wait_s <= 1 ? 1 : wait_s >= RETRY_AFTER_MAX_S ? RETRY_AFTER_MAX_S : (int)ceil(wait_s);
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
