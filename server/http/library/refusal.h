/* Requests that libmicrohttpd refuses before it shows them to us.
 *
 * One example is a Content-Length that is not a number. Version 0.9.75 then sends the head of its
 * answer twice, followed by a page of HTML, so a client takes the second head for the body. But the
 * library logs the refusal first, and at that moment exactly one connection of the thread has a
 * complete head that was neither shown to us nor answered. So we send our own answer on that
 * connection and shut down its sending side. What the library sends afterwards does not reach the
 * client, and the library closes the connection.
 *
 * If the library refuses a line of an incomplete head, or a chunk of a body, we cannot tell which
 * exchange is refused. Its client gets the library's page, sent once, and the status is only noted
 * when the exchange ends. */
#ifndef SERVER_HTTP_LIBRARY_REFUSAL_H
#define SERVER_HTTP_LIBRARY_REFUSAL_H

#include "base/error.h"
#include "server/http/exchange.h"

#include <stdbool.h>

struct http_thread;

/* Call all functions of this file on the HTTP thread of the exchange. Call refusal_expect_head when
 * a request line has arrived, and refusal_head_has_come when the head is complete or the exchange
 * ends. */
void refusal_expect_head(struct http_thread *thread, struct exchange *exchange);
void refusal_head_has_come(struct http_thread *thread, struct exchange *exchange);

/* Call it while the library logs a refusal. Returns the exchange whose head is refused; NULL if
 * that is unknown. */
struct exchange *refusal_find(const struct http_thread *thread);
/* Answers the refused exchange with `status`, in its dialect, as respond_error does. */
void refusal_answer(struct exchange *exchange, int status, const struct error *err);

/* Call it at the end of an exchange. If the library has answered instead of us, sets the exchange's
 * status. */
void refusal_note(struct exchange *exchange);

#endif
