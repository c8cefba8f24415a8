/* The request bodies that are held in memory, and the limits on that memory.
 *
 * All bodies together may use a fixed maximum, plus a reserve for small ones
 * (HTTP_SMALL_BODY_BYTES), so that large bodies cannot keep small ones out. A body counts with the
 * bytes received, rounded up by at most a MiB, but never with more than its head announced.
 *
 * When there is no room, an incomplete body is evicted: its bytes are freed at once, the rest of it
 * is discarded, and its client is told to try again. A body "moves" when it begins and whenever
 * another HTTP_BODY_STEP_BYTES have come. So a client that sends a byte now and then makes no
 * progress.
 * - A small body evicts the small body that moved longest ago.
 * - A large body evicts the body that moved longest ago, if that body has not moved for
 *   HTTP_BODY_STALL_MS. Otherwise it evicts a body of the caller that holds most, if that caller
 *   holds more than the newcomer's caller would hold. So a caller may use all the memory while it
 *   is alone, but only its share while others need memory too. A large body evicts small ones only
 *   while the small ones use more than their reserve.
 * - If no body may be evicted by these rules, or only the newcomer itself, the newcomer is refused.
 * */
#ifndef SERVER_HTTP_BODIES_H
#define SERVER_HTTP_BODIES_H

#include "base/error.h"
#include "server/http/caller.h"

#include <stddef.h>
#include <stdint.h>

struct bodies;
struct body;

/* Any thread may call these functions. Each body is used by one thread at a time. All times are
 * those of base/monotonic.h. */
bool bodies_create(size_t max_bytes, size_t reserve_bytes, struct bodies **out, struct error *err)
    __attribute__((warn_unused_result));
void bodies_destroy(struct bodies *bodies); /* every body must have been dropped; NULL is fine */

/* Adds an empty body that is announced to have `announced` bytes. NULL when memory is short. */
struct body *bodies_add(
    struct bodies *bodies, size_t announced, const struct caller *caller, int64_t now_ms);
/* Frees the body and gives back its room. NULL is fine. */
void bodies_drop(struct bodies *bodies, struct body *body);

/* Appends the next `size` bytes. Returns false if there is no room for them or the body was evicted
 * (ERROR_UNAVAILABLE), or if memory is short (ERROR_NO_MEMORY). After an error the body holds no
 * bytes. */
bool bodies_append(struct bodies *bodies, struct body *body, const char *data, size_t size,
    int64_t now_ms, struct error *err) __attribute__((warn_unused_result));
/* Marks the body as complete, so that it cannot be evicted any more. *bytes (`size` bytes; NULL if
 * empty) stays valid until the body is dropped. Returns false if the body was evicted before. */
bool bodies_complete(struct bodies *bodies, struct body *body, const char **bytes, size_t *size,
    struct error *err) __attribute__((warn_unused_result));

size_t bodies_held_bytes(struct bodies *bodies);

#endif
