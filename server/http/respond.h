/* Answers: JSON, bytes and errors, each with the headers that every answer carries unless its route
 * says otherwise. The functions return what a libmicrohttpd handler returns. */
#ifndef SERVER_HTTP_RESPOND_H
#define SERVER_HTTP_RESPOND_H

#include "server/http/route.h"

#include <jansson.h>

/* Takes over `body` (malloc'd), also on failure. `close` ends the connection after the answer.
 * `headers` ends with a NULL name; NULL for none. */
enum MHD_Result respond_bytes(struct exchange *exchange, int status, const char *content_type,
    void *body, size_t size, const struct answer_header *headers, bool close);

/* The bytes of a regular file. Takes over `fd`, also on failure. */
enum MHD_Result respond_file(
    struct exchange *exchange, const char *content_type, int fd, uint64_t size);

/* A body that comes piece by piece until `read` says that it has ended, for which its connection
 * may be suspended; exchange->deferred is told when the client leaves. `end` is called once, with
 * `user`, also on failure. */
enum MHD_Result respond_stream(struct exchange *exchange, const char *content_type,
    MHD_ContentReaderCallback read, void (*end)(void *user), void *user,
    const struct answer_header *headers);

/* Takes over the reference; a NULL one becomes a 500. */
enum MHD_Result respond_json(struct exchange *exchange, int status, json_t *json);

/* {"error": {"code", "message", "param", "value", "allowed"}}, or what the path's dialect says
 * (server/dialect/dialect.h). */
enum MHD_Result respond_error(struct exchange *exchange, const struct error *err);

/* That as JSON, native: for where an error is no answer of its own. A new reference; NULL when
 * memory is short. */
json_t *respond_error_json(const struct error *err);

/* A whole answer, head and body, with what every answer carries, for a socket that the library is
 * done with: what respond_error says, with a status of its own. Malloc'd, NULL when memory is
 * short.
 */
char *respond_error_text(
    struct exchange *exchange, int status, const struct error *err, size_t *size);

/* The code of a 429 to a peer that guesses keys, not to one who finds the queue full. */
#define RESPOND_TOO_MANY_FAILURES "too_many_failures"
/* The same with a status and a word of our own, when there is no struct error. Extra headers as in
 * respond_bytes. */
enum MHD_Result respond_refusal(struct exchange *exchange, int status, const char *code,
    const char *message, const struct answer_header *headers, bool close);

#endif
