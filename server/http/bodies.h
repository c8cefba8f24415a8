/* The request bodies that are held in memory, and the room for them.
 *
 * All together take up to a ceiling, plus a reserve that only small ones (HTTP_SMALL_BODY_BYTES)
 * may use, so that whatever large bodies do, small ones come through. What counts is what has come,
 * rounded up to at most a MiB more, and never more than the head announced.
 *
 * When the room is gone, a body that is not complete gives way: its bytes are freed at once, the
 * rest of it is thrown away, and its client is told to try again. It moved when it was begun, and
 * whenever HTTP_BODY_STEP_BYTES more have come, so that a byte now and then is no sign of life.
 * - For a small body: the small one that moved longest ago.
 * - For a large body: the one that moved longest ago, if that is HTTP_BODY_STALL_MS or longer.
 *   Else one of the caller who holds most, if that is more than the newcomer's caller would hold. A
 *   lone caller may have all the room; one beside others keeps what it would have in fair shares.
 * Where that is the body itself, or there is none, the body itself is refused. */
#ifndef SERVER_HTTP_BODIES_H
#define SERVER_HTTP_BODIES_H

#include "base/error.h"
#include "server/access/caller.h"

#include <stddef.h>
#include <stdint.h>

struct bodies;
struct body;

/* Any thread may call all of these; a body belongs to one at a time. Times are those of
 * base/monotonic.h. */
bool bodies_create(size_t max_bytes, size_t reserve_bytes, struct bodies **out, struct error *err)
    __attribute__((warn_unused_result));
void bodies_destroy(struct bodies *bodies); /* after all that were added; NULL is fine */

/* A body of `announced` bytes, of which none has come. NULL if memory is short. */
struct body *bodies_add(
    struct bodies *bodies, size_t announced, const struct caller *caller, int64_t now_ms);
/* Frees it and gives its room to others. NULL is fine. */
void bodies_drop(struct bodies *bodies, struct body *body);

/* The next `size` bytes have come. False if there is no room for them, or it had to give way
 * meanwhile (ERROR_UNAVAILABLE, or ERROR_NO_MEMORY): then it holds nothing any more. */
bool bodies_append(struct bodies *bodies, struct body *body, const char *data, size_t size,
    int64_t now_ms, struct error *err) __attribute__((warn_unused_result));
/* It is whole, and does not give way from here on: *bytes (`size` bytes, NULL for none) stay until
 * it is dropped. False if it had to give way before. */
bool bodies_complete(struct bodies *bodies, struct body *body, const char **bytes, size_t *size,
    struct error *err) __attribute__((warn_unused_result));

size_t bodies_held_bytes(struct bodies *bodies);

#endif
