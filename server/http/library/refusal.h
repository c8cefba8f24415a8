/* Requests that libmicrohttpd refuses before it shows them to us.
 *
 * A Content-Length that is no number is one: 0.9.75 answers with the head of its answer twice and a
 * page of HTML, so that to a client the second head is the body. It does say so in its log first;
 * and then exactly one connection of the thread has a head that is complete, and neither been shown
 * to us nor answered. So we send an answer of our own there and close the connection's sending
 * side: what the library sends after that goes nowhere, and it closes the connection.
 *
 * Where it refuses a line of a head before that head is complete, or a chunk of a body, nothing
 * tells us whose it is: those get the library's page, once, and are only noted when they end. */
#ifndef SERVER_HTTP_LIBRARY_REFUSAL_H
#define SERVER_HTTP_LIBRARY_REFUSAL_H

#include "base/error.h"
#include "server/http/exchange.h"

#include <stdbool.h>

struct http_thread;

/* All functions: on the thread itself. An exchange whose head is coming, until it has come. */
void refusal_expect_head(struct http_thread *thread, struct exchange *exchange);
void refusal_head_has_come(struct http_thread *thread, struct exchange *exchange);

/* While the library logs that it refuses something: the exchange whose head it refuses, NULL if
 * that is not known. */
struct exchange *refusal_find(const struct http_thread *thread);
/* Answers that one, in the words of its dialect, as respond_error does, with `status`. */
void refusal_answer(struct exchange *exchange, int status, const struct error *err);

/* At the end of an exchange: sets its status if the library has answered in our place. */
void refusal_note(struct exchange *exchange);

#endif
