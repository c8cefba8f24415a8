/* Bodies of multipart/form-data (RFC 7578), taken apart by libmicrohttpd's reader while they come.
 *
 * The reader is lenient about what stands before the first boundary and about line ends; here a
 * part must have a name and come as it is, without an encoding of its own, and the body must come
 * to its end. A part without bytes and another of the same name behind it are one part. */
#ifndef SERVER_HTTP_MULTIPART_H
#define SERVER_HTTP_MULTIPART_H

#include "base/error.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

/* Each false with why: then no more is given to it. */
struct multipart_receiver {
    /* A part begins; file_name is NULL if it says none. */
    bool (*begin)(void *user, const char *name, const char *file_name, struct error *err);
    /* More bytes of it. */
    bool (*write)(void *user, const void *bytes, size_t size, struct error *err);
    void *user;
};

struct multipart;

/* `http`: the request, whose Content-Type names the boundary (route_takes has looked at it). */
bool multipart_create(struct MHD_Connection *http, const struct multipart_receiver *receiver,
    struct multipart **out, struct error *err) __attribute__((warn_unused_result));
/* ERROR_INVALID for what is no such body, or what the receiver said. */
bool multipart_write(struct multipart *multipart, const void *bytes, size_t size, struct error *err)
    __attribute__((warn_unused_result));
/* ERROR_INVALID if the last boundary has not come. It is gone either way. */
bool multipart_end(struct multipart *multipart, struct error *err)
    __attribute__((warn_unused_result));
void multipart_abort(struct multipart *multipart); /* NULL is fine */

#endif
