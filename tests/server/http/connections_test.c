/* Which connection is closed when all places are taken, and which clients are reported to have
 * left. The sockets are pairs within this process; the test does what a connection's thread would
 * do. */
#include "server/http/connections.h"

#include "base/monotonic.h"
#include "tests/check.h"

#include <poll.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void nobody_is_watched(void *watched) {
    CHECK(!watched, "a connection is watched before one was added");
}

static void sleep_ms(int ms) {
    const struct timespec time = { 0, ms * 1000000L };
    nanosleep(&time, NULL);
}

/* Whether the client's side sees that the connection was closed. */
static bool is_shut(int client) {
    char byte;
    return recv(client, &byte, 1, MSG_DONTWAIT) == 0;
}

/* A connection is not closed while it has bytes of a request that were not read yet, even after a
 * long silence. It may be closed once the bytes have been read and nothing more comes. */
static void what_has_come_is_not_idle(void) {
    struct connections *connections;
    struct error err = { 0 };
    int pair[2];
    bool busy;
    char byte;
    CHECK(connections_create(1, nobody_is_watched, &connections, &err), "%s", err.message);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "a pair");
    CHECK(connections_take_place(connections, &busy), "the only place is not given");
    struct connection *c = connections_add(connections, pair[0]);
    connections_enter(connections, c, CONNECTION_IDLE);
    CHECK(send(pair[1], "G", 1, 0) == 1, "cannot send the request's first byte");
    sleep_ms(400);
    CHECK(!connections_take_place(connections, &busy) && !busy,
        "a second place is given, or the idle connection counts as busy");
    CHECK(!is_shut(pair[1]), "a connection with an unread request was closed");
    CHECK(recv(pair[0], &byte, 1, 0) == 1, "cannot read the request's first byte");
    CHECK(!connections_take_place(connections, &busy) && !busy,
        "a place is given before the closed connection has ended");
    CHECK(is_shut(pair[1]), "the idle connection is not closed to make room");
    connections_remove(connections, c);
    CHECK(connections_take_place(connections, &busy), "the closed connection's place is not given");
    connections_give_place(connections);
    close(pair[0]);
    close(pair[1]);
    connections_destroy(connections);
}

static sem_t gone;

static void note(void *watched) {
    CHECK(watched == &gone, "the watched connection is not the one that was added");
    sem_post(&gone);
}

/* Clients that use the same place one after the other are each reported as soon as they leave.
 * Polling ten times a second would report only ten of them per second. */
static void who_leaves_is_reported_at_once(void) {
    enum { CLIENTS = 20 };
    struct connections *connections;
    struct error err = { 0 };
    bool busy;
    CHECK(sem_init(&gone, 0, 0) == 0, "a semaphore");
    CHECK(connections_create(2, note, &connections, &err), "%s", err.message);
    const int64_t begun_ms = monotonic_ms();
    for (int i = 0; i < CLIENTS; i++) {
        int pair[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "a pair");
        CHECK(connections_take_place(connections, &busy), "a place");
        struct connection *c = connections_add(connections, pair[0]);
        connections_watch(connections, c, &gone);
        connections_enter(
            connections, c, CONNECTION_IDLE); /* an answer was sent; the next request begins */
        connections_watch(connections, c, &gone);
        close(pair[1]);
        sem_wait(&gone);
        connections_remove(connections, c);
        close(pair[0]);
    }
    const int64_t took_ms = monotonic_ms() - begun_ms;
    printf("%d clients that left were reported within %lld ms\n", CLIENTS, (long long)took_ms);
    CHECK(took_ms < 100 * CLIENTS, "%lld ms", (long long)took_ms);
    CHECK(sem_trywait(&gone) != 0, "a client that left was reported twice");
    connections_destroy(connections);
    sem_destroy(&gone);
}

/* Returns whether the acceptor would wake up. */
static bool is_signalled(struct connections *connections) {
    struct pollfd entry = { .fd = connections_place_fd(connections), .events = POLLIN };
    uint64_t count;
    return poll(&entry, 1, 0) == 1 && read(entry.fd, &count, sizeof(count)) == sizeof(count);
}

/* A client that found no place waits without a limit while all connections are busy. It must be
 * woken when one begins to wait for its own client, because that one may be shut down. */
static void who_waits_for_a_place_is_woken(void) {
    static const enum connection_phase waiting[] = { CONNECTION_IDLE, CONNECTION_HEADERS,
        CONNECTION_BODY };
    struct connections *connections;
    struct error err = { 0 };
    int pair[2];
    bool busy;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "a pair");
    CHECK(connections_create(1, nobody_is_watched, &connections, &err), "%s", err.message);
    CHECK(connections_take_place(connections, &busy), "the only place is not given");
    CHECK(!connections_take_place(connections, &busy) && busy,
        "a place is given, or a connection that was not added does not count as busy");
    CHECK(!is_signalled(connections), "a change is signalled although nothing has changed");
    struct connection *c = connections_add(connections, pair[0]);
    CHECK(is_signalled(connections),
        "an added connection, which waits for headers, is not signalled");
    for (size_t i = 0; i < sizeof(waiting) / sizeof(waiting[0]); i++) {
        connections_watch(connections, c, NULL);
        CHECK(!connections_take_place(connections, &busy) && busy,
            "a place is given, or a connection with a request does not count as busy");
        CHECK(!is_signalled(connections), "a change is signalled although nothing has changed");
        connections_enter(connections, c, CONNECTION_SEND);
        CHECK(!is_signalled(connections), "a connection that sends an answer is signalled as idle");
        connections_enter(connections, c, waiting[i]);
        CHECK(is_signalled(connections), "a connection in phase %d is not signalled as idle",
            (int)waiting[i]);
    }
    connections_remove(connections, c);
    CHECK(is_signalled(connections), "a free place is not signalled");
    close(pair[0]);
    close(pair[1]);
    connections_destroy(connections);
}

int main(void) {
    who_waits_for_a_place_is_woken();
    what_has_come_is_not_idle();
    who_leaves_is_reported_at_once();
    return check_done();
}
