/* The open connections. Each has a deadline; if there are too many, one is shut down to free its
 * place.
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
    CONNECTION_IDLE,    /* between two requests of a connection */
    CONNECTION_HEADERS, /* from the connect or the request line on */
    CONNECTION_BODY,
    CONNECTION_WORK, /* no deadline: the request has one */
    CONNECTION_SEND,
};

/* `max` is the maximum number of places. `on_gone` is called at most once per connections_watch. It
 * runs with the list locked, on the watching thread or in connections_cancel_all. */
bool connections_create(int max, void (*on_gone)(void *watched), struct connections **out,
    struct error *err) __attribute__((warn_unused_result));
/* Call it only when all connections have been removed. NULL is fine. */
void connections_destroy(struct connections *connections);

/* Takes a place for the next client; called by the acceptor. Returns false if there is none. *busy
 * then says whether all connections are busy. If they are not, a connection was shut down to free
 * its place, or soon may be. Idle connections are shut down first, then those that wait for
 * headers, then those that wait for a body; among equals, the one that has been silent longest.
 * Each place is given back by connections_remove, or by connections_give_place if it never became a
 * connection. */
bool connections_take_place(struct connections *connections, bool *busy)
    __attribute__((warn_unused_result));
void connections_give_place(struct connections *connections);
/* Call it when the process has no file descriptors left. Shuts down one connection that waits for
 * its client, if there is one. It is chosen as in connections_take_place. */
void connections_make_way(struct connections *connections);
/* Returns an eventfd. It is readable when a place has been given back. After connections_take_place
 * found no place, it is also readable when one may soon be free. The waiter reads it. */
int connections_place_fd(const struct connections *connections);

/* Adds a connection in CONNECTION_HEADERS, whose place was taken before. `fd` must stay open until
 * connections_remove. From then on any thread may use the connection. NULL when memory is short. */
struct connection *connections_add(struct connections *connections, int fd);
void connections_remove(struct connections *connections, struct connection *connection);
void connections_enter(
    struct connections *connections, struct connection *connection, enum connection_phase phase);
/* Call it when bytes of a body have arrived. */
void connections_touch(struct connections *connections, struct connection *connection);
/* Replaces the deadline of the connection's phase. `deadline_ms` is a time of base/monotonic.h. */
void connections_set_deadline(
    struct connections *connections, struct connection *connection, int64_t deadline_ms);

/* Enters CONNECTION_WORK. If the client hangs up before the next phase, on_gone(watched) is
 * called. */
void connections_watch(
    struct connections *connections, struct connection *connection, void *watched);
/* Acts as if every watched client had hung up. */
void connections_cancel_all(struct connections *connections);

/* Lets the connection linger when it closes: use it if the client may still be sending when it gets
 * the answer. */
void connections_linger(struct connections *connections, struct connection *connection);

/* Set and return the request in progress on the connection. Call them on the connection's own
 * thread only. */
void connection_set_request(struct connection *connection, void *request);
void *connection_request(const struct connection *connection);

#endif
