#include "server/http/connections.h"

#include "base/limits.h"
#include "base/log.h"
#include "base/monotonic.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define HANG_UP_MS 100 /* from a hang-up in the middle of a request to the second look */
#define GONE_MAX 64    /* hang-ups read in one call */
#define LINGERING_MAX 32
#define LINGERING_READS 16 /* reads in a row for one client, while the others wait */
/* A connection may be shut down to free its place only after it has been silent for this long. That
 * is enough for a request that is on its way. */
#define IDLE_GRACE_MS 100
#define BODY_GRACE_MS 300

struct connection {
    struct connection *previous, *next;
    int fd;
    enum connection_phase phase;
    int64_t alive_ms;    /* when its client last sent something */
    int64_t deadline_ms; /* INT64_MAX: none */
    int64_t look_ms;     /* when to look at it again; INT64_MAX: when it hangs up */
    void *watched;       /* NULL: no request waits for an answer */
    bool closing;        /* shut down by us; its thread will notice */
    bool hung_up;        /* at the last look */
    bool lingers;
    void *request; /* used by the connection's own thread */
};

/* A socket whose connection has ended but whose client may still be writing. */
struct lingering {
    int fd;
    int64_t deadline_ms;
    size_t left; /* bytes that may still be discarded */
};

/* The mutex guards all members below it, and every connection. */
struct connections {
    pthread_t thread;
    void (*on_gone)(void *watched);
    int max;
    int wake_fd, place_fd; /* eventfds */
    /* An epoll of all clients. Becomes readable when one hangs up; reports a client once in each
     * phase of its connection. */
    int gone_fd;
    pthread_mutex_t mutex;
    struct connection *first;
    int64_t due_ms; /* when the thread wakes up by itself */
    int places_taken;
    bool place_wanted; /* the acceptor's client has found no free place */
    struct lingering lingering[LINGERING_MAX];
    int lingering_count;
    bool stopping;
};

/* --- The watching thread --- */

/* Returns poll events of the peer. POLLRDHUP: it will send nothing more. POLLHUP, POLLERR: it will
 * not read either. */
static short peer_state(int fd) {
    struct pollfd entry = { .fd = fd, .events = POLLRDHUP };
    return poll(&entry, 1, 0) == 1 ? entry.revents : 0;
}

static bool has_unread(int fd) {
    int bytes = 0;
    return ioctl(fd, FIONREAD, &bytes) == 0 && bytes > 0;
}

static void shut_down(struct connection *c) {
    c->closing = true;
    c->deadline_ms = c->look_ms = INT64_MAX;
    shutdown(c->fd, SHUT_RDWR); /* its thread then closes the connection */
}

/* Detects a client that has left. While a request waits for its answer, a client that closes only
 * its sending side also counts as gone, as in other servers. While a request is being received,
 * such a client can never send the rest, so it counts as gone too. Its last bytes may still be in
 * the library, so the hang-up must be seen at two looks in a row. */
static void look_for_hang_up(struct connections *connections, struct connection *c, int64_t now) {
    const short state = peer_state(c->fd);
    const short gone = c->phase == CONNECTION_SEND ? POLLHUP | POLLERR
                                                   : POLLRDHUP | POLLHUP | POLLERR;
    c->look_ms = INT64_MAX;
    if (c->closing || !(state & gone))
        return;
    if (c->phase == CONNECTION_WORK) {
        void *watched = c->watched;
        c->watched = NULL;
        if (watched)
            connections->on_gone(watched);
        return;
    }
    const bool hung_up = !has_unread(c->fd);
    if (hung_up && c->hung_up) {
        shut_down(c);
        return;
    }
    c->hung_up = hung_up;
    c->look_ms = now + HANG_UP_MS;
}

/* Looks at each connection whose client has hung up or whose time has come. Sets the time at which
 * the next connection is due. */
static void look_at_all(
    struct connections *connections, const struct epoll_event *gone, int count, int64_t now) {
    connections->due_ms = INT64_MAX;
    for (struct connection *c = connections->first; c; c = c->next) {
        bool looks = now >= c->look_ms;
        for (int i = 0; i < count; i++)
            looks = looks || gone[i].data.fd == c->fd;
        if (looks)
            look_for_hang_up(connections, c, now);
        if (now >= c->deadline_ms) {
            shut_down(c);
            log_info("closed a connection that was too slow");
        }
        const int64_t due_ms = c->look_ms < c->deadline_ms ? c->look_ms : c->deadline_ms;
        if (due_ms < connections->due_ms)
            connections->due_ms = due_ms;
    }
}

