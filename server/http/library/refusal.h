/* Requests that libmicrohttpd refuses before it shows them to us.
 *
 * One example is a Content-Length that is not a number: 0.9.75 answers with its answer's head twice
 * and a page of HTML, so that a client takes the second head for the body. But the library logs the
 * refusal first, and at that moment exactly one connection of the thread has a complete head that
 * was neither shown to us nor answered. So we send our own answer there and shut down the sending
 * side: what the library then sends goes nowhere, and it closes the connection.
 *
 * If the library refuses a line of a head before that head is complete, or a chunk of a body, we
 * cannot tell whose it is. These clients get the library's page, once, and are only noted when they
 * end. */
#ifndef SERVER_HTTP_LIBRARY_REFUSAL_H
#define SERVER_HTTP_LIBRARY_REFUSAL_H

#include "base/error.h"
#include "server/http/exchange.h"

#include <stdbool.h>

struct http_thread;

/* Call all functions on the thread itself. These two bracket the time in which an exchange's head
 * is coming. */
void refusal_expect_head(struct http_thread *thread, struct exchange *exchange);
void refusal_head_has_come(struct http_thread *thread, struct exchange *exchange);

/* Call it while the library logs a refusal. Returns the exchange whose head it refuses, NULL if
 * that is unknown. */
struct exchange *refusal_find(const struct http_thread *thread);
/* Answers that exchange as respond_error does, in its dialect, with `status`. */
void refusal_answer(struct exchange *exchange, int status, const struct error *err);

/* Call it at the end of an exchange. Sets its status if the library has answered instead of us. */
void refusal_note(struct exchange *exchange);

#endif
