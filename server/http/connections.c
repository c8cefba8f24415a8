#include "server/http/connections.h"

#include "base/limits.h"
#include "base/log.h"
#include "base/monotonic.h"

#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#define TICK_MS 100

struct connection {
    struct connection *previous, *next;
    int fd;
    int64_t deadline_ms; /* 0: none */
    void *watched;       /* NULL: nobody waits for this client */
};

/* The mutex guards everything below it and every node. */
struct connections {
    pthread_t thread;
    void (*on_gone)(void *watched);
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct connection *first;
    bool stopping;
};

/* POLLRDHUP: the peer will send nothing more. With a request waiting for its answer that is a
 * client that left (one that only closes its sending side is taken for gone, as other servers do).
 */
static bool hung_up(int fd) {
    struct pollfd entry = { .fd = fd, .events = POLLRDHUP };
    return poll(&entry, 1, 0) == 1 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

static void look_at(struct connections *connections, struct connection *c, int64_t now) {
    if (c->watched && hung_up(c->fd)) {
        void *watched = c->watched;
        c->watched = NULL;
        connections->on_gone(watched);
    }
    if (c->deadline_ms && now >= c->deadline_ms) {
        c->deadline_ms = 0;
        shutdown(c->fd, SHUT_RDWR); /* its thread sees the end of the stream and closes it */
        log_info("closed a connection that was too slow");
    }
}

static void *watch(void *argument) {
    struct connections *connections = argument;
    pthread_mutex_lock(&connections->mutex);
    while (!connections->stopping) {
        if (!connections->first) {
            pthread_cond_wait(&connections->changed, &connections->mutex);
            continue;
        }
        int64_t now = monotonic_ms();
        for (struct connection *c = connections->first; c; c = c->next)
            look_at(connections, c, now);
        struct timespec wake;
        clock_gettime(CLOCK_MONOTONIC, &wake);
        wake.tv_nsec += TICK_MS * 1000000L;
        if (wake.tv_nsec >= 1000000000L) {
            wake.tv_nsec -= 1000000000L;
            wake.tv_sec++;
        }
        while (!connections->stopping &&
               pthread_cond_timedwait(&connections->changed, &connections->mutex, &wake) == 0) {
        }
    }
    pthread_mutex_unlock(&connections->mutex);
    return NULL;
}

bool connections_create(
    void (*on_gone)(void *watched), struct connections **out, struct error *err) {
    struct connections *connections = calloc(1, sizeof(*connections));
    if (!connections)
        return error_set(err, ERROR_NO_MEMORY, "not enough memory for the connections");
    connections->on_gone = on_gone;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&connections->mutex, NULL);
    pthread_cond_init(&connections->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&connections->thread, NULL, watch, connections) != 0) {
        pthread_cond_destroy(&connections->changed);
        pthread_mutex_destroy(&connections->mutex);
        free(connections);
        return error_set(err, ERROR_NO_MEMORY, "cannot start a thread");
    }
    *out = connections;
    return true;
}

void connections_destroy(struct connections *connections) {
    if (!connections)
        return;
    pthread_mutex_lock(&connections->mutex);
    connections->stopping = true;
    pthread_cond_signal(&connections->changed);
    pthread_mutex_unlock(&connections->mutex);
    pthread_join(connections->thread, NULL);
    pthread_cond_destroy(&connections->changed);
    pthread_mutex_destroy(&connections->mutex);
    free(connections);
}

static int64_t deadline(enum connection_phase phase) {
    static const int limits_ms[] = {
        [CONNECTION_IDLE] = HTTP_IDLE_TIMEOUT_S * 1000,
        [CONNECTION_HEADERS] = HTTP_HEADER_TIMEOUT_MS,
        [CONNECTION_BODY] = HTTP_BODY_TIMEOUT_MS,
        [CONNECTION_WORK] = 0,
        [CONNECTION_SEND] = HTTP_SEND_TIMEOUT_MS,
    };
    return limits_ms[phase] ? monotonic_ms() + limits_ms[phase] : 0;
}

struct connection *connections_add(struct connections *connections, int fd) {
    struct connection *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->fd = fd;
    c->deadline_ms = deadline(CONNECTION_HEADERS);
    pthread_mutex_lock(&connections->mutex);
    c->next = connections->first;
    if (c->next)
        c->next->previous = c;
    connections->first = c;
    if (!c->next) /* the thread sleeps while there is none */
        pthread_cond_signal(&connections->changed);
    pthread_mutex_unlock(&connections->mutex);
    return c;
}

void connections_remove(struct connections *connections, struct connection *c) {
    pthread_mutex_lock(&connections->mutex);
    if (c->next)
        c->next->previous = c->previous;
    if (c->previous)
        c->previous->next = c->next;
    else
        connections->first = c->next;
    pthread_mutex_unlock(&connections->mutex);
    free(c);
}

void connections_enter(
    struct connections *connections, struct connection *c, enum connection_phase phase) {
    pthread_mutex_lock(&connections->mutex);
    c->deadline_ms = deadline(phase);
    c->watched = NULL;
    pthread_mutex_unlock(&connections->mutex);
}

void connections_watch(struct connections *connections, struct connection *c, void *watched) {
    pthread_mutex_lock(&connections->mutex);
    c->deadline_ms = 0;
    c->watched = watched;
    pthread_mutex_unlock(&connections->mutex);
}
