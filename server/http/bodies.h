/* The request bodies that are held in memory, and the room for them.
 *
 * All bodies together may use a fixed maximum, plus a reserve for small ones
 * (HTTP_SMALL_BODY_BYTES), so that small bodies get through whatever large ones do. A body counts
 * by the bytes received, rounded up by at most a MiB, and never by more than its head announced.
 *
 * When there is no room, an incomplete body gives way: its bytes are freed at once, the rest of it
 * is discarded, and its client is told to try again. A body "moves" when it begins and whenever
 * another HTTP_BODY_STEP_BYTES have come, so that a byte now and then does not count as progress.
 * - A small body displaces the small body that moved longest ago.
 * - A large body displaces the body that moved longest ago, if that one has not moved for
 * HTTP_BODY_STALL_MS. Otherwise it displaces a body of the caller that holds most, if that caller
 * holds more than the newcomer's caller would. So a caller may use all the room while it is alone,
 * and no more than its share beside others. Small bodies give way to large ones only while they use
 * more than the reserve.
 * - If that body is the newcomer itself, or there is none, the newcomer is refused. */
#ifndef SERVER_HTTP_BODIES_H
#define SERVER_HTTP_BODIES_H

#include "base/error.h"
#include "server/http/caller.h"

#include <stddef.h>
#include <stdint.h>

struct bodies;
struct body;

/* Any thread may call these functions; each body belongs to one thread at a time. Times are those
 * of base/monotonic.h. */
bool bodies_create(size_t max_bytes, size_t reserve_bytes, struct bodies **out, struct error *err)
    __attribute__((warn_unused_result));
void bodies_destroy(struct bodies *bodies); /* requires that every body was dropped; NULL is fine */

/* Adds a body of `announced` bytes, none of which has come yet. NULL when memory is short. */
struct body *bodies_add(
    struct bodies *bodies, size_t announced, const struct caller *caller, int64_t now_ms);
/* Frees the body and its room. NULL is fine. */
void bodies_drop(struct bodies *bodies, struct body *body);

/* Appends the next `size` bytes. Returns false if there is no room for them, or the body had to
 * give way meanwhile (ERROR_UNAVAILABLE), or memory is short (ERROR_NO_MEMORY); the body then holds
 * no bytes any more. */
bool bodies_append(struct bodies *bodies, struct body *body, const char *data, size_t size,
    int64_t now_ms, struct error *err) __attribute__((warn_unused_result));
/* Marks the body as complete; it no longer gives way. *bytes (`size` bytes; NULL if empty) stay
 * valid until it is dropped. Returns false if it had to give way before. */
bool bodies_complete(struct bodies *bodies, struct body *body, const char **bytes, size_t *size,
    struct error *err) __attribute__((warn_unused_result));

size_t bodies_held_bytes(struct bodies *bodies);

#endif
