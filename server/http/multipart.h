/* Parses multipart/form-data bodies (RFC 7578) as they come, with libmicrohttpd's post processor.
 *
 * The post processor is lenient about what stands before the first boundary and about line ends.
 * Beyond it, a part must have a name and no transfer encoding of its own, and the body must be
 * complete. An empty part and a following part of the same name are one part. */
#ifndef SERVER_HTTP_MULTIPART_H
#define SERVER_HTTP_MULTIPART_H

#include "base/error.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

/* Each returns false with an error to stop: it gets nothing more. */
struct multipart_receiver {
    /* A part begins; file_name is NULL if the part has none. */
    bool (*begin)(void *user, const char *name, const char *file_name, struct error *err);
    /* More bytes of the part. */
    bool (*write)(void *user, const void *bytes, size_t size, struct error *err);
    void *user;
};

struct multipart;

/* `http` is the request; its Content-Type names the boundary (route_takes has checked it). */
bool multipart_create(struct MHD_Connection *http, const struct multipart_receiver *receiver,
    struct multipart **out, struct error *err) __attribute__((warn_unused_result));
/* ERROR_INVALID if the body is malformed, or the receiver's error. */
bool multipart_write(struct multipart *multipart, const void *bytes, size_t size, struct error *err)
    __attribute__((warn_unused_result));
/* ERROR_INVALID if the last boundary or any part is missing. Frees `multipart` in either case. */
bool multipart_end(struct multipart *multipart, struct error *err)
    __attribute__((warn_unused_result));
void multipart_abort(struct multipart *multipart); /* NULL is fine */

#endif
