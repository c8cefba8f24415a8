#include "server/http/acceptor.h"

#include "base/log.h"
#include "base/monotonic.h"
#include "base/thread.h"
#include "server/http/connections.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define BACK_OFF_MS 100
#define REPEAT_MS 60000 /* log a lasting state once per minute */

struct acceptor {
    pthread_t thread;
    int listen_fd, stop_fd;
    bool shared;
    struct connections *connections;
    bool (*adopt)(void *user, int fd, const struct sockaddr *address, socklen_t size);
    void *user;
    int64_t said_busy_ms, said_full_ms; /* 0: never */
};

/* Waits until `fd` or the stop signal is readable, or the time is up (-1: no limit). fd < 0: waits
 * only for the stop signal. Returns false if the acceptor stops. */
static bool wait_for(const struct acceptor *a, int fd, int timeout_ms) {
    struct pollfd entries[] = {
        { .fd = a->stop_fd, .events = POLLIN },
        { .fd = fd, .events = POLLIN },
    };
    poll(entries, 2, timeout_ms);
    return !(entries[0].revents & POLLIN);
}

static bool is_due(int64_t *said_ms) {
    const int64_t now = monotonic_ms();
    if (*said_ms && now - *said_ms < REPEAT_MS)
        return false;
    *said_ms = now;
    return true;
}

/* Accepts a waiting client. Returns false if the acceptor stops. */
static bool accept_one(struct acceptor *a) {
    bool busy;
    if (!connections_take_place(a->connections, &busy)) {
        if (busy && is_due(&a->said_busy_ms))
            log_warning("every connection is busy: new clients wait");
        const int place_fd = connections_place_fd(a->connections);
        const bool goes_on = wait_for(a, place_fd, busy ? -1 : BACK_OFF_MS);
        uint64_t given;
        if (read(place_fd, &given, sizeof(given)) < 0)
            return goes_on; /* no place was given back; the caller tries again */
        return goes_on;
    }
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);
    const int fd = accept4(
        a->listen_fd, (struct sockaddr *)&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        if (!a->adopt(a->user, fd, (const struct sockaddr *)&address, size))
            connections_give_place(a->connections);
        return true;
    }
    const int reason = errno;
    connections_give_place(a->connections);
    if (reason == EAGAIN || reason == EINTR || reason == ECONNABORTED)
        return true; /* the client has already left */
    if (is_due(&a->said_full_ms))
        log_warning("%s: new clients wait", reason == EMFILE || reason == ENFILE
                                                ? "no file descriptors are left"
                                                : strerror(reason));
    connections_make_way(a->connections);
    return wait_for(a, -1, BACK_OFF_MS);
}

static void *accept_clients(void *argument) {
    struct acceptor *a = argument;
    while (wait_for(a, a->listen_fd, -1) && accept_one(a)) {
    }
    return NULL;
}

bool acceptor_create(int listen_fd, bool shared, struct connections *connections,
    bool (*adopt)(void *user, int fd, const struct sockaddr *address, socklen_t size), void *user,
    struct acceptor **out, struct error *err) {
    struct acceptor *a = calloc(1, sizeof(*a));
    if (!a)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the listener");
    a->listen_fd = listen_fd;
    a->shared = shared;
    a->connections = connections;
    a->adopt = adopt;
    a->user = user;
    a->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (a->stop_fd < 0) {
        free(a);
        return error_set(
            err, ERROR_IO, "cannot make the descriptor that stops the server: %s", strerror(errno));
    }
    const int failed = thread_start(&a->thread, "acceptor", accept_clients, a);
    if (failed) {
        close(a->stop_fd);
        free(a);
        return error_set_thread(err, failed);
    }
    *out = a;
    return true;
}

void acceptor_destroy(struct acceptor *a) {
    if (!a)
        return;
    const uint64_t one = 1;
    if (write(a->stop_fd, &one, sizeof(one)) < 0)
        log_error("the listener cannot be stopped: %s", strerror(errno));
    pthread_join(a->thread, NULL);
    if (!a->shared)
        shutdown(a->listen_fd, SHUT_RDWR); /* refuse new clients instead of queueing them */
    close(a->stop_fd);
    free(a);
}
