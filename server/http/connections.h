/* The open connections: a clock for each, and who gives way when there are too many.
 *
 * libmicrohttpd only knows inactivity. A client that sends a byte now and then holds its place for
 * ever; one that leaves behind a part of a request, or while its connection is suspended, is not
 * noticed; and an answer is lost when the socket closes on what the client still sends. So one
 * thread looks at all connections a few times a second: who is over the time of its phase or has
 * left is shut down, who left while the engine works for it is reported (at once: a step may take a
 * few milliseconds), and what refused clients go on sending is read for a while after their
 * connection has closed.
 */
#ifndef SERVER_HTTP_CONNECTIONS_H
#define SERVER_HTTP_CONNECTIONS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct connections;
struct connection;

enum connection_phase {
    CONNECTION_IDLE,    /* between two requests of a kept-alive connection */
    CONNECTION_HEADERS, /* connected, or the request line has come */
    CONNECTION_BODY,
    CONNECTION_WORK, /* no limit: the request has its own */
    CONNECTION_SEND,
};

/* At most `max` at a time. `on_gone` is called, from the watching thread and with the list locked,
 * at most once a watch. */
bool connections_create(int max, void (*on_gone)(void *watched), struct connections **out,
    struct error *err) __attribute__((warn_unused_result));
/* All connections must have been removed. NULL is fine. */
void connections_destroy(struct connections *connections);

/* For who accepts clients: takes a place for the next one. False if there is none; then the one
 * that has been idle for longest was told to give way (*busy is false), or all are busy. Each place
 * is given back, by connections_remove or without ever having been a connection. */
bool connections_take_place(struct connections *connections, bool *busy)
    __attribute__((warn_unused_result));
void connections_give_place(struct connections *connections);
/* Lets one idle connection go, if there is any, since the process has run out of descriptors. */
void connections_make_way(struct connections *connections);
/* Readable once a place was given back; reading it is the waiter's business. An eventfd. */
int connections_place_fd(const struct connections *connections);

/* A new connection in CONNECTION_HEADERS, with a place that was taken; NULL when memory is short.
 * `fd` stays open until connections_remove. From here on any thread may call. */
struct connection *connections_add(struct connections *connections, int fd);
void connections_remove(struct connections *connections, struct connection *connection);
void connections_enter(
    struct connections *connections, struct connection *connection, enum connection_phase phase);
/* Bytes of a body have come. */
void connections_touch(struct connections *connections, struct connection *connection);
/* Another end of its phase, by the monotonic clock. */
void connections_set_deadline(
    struct connections *connections, struct connection *connection, int64_t deadline_ms);

/* Enters CONNECTION_WORK; if the client hangs up before the next phase, on_gone(watched). */
void connections_watch(
    struct connections *connections, struct connection *connection, void *watched);
/* As if every client that is watched had hung up. */
void connections_cancel_all(struct connections *connections);

/* The answer may come while the client still writes: its connection is to linger when it closes. */
void connections_linger(struct connections *connections, struct connection *connection);

/* The request that is under way, for the connection's own thread alone. */
void connection_set_request(struct connection *connection, void *request);
void *connection_request(const struct connection *connection);

#endif
