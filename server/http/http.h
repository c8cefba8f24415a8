/* The HTTP side of the daemon: accepts connections, guards, routes, answers.
 *
 * One thread accepts clients (server/http/acceptor.c). A small pool of libmicrohttpd threads parses
 * requests, sends answers and never waits. A POST /generate is handed to the engine and its
 * connection suspended; the engine's callback passes the result to one of the encoders
 * (server/generation/generation.c), which makes the PNGs and the JSON and lets the connection go
 * on. Another thread watches the clock and the hang-ups (server/http/connections.c).
 */
#ifndef SERVER_HTTP_HTTP_H
#define SERVER_HTTP_HTTP_H

#include "server/server.h"

bool http_server_create(const struct http_options *options, struct http_server **out,
    struct error *err) __attribute__((warn_unused_result));

/* Stops accepting, refuses new requests on open connections, and returns when every request that
 * was accepted has its answer, or drain_timeout_s are over and what was not done is cancelled;
 * clients get up to HTTP_DRAIN_TIMEOUT_S to take their answers. Connections that wait for no answer
 * are not waited for. The engine must run on. */
void http_server_drain(struct http_server *server);

/* Only after http_server_drain. NULL is fine. */
void http_server_destroy(struct http_server *server);

#endif