/* Discards the bytes that have arrived. Returns false if no more are to be read: at the end of the
 * stream, at the deadline, or when `left` bytes were discarded. */
static bool read_on(struct lingering *l, int64_t now) {
    char buffer[1 << 16];
    for (int reads = 0; l->left > 0 && now < l->deadline_ms; reads++) {
        if (reads == LINGERING_READS) /* others need the lock; poll reports the rest */
            return true;

        ssize_t got = recv(l->fd, buffer, sizeof(buffer), MSG_DONTWAIT);
        if (got < 0)
            return true; /* nothing yet, or an error that poll reports */
        if (got == 0)
            return false;
        l->left -= (size_t)got < l->left ? (size_t)got : l->left;
    }
    return false;
}

static void look_at_lingering(struct connections *connections, int64_t now) {
    int kept = 0;
    for (int i = 0; i < connections->lingering_count; i++) {
        struct lingering l = connections->lingering[i];
        if (!(peer_state(l.fd) & (POLLHUP | POLLERR)) && read_on(&l, now))
            connections->lingering[kept++] = l;
        else
            close(l.fd);
    }
    for (int i = 0; i < kept; i++)
        if (connections->lingering[i].deadline_ms < connections->due_ms)
            connections->due_ms = connections->lingering[i].deadline_ms;
    connections->lingering_count = kept;
}

/* Waits until something happens or is due. Returns how many clients have hung up. */
static int wait_for_events(struct connections *connections, struct epoll_event gone[GONE_MAX]) {
    struct pollfd entries[2 + LINGERING_MAX];
    const int count = connections->lingering_count;
    const int64_t left_ms = connections->due_ms - monotonic_ms();
    const int timeout_ms = left_ms <= 0 ? 0 : left_ms > INT_MAX ? -1 : (int)left_ms;
    entries[0] = (struct pollfd){ .fd = connections->wake_fd, .events = POLLIN };
    entries[1] = (struct pollfd){ .fd = connections->gone_fd, .events = POLLIN };
    for (int i = 0; i < count; i++)
        entries[2 + i] = (struct pollfd){ .fd = connections->lingering[i].fd, .events = POLLIN };
    pthread_mutex_unlock(&connections->mutex);
    poll(entries, (nfds_t)(2 + count), timeout_ms);
    const int hung_up = epoll_wait(connections->gone_fd, gone, GONE_MAX, 0);
    uint64_t value;
    if (entries[0].revents & POLLIN && read(connections->wake_fd, &value, sizeof(value)) < 0)
        log_debug("the connections' wake-up was taken by nobody");
    pthread_mutex_lock(&connections->mutex);
    return hung_up;
}

static void *watch(void *argument) {
    struct connections *connections = argument;
    struct epoll_event gone[GONE_MAX];
    int count = 0;
    pthread_mutex_lock(&connections->mutex);
    while (!connections->stopping) {
        const int64_t now = monotonic_ms();
        look_at_all(connections, gone, count, now);
        look_at_lingering(connections, now);
        count = wait_for_events(connections, gone);
    }
    pthread_mutex_unlock(&connections->mutex);
    return NULL;
}

static void signal_fd(int fd) {
    const uint64_t one = 1;
    if (write(fd, &one, sizeof(one)) < 0)
        return; /* the counter is full, so the waiter is awake */
}

/* --- Creating and destroying --- */

static void free_connections(struct connections *connections) {
    for (int i = 0; i < connections->lingering_count; i++)
        close(connections->lingering[i].fd);
    if (connections->wake_fd >= 0)
        close(connections->wake_fd);
    if (connections->place_fd >= 0)
        close(connections->place_fd);
    if (connections->gone_fd >= 0)
        close(connections->gone_fd);
    pthread_mutex_destroy(&connections->mutex);
    free(connections);
}

bool connections_create(
    int max, void (*on_gone)(void *watched), struct connections **out, struct error *err) {
    struct connections *connections = calloc(1, sizeof(*connections));
    if (!connections)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the connections");
    connections->max = max;
    connections->on_gone = on_gone;
    connections->due_ms = INT64_MAX;
    pthread_mutex_init(&connections->mutex, NULL);
    connections->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    connections->place_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    connections->gone_fd = epoll_create1(EPOLL_CLOEXEC);
    const bool has_files = connections->wake_fd >= 0 && connections->place_fd >= 0 &&
                           connections->gone_fd >= 0;
    const int failed = has_files
                           ? thread_start(&connections->thread, "connections", watch, connections)
                           : errno;
    if (failed) {
        free_connections(connections);
        return has_files ? error_set_thread(err, failed)
                         : error_set(err, ERROR_IO,
                               "cannot make the descriptors that watch connections: %s",
                               strerror(failed));
    }
    *out = connections;
    return true;
}

