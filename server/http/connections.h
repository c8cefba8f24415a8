/* The open connections: a deadline for each, and which one gives way when there are too many.
 *
 * libmicrohttpd only knows inactivity. A client that sends a byte now and then keeps its place for
 * ever. A client that leaves in the middle of a request, or while its connection is suspended, is
 * not noticed. And an answer is lost if the socket closes while the client still sends. So one
 * thread waits for hang-ups and for the next deadline. It shuts down each connection that is past
 * the deadline of its phase or whose client has left. A client that disconnects while the engine is
 * working for it is reported at once, since a step may take only a few milliseconds. What refused
 * clients go on sending is read for a while after their connection has closed.
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

/* `max` is the maximum number of places. `on_gone` is called at most once per connections_watch,
 * with the list locked, on the watching thread or in connections_cancel_all. */
bool connections_create(int max, void (*on_gone)(void *watched), struct connections **out,
    struct error *err) __attribute__((warn_unused_result));
/* Requires that all connections were removed. NULL is fine. */
void connections_destroy(struct connections *connections);

/* Takes a place for the next client, for the acceptor. Returns false if there is none: then *busy
 * says whether all connections are busy; if not, a connection was told to give way (an idle one
 * first, then one that waits for headers, then for a body; the longest silent first) or may soon do
 * so. Each place is given back, by connections_remove or, if it never became a connection, by
 * connections_give_place. */
bool connections_take_place(struct connections *connections, bool *busy)
    __attribute__((warn_unused_result));
void connections_give_place(struct connections *connections);
/* Makes one idle connection give way, if there is one, because the process is out of
 * descriptors. */
void connections_make_way(struct connections *connections);
/* An eventfd that is readable once a place has been given back or, after connections_take_place
 * found none, may soon be; the waiter reads it. */
int connections_place_fd(const struct connections *connections);

/* Adds a connection in CONNECTION_HEADERS, for which a place was taken; NULL when memory is short.
 * `fd` must stay open until connections_remove. Any thread may use the connection from here on. */
struct connection *connections_add(struct connections *connections, int fd);
void connections_remove(struct connections *connections, struct connection *connection);
void connections_enter(
    struct connections *connections, struct connection *connection, enum connection_phase phase);
/* Reports that bytes of a body have come. */
void connections_touch(struct connections *connections, struct connection *connection);
/* Replaces the deadline of its phase, by the monotonic clock. */
void connections_set_deadline(
    struct connections *connections, struct connection *connection, int64_t deadline_ms);

/* Enters CONNECTION_WORK. If the client hangs up before the next phase, on_gone(watched) is
 * called. */
void connections_watch(
    struct connections *connections, struct connection *connection, void *watched);
/* Acts as if every watched client had hung up. */
void connections_cancel_all(struct connections *connections);

/* Lets the connection linger when it closes: the client may still be sending when the answer
 * comes. */
void connections_linger(struct connections *connections, struct connection *connection);

/* The request under way. Only the connection's own thread may call these. */
void connection_set_request(struct connection *connection, void *request);
void *connection_request(const struct connection *connection);

#endif
