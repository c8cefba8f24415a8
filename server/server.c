#include "server/server.h"

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

#define ENDS_REMEMBERED 8 /* about so many decide the mean */

void request_ends_add(struct request_ends *ends, double now_s, double total_s) {
    const double begun_s = now_s - total_s;
    const double since_s = ends->last_s > begun_s ? ends->last_s : begun_s;
    const double took_s = now_s - since_s;
    ends->mean_s = ends->last_s == 0 ? took_s
                                     : ends->mean_s + (took_s - ends->mean_s) / ENDS_REMEMBERED;
    ends->last_s = now_s;
}

int request_ends_wait_s(const struct request_ends *ends) {
    return ends->mean_s <= 1 ? 1 : ends->mean_s >= 60 ? 60 : (int)ceil(ends->mean_s);
}

int server_retry_after_s(struct http_server *server) {
    pthread_mutex_lock(&server->mutex);
    const int seconds = request_ends_wait_s(&server->ends);
    pthread_mutex_unlock(&server->mutex);
    return seconds;
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