void connections_destroy(struct connections *connections) {
    if (!connections)
        return;
    pthread_mutex_lock(&connections->mutex);
    connections->stopping = true;
    pthread_mutex_unlock(&connections->mutex);
    signal_fd(connections->wake_fd);
    pthread_join(connections->thread, NULL);
    free_connections(connections);
}

/* --- Places --- */

/* Returns how suitable a connection is to be shut down for its place: the highest rank is shut down
 * first. 0: it keeps its place. */
static int rank(const struct connection *c, int64_t now) {
    const int64_t silent_ms = now - c->alive_ms;
    if (c->closing || (c->phase <= CONNECTION_BODY && has_unread(c->fd)))
        return 0; /* closing already, or has bytes to be read */
    switch (c->phase) {
    case CONNECTION_IDLE:
        return silent_ms >= IDLE_GRACE_MS ? 3 : 0;
    case CONNECTION_HEADERS:
        return silent_ms >= IDLE_GRACE_MS ? 2 : 0;
    case CONNECTION_BODY:
        return silent_ms >= BODY_GRACE_MS ? 1 : 0;
    default:
        return 0;
    }
}

/* Shuts down the connection with the highest rank. Returns true if a place will be free soon: a
 * connection was shut down now or earlier, or one may be shut down soon. */
static bool give_way(struct connections *connections) {
    const int64_t now = monotonic_ms();
    struct connection *best = NULL;
    bool soon = false;
    for (struct connection *c = connections->first; c; c = c->next) {
        if (c->closing)
            return true;
        soon = soon || c->phase <= CONNECTION_BODY;
        const int r = rank(c, now), best_rank = best ? rank(best, now) : 0;
        if (r > best_rank || (r > 0 && r == best_rank && c->alive_ms < best->alive_ms))
            best = c;
    }
    if (best)
        shut_down(best);
    return best || soon;
}

bool connections_take_place(struct connections *connections, bool *busy) {
    pthread_mutex_lock(&connections->mutex);
    const bool free_place = connections->places_taken < connections->max;
    connections->places_taken += free_place;
    connections->place_wanted = !free_place;
    *busy = !free_place && !give_way(connections);
    pthread_mutex_unlock(&connections->mutex);
    return free_place;
}

void connections_give_place(struct connections *connections) {
    pthread_mutex_lock(&connections->mutex);
    connections->places_taken--;
    pthread_mutex_unlock(&connections->mutex);
    signal_fd(connections->place_fd);
}

void connections_make_way(struct connections *connections) {
    pthread_mutex_lock(&connections->mutex);
    give_way(connections);
    pthread_mutex_unlock(&connections->mutex);
}

int connections_place_fd(const struct connections *connections) {
    return connections->place_fd;
}

/* --- One connection --- */

static int64_t deadline(enum connection_phase phase, int64_t now) {
    static const int limits_ms[] = {
        [CONNECTION_IDLE] = HTTP_IDLE_TIMEOUT_S * 1000,
        [CONNECTION_HEADERS] = HTTP_HEADER_TIMEOUT_MS,
        [CONNECTION_BODY] = HTTP_BODY_TIMEOUT_MS,
        [CONNECTION_WORK] = 0,
        [CONNECTION_SEND] = HTTP_SEND_TIMEOUT_MS,
    };
    return limits_ms[phase] ? now + limits_ms[phase] : INT64_MAX;
}

/* Sets the deadline, and wakes up the watching thread if it would sleep longer. */
static void set_deadline(
    struct connections *connections, struct connection *c, int64_t deadline_ms) {
    c->deadline_ms = c->closing ? INT64_MAX : deadline_ms;
    if (c->deadline_ms < connections->due_ms)
        signal_fd(connections->wake_fd);
}

/* Begins a phase. `how`: EPOLL_CTL_ADD or EPOLL_CTL_MOD. A client that hung up in an earlier phase
 * is reported again. */
