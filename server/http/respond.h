/* Sends answers: JSON, bytes and errors. Each has the headers that every answer has, unless its
 * route overrides them. The functions return what a libmicrohttpd handler returns. */
#ifndef SERVER_HTTP_RESPOND_H
#define SERVER_HTTP_RESPOND_H

#include "server/http/route.h"

#include <jansson.h>

/* Takes over `body` (malloc'd), also on failure. `close`: the connection ends after the answer.
 * `headers` ends with a NULL name; NULL: no more headers. */
enum MHD_Result respond_bytes(struct exchange *exchange, int status, const char *content_type,
    void *body, size_t size, const struct answer_header *headers, bool close);

/* Bytes that an answer sends without copying them. `release` is called once with `owner`, when the
 * answer no longer needs them. */
struct shared_bytes {
    void *bytes; /* only read */
    size_t size;
    void (*release)(void *owner);
    void *owner;
};
/* Sends the bytes. Releases them also on failure. */
enum MHD_Result respond_shared(
    struct exchange *exchange, const char *content_type, const struct shared_bytes *body);

/* Sends the bytes of a regular file. Takes over `fd`, also on failure. */
enum MHD_Result respond_file(
    struct exchange *exchange, const char *content_type, int fd, uint64_t size);

/* Sends a body piece by piece until `read` reports its end. Meanwhile the connection may be
 * suspended. If the client leaves, exchange->deferred is cancelled. `end` is called once with
 * `user`, also on failure. */
enum MHD_Result respond_stream(struct exchange *exchange, const char *content_type,
    MHD_ContentReaderCallback read, void (*end)(void *user), void *user,
    const struct answer_header *headers);

/* Takes over the reference to `json`. NULL is answered with status 500. */
enum MHD_Result respond_json(struct exchange *exchange, int status, json_t *json);

/* Answers {"error": {"code", "message", "param", "value", "allowed"}}, or the form of the path's
 * dialect (server/http/dialect.h). */
enum MHD_Result respond_error(struct exchange *exchange, const struct error *err);

/* Returns the native form of an error, for use inside another answer. A new reference; NULL when
 * memory is short. */
json_t *respond_error_json(const struct error *err);

/* Returns a whole error answer as text: the head, and the body that respond_error would send. Use
 * it for a socket that the library does not answer on any more. malloc'd; NULL when memory is
 * short. */
char *respond_error_text(
    struct exchange *exchange, int status, const struct error *err, size_t *size);

/* The code of a 429 for a peer that has sent too many wrong keys. A full queue has another code. */
#define RESPOND_TOO_MANY_FAILURES "too_many_failures"
/* Does what respond_error does, with a status and a native code word instead of a struct error.
 * `headers` is as in respond_bytes. */
enum MHD_Result respond_refusal(struct exchange *exchange, int status, const char *code,
    const char *message, const struct answer_header *headers, bool close);

#endif
