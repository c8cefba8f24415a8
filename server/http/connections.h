/* The open connections and the clock that runs for each.
 *
 * libmicrohttpd only knows inactivity: a client that sends a byte now and then holds its slot for
 * ever, and one that leaves while its connection is suspended is not noticed at all. So one thread
 * looks at all connections a few times a second: whoever is over the time of its phase is shut
 * down, and whoever hung up while the engine works for it is reported.
 */
#ifndef SERVER_HTTP_CONNECTIONS_H
#define SERVER_HTTP_CONNECTIONS_H

#include "base/error.h"

#include <stdbool.h>

struct connections;
struct connection;

enum connection_phase {
    CONNECTION_IDLE,    /* between two requests of a kept-alive connection */
    CONNECTION_HEADERS, /* connected, or the request line has come */
    CONNECTION_BODY,
    CONNECTION_WORK, /* no limit: the request has its own */
    CONNECTION_SEND,
};

/* `on_gone` is called, from the watching thread and with the list locked, at most once a watch. */
bool connections_create(void (*on_gone)(void *watched), struct connections **out, struct error *err)
    __attribute__((warn_unused_result));
/* All connections must have been removed. NULL is fine. */
void connections_destroy(struct connections *connections);

/* A new connection in CONNECTION_HEADERS; NULL when memory is short. `fd` stays open until
 * connections_remove. These may be called from any thread. */
struct connection *connections_add(struct connections *connections, int fd);
void connections_remove(struct connections *connections, struct connection *connection);
void connections_enter(
    struct connections *connections, struct connection *connection, enum connection_phase phase);

/* Enters CONNECTION_WORK; if the client hangs up before the next phase, on_gone(watched). */
void connections_watch(
    struct connections *connections, struct connection *connection, void *watched);

#endif
