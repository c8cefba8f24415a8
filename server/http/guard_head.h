/* The form of a request's head, byte for byte, as RFC 9112 has it.
 *
 * libmicrohttpd 0.9.75 takes a bare LF for a line end, folds lines, ends a value at a NUL and takes
 * anything before a colon for a name; a proxy in front of us may read the same bytes differently.
 * It cuts the head up where it lies: line ends, the first colon of a line and the spaces of the
 * request line become NULs. So where its pieces begin and end tells what stood between them, with
 * one exception: a NUL beside a bare LF can look like CR LF, and is then taken for it. The pieces
 * come in one by one, in their order; no HTTP library here. */
#ifndef SERVER_HTTP_GUARD_HEAD_H
#define SERVER_HTTP_GUARD_HEAD_H

#include "server/http/guard.h"

struct guard_head {
    const char *at, *end; /* what is left of the head, line ends included */
    bool by_bytes;        /* false: the pieces' places mean nothing */
    struct guard_verdict verdict;
};

/* `method` begins a head of `size` bytes, which `target` and `version` point into. `target` may be
 * NULL: there is none. Its length is that up to its first NUL when it came, since the library puts
 * one in the place of the question mark. */
void guard_head_begin(struct guard_head *head, const char *method, size_t size, const char *target,
    size_t target_length, const char *version);
/* As begin, for a library that cuts differently: only what is in the pieces is checked. */
void guard_head_begin_pieces(struct guard_head *head);

void guard_head_add(struct guard_head *head, const char *name, size_t name_length,
    const char *value, size_t value_length);
/* After the last header: what is wrong with the head, if anything. */
struct guard_verdict guard_head_end(struct guard_head *head);

#endif
