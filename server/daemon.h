/* The HTTP side of the daemon: accepts connections, checks requests, routes and answers them.
 *
 * One thread accepts clients (server/http/acceptor.c). A small pool of libmicrohttpd threads parses
 * requests and sends answers, and never waits. A POST /generate is handed to the engine, and its
 * connection is suspended. When the pictures are drawn, the engine's callback passes them to an
 * encoder thread (server/generation/run.c). This thread makes the picture files and the JSON, and
 * resumes the connection.
 * Another thread watches deadlines and hang-ups (server/http/connections.c).
 */
#ifndef SERVER_DAEMON_H
#define SERVER_DAEMON_H

#include "server/http/server.h"

bool http_server_create(const struct http_options *options, struct http_server **out,
    struct error *err) __attribute__((warn_unused_result));

/* Stops accepting connections and refuses new requests on open ones. Returns when every accepted
 * request has its answer. Requests that are not done after drain_timeout_s are cancelled. Clients
 * get up to HTTP_DRAIN_TIMEOUT_S to read their answers. Does not wait for connections without a
 * pending answer. The engine must keep running. */
void http_server_drain(struct http_server *server);

/* Call it only after http_server_drain. NULL is fine. */
void http_server_destroy(struct http_server *server);

#endif
