/* A picture on its way: handed to the engine, drawn, encoded, answered.
 *
 * Three threads touch a pending answer. The libmicrohttpd thread submits it and suspends the
 * connection; the engine's thread brings the result and passes it on without waiting; the worker's
 * thread makes the answer's bytes and resumes the connection. Each holds a reference; the last one
 * frees it.
 */
#ifndef SERVER_PENDING_H
#define SERVER_PENDING_H

#include "server/http/exchange.h"

struct pending_worker;

bool pending_worker_create(struct pending_worker **out, struct error *err)
    __attribute__((warn_unused_result));
/* Only when no answer is pending. NULL is fine. */
void pending_worker_destroy(struct pending_worker *worker);

enum pending_format { PENDING_JSON, PENDING_PNG };

/* Hands the request to the engine, takes over its contents, and suspends the connection of the
 * exchange, which gets the pending answer; *suspended is false if the answer is there already. On
 * failure (ERROR_BUSY and the like) nothing has happened, and the request is still the caller's. */
bool pending_start(struct exchange *exchange, struct resolved_request *request,
    enum pending_format format, bool *suspended, struct error *err)
    __attribute__((warn_unused_result));

/* The answer, when the connection was resumed or never suspended. */
enum MHD_Result pending_answer(struct exchange *exchange);

/* The client is gone: let the engine stop. Any thread. */
void pending_cancel(void *pending);

void pending_unref(struct pending *pending); /* NULL is fine */

#endif
