/* Who gives way when all places are taken. Sockets are pairs within this process, and nobody reads
 * them: what a connection's thread would have done is done here. */
#include "server/http/connections.h"

#include "tests/check.h"

#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void nobody_is_watched(void *watched) {
    CHECK(!watched, "nobody is");
}

static void sleep_ms(int ms) {
    const struct timespec time = { 0, ms * 1000000L };
    nanosleep(&time, NULL);
}

/* Whether our side has been told that the connection ends. */
static bool is_shut(int client) {
    char byte;
    return recv(client, &byte, 1, MSG_DONTWAIT) == 0;
}

/* A request whose bytes nobody has read yet keeps its place, though nothing has been heard of its
 * connection for long; once they are read and no more come, it gives way. */
static void what_has_come_is_not_idle(void) {
    struct connections *connections;
    struct error err = { 0 };
    int pair[2];
    bool busy;
    char byte;
    CHECK(connections_create(1, nobody_is_watched, &connections, &err), "%s", err.message);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "a pair");
    CHECK(connections_take_place(connections, &busy), "the only place");
    struct connection *c = connections_add(connections, pair[0]);
    connections_enter(connections, c, CONNECTION_IDLE);
    CHECK(send(pair[1], "G", 1, 0) == 1, "a request begins");
    sleep_ms(400);
    CHECK(!connections_take_place(connections, &busy) && !busy, "there is none, but soon may be");
    CHECK(!is_shut(pair[1]), "a request that has come is not cut off");
    CHECK(recv(pair[0], &byte, 1, 0) == 1, "its thread reads it");
    CHECK(!connections_take_place(connections, &busy) && !busy, "there is none yet");
    CHECK(is_shut(pair[1]), "an idle one gives way");
    connections_remove(connections, c);
    CHECK(connections_take_place(connections, &busy), "its place is free");
    connections_give_place(connections);
    close(pair[0]);
    close(pair[1]);
    connections_destroy(connections);
}

int main(void) {
    what_has_come_is_not_idle();
    return check_done();
}