static void enter(struct connections *connections, struct connection *c,
    enum connection_phase phase, void *watched, int how) {
    const uint32_t half = phase == CONNECTION_SEND ? 0 : EPOLLRDHUP;
    struct epoll_event event = { .events = half | EPOLLONESHOT, .data.fd = c->fd };
    c->phase = phase;
    c->alive_ms = monotonic_ms();
    c->look_ms = INT64_MAX;
    c->watched = watched;
    c->hung_up = false;
    set_deadline(connections, c, deadline(phase, c->alive_ms));
    bool is_seen = epoll_ctl(connections->gone_fd, how, c->fd, &event) == 0;
    if (!is_seen && how == EPOLL_CTL_MOD && errno == ENOENT) /* adding it had failed */
        is_seen = epoll_ctl(connections->gone_fd, EPOLL_CTL_ADD, c->fd, &event) == 0;
    if (!is_seen)
        log_debug("a client's hang-up will not be seen");
    if (phase <= CONNECTION_BODY && connections->place_wanted)
        signal_fd(connections->place_fd); /* this connection may be shut down soon */
}

struct connection *connections_add(struct connections *connections, int fd) {
    struct connection *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->fd = fd;
    pthread_mutex_lock(&connections->mutex);
    c->next = connections->first;
    if (c->next)
        c->next->previous = c;
    connections->first = c;
    enter(connections, c, CONNECTION_HEADERS, NULL, EPOLL_CTL_ADD);
    pthread_mutex_unlock(&connections->mutex);
    return c;
}

/* Returns whether the client may still be sending. Unread bytes would turn the close into a reset,
 * which can destroy the answer. */
static bool wants_to_linger(const struct connection *c) {
    char byte;
    if (c->closing)
        return false;
    const ssize_t got = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got > 0 || (got < 0 && c->lingers);
}

void connections_remove(struct connections *connections, struct connection *c) {
    pthread_mutex_lock(&connections->mutex);
    if (c->next)
        c->next->previous = c->previous;
    if (c->previous)
        c->previous->next = c->next;
    else
        connections->first = c->next;
    connections->places_taken--;
    (void)epoll_ctl(connections->gone_fd, EPOLL_CTL_DEL, c->fd, NULL);
    bool lingers = connections->lingering_count < LINGERING_MAX && wants_to_linger(c);
    const int fd = lingers ? fcntl(c->fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (fd >= 0)
        connections->lingering[connections->lingering_count++] = (struct lingering){
            .fd = fd,
            .deadline_ms = monotonic_ms() + HTTP_LINGER_MS,
            .left = HTTP_LINGER_MAX_BYTES,
        };
    pthread_mutex_unlock(&connections->mutex);
    if (fd >= 0)
        signal_fd(connections->wake_fd);
    signal_fd(connections->place_fd);
    free(c);
}

void connections_enter(
    struct connections *connections, struct connection *c, enum connection_phase phase) {
    pthread_mutex_lock(&connections->mutex);
    enter(connections, c, phase, NULL, EPOLL_CTL_MOD);
    pthread_mutex_unlock(&connections->mutex);
}

void connections_touch(struct connections *connections, struct connection *c) {
    pthread_mutex_lock(&connections->mutex);
    c->alive_ms = monotonic_ms();
    c->hung_up = false;
    pthread_mutex_unlock(&connections->mutex);
}

void connections_set_deadline(
    struct connections *connections, struct connection *c, int64_t deadline_ms) {
    pthread_mutex_lock(&connections->mutex);
    set_deadline(connections, c, deadline_ms);
    pthread_mutex_unlock(&connections->mutex);
}

void connections_watch(struct connections *connections, struct connection *c, void *watched) {
    pthread_mutex_lock(&connections->mutex);
    enter(connections, c, CONNECTION_WORK, watched, EPOLL_CTL_MOD);
    pthread_mutex_unlock(&connections->mutex);
}

void connections_cancel_all(struct connections *connections) {
    pthread_mutex_lock(&connections->mutex);
    for (struct connection *c = connections->first; c; c = c->next) {
        void *watched = c->watched;
        c->watched = NULL;
        if (watched)
            connections->on_gone(watched);
    }
    pthread_mutex_unlock(&connections->mutex);
}

void connections_linger(struct connections *connections, struct connection *c) {
    pthread_mutex_lock(&connections->mutex);
    c->lingers = true;
    pthread_mutex_unlock(&connections->mutex);
}

void connection_set_request(struct connection *connection, void *request) {
    connection->request = request;
}

void *connection_request(const struct connection *connection) {
    return connection->request;
}
