#include "server/http/library/threads.h"

#include "base/limits.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY_EVENTS 128 /* MAX_EVENTS of MHD_epoll */
_Static_assert(HTTP_THREAD_CONNECTIONS + 1 < LIBRARY_EVENTS, "see threads.h");

struct http_threads {
    int count;
    struct http_thread of[];
};

/* Keeps the target escaped: it is compared with paths that contain no escapes. */
static size_t keep_escapes(void *user, struct MHD_Connection *http, char *text) {
    (void)user;
    (void)http;
    return strlen(text);
}

static bool start(
    struct http_thread *thread, const struct http_callbacks *callbacks, struct error *err) {
    const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ITC |
                           MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    const struct MHD_OptionItem options[] = {
        { MHD_OPTION_EXTERNAL_LOGGER, (intptr_t)callbacks->on_log, thread },
        /* We enforce the limit; the library must never reach its own. */
        { MHD_OPTION_CONNECTION_LIMIT, 2 * HTTP_THREAD_CONNECTIONS, NULL },
        { MHD_OPTION_CONNECTION_TIMEOUT, HTTP_IDLE_TIMEOUT_S, NULL },
        { MHD_OPTION_CONNECTION_MEMORY_LIMIT, HTTP_CONNECTION_BYTES, NULL },
        { MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)callbacks->on_connection, thread },
        { MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)callbacks->on_completed, thread },
        { MHD_OPTION_URI_LOG_CALLBACK, (intptr_t)callbacks->on_target, thread },
        { MHD_OPTION_UNESCAPE_CALLBACK, (intptr_t)keep_escapes, NULL },
        { MHD_OPTION_END, 0, NULL },
    };
    thread->daemon = MHD_start_daemon(flags, 0, NULL, NULL, callbacks->on_request, thread,
        MHD_OPTION_ARRAY, options, MHD_OPTION_END);
    return thread->daemon || error_set(err, ERROR_IO, "the HTTP server could not be started");
}

bool http_threads_create(struct http_server *server, const struct http_callbacks *callbacks,
    int connections_max, struct http_threads **out, struct error *err) {
    const int needed = (connections_max + HTTP_THREAD_CONNECTIONS - 1) / HTTP_THREAD_CONNECTIONS;
    const int count = needed > HTTP_THREADS_MIN ? needed : HTTP_THREADS_MIN;
    struct http_threads *threads = calloc(
        1, sizeof(*threads) + (size_t)count * sizeof(threads->of[0]));
    if (!threads)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the HTTP server");
    for (; threads->count < count; threads->count++) {
        struct http_thread *thread = &threads->of[threads->count];
        thread->server = server;
        atomic_init(&thread->connections, 0);
        if (!start(thread, callbacks, err)) {
            http_threads_destroy(threads);
            return false;
        }
    }
    *out = threads;
    return true;
}

void http_threads_destroy(struct http_threads *threads) {
    if (!threads)
        return;
    for (int i = 0; i < threads->count; i++)
        MHD_stop_daemon(threads->of[i].daemon);
    free(threads);
}

bool http_threads_adopt(
    struct http_threads *threads, int fd, const struct sockaddr *address, socklen_t size) {
    struct http_thread *best = &threads->of[0];
    for (int i = 1; i < threads->count; i++)
        if (atomic_load(&threads->of[i].connections) < atomic_load(&best->connections))
            best = &threads->of[i];
    atomic_fetch_add(&best->connections, 1);
    if (MHD_add_connection(best->daemon, fd, address, size) == MHD_YES)
        return true;
    http_thread_let_go(best);
    return false;
}

void http_thread_let_go(struct http_thread *thread) {
    atomic_fetch_sub(&thread->connections, 1);
}
