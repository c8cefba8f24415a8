/* Checks that a request's head is well-formed, byte for byte, as RFC 9112 demands.
 *
 * libmicrohttpd 0.9.75 accepts a bare LF as a line end, folds lines, ends a value at a NUL and
 * accepts anything before a colon as a name; a proxy in front may read the same bytes differently.
 * The library splits the head into pieces in place: line ends, the first colon of a line and the
 * spaces of the request line become NULs. So the positions where pieces begin and end show which
 * separators were between them. There is one exception: a NUL beside a bare LF can look like CR LF
 * and is accepted as CR LF. The caller adds the pieces one by one, in order. No HTTP library here.
 * */
#ifndef SERVER_HTTP_GUARD_GUARD_HEAD_H
#define SERVER_HTTP_GUARD_GUARD_HEAD_H

#include "server/http/guard/guard.h"

struct guard_head {
    const char *at, *end; /* the unchecked rest, with line ends */
    bool by_bytes;        /* false: the pieces' positions mean nothing */
    struct guard_verdict verdict;
};

/* `method` is the start of a head of `size` bytes; `target` and `version` point into it. `target`
 * is NULL if there is none. `target_length` is the length up to the target's first NUL, measured
 * when the request line arrived: the library later replaces the question mark by a NUL. */
void guard_head_begin(struct guard_head *head, const char *method, size_t size, const char *target,
    size_t target_length, const char *version);
/* Replaces guard_head_begin for a library that splits heads differently: only the contents of the
 * pieces are checked. */
void guard_head_begin_pieces(struct guard_head *head);

void guard_head_add(struct guard_head *head, const char *name, size_t name_length,
    const char *value, size_t value_length);
/* Call it after the last header. Returns what is wrong with the head; status 0 if nothing is. */
struct guard_verdict guard_head_end(struct guard_head *head);

#endif
