/* Parses multipart/form-data bodies (RFC 7578) as they come, with libmicrohttpd's post processor.
 *
 * The post processor is lenient about text before the first boundary and about line ends. This file
 * also requires that each part has a name and no transfer encoding of its own, and that the body is
 * complete. An empty part followed by a part of the same name counts as one part. */
#ifndef SERVER_HTTP_MULTIPART_H
#define SERVER_HTTP_MULTIPART_H

#include "base/error.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

/* If a function returns false with an error, parsing stops, and neither function is called
 * again. */
struct multipart_receiver {
    /* Begins a part. file_name is NULL if the part has none. */
    bool (*begin)(void *user, const char *name, const char *file_name, struct error *err);
    /* Receives the next bytes of the part. */
    bool (*write)(void *user, const void *bytes, size_t size, struct error *err);
    void *user;
};

struct multipart;

/* `http` is the request. Its Content-Type names the boundary, which route_takes has checked. */
bool multipart_create(struct MHD_Connection *http, const struct multipart_receiver *receiver,
    struct multipart **out, struct error *err) __attribute__((warn_unused_result));
/* Returns false if the body is malformed (ERROR_INVALID), or with the receiver's error. */
bool multipart_write(struct multipart *multipart, const void *bytes, size_t size, struct error *err)
    __attribute__((warn_unused_result));
/* ERROR_INVALID if the last boundary is missing or there is no part. Frees `multipart` in either
 * case. */
bool multipart_end(struct multipart *multipart, struct error *err)
    __attribute__((warn_unused_result));
void multipart_abort(struct multipart *multipart); /* NULL is fine */

#endif
