/* The caller of a request, for sharing resources fairly: the name of its API key, or without a key
 * its address. */
#ifndef SERVER_HTTP_CALLER_H
#define SERVER_HTTP_CALLER_H

#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct exchange;

/* "key NAME", "ip 192.0.2.7", "ip 2001:db8:1:2::/64", or "unix" for all clients of a unix socket.
 * Only the first half of an IPv6 address is used, because a client may choose the other half. Never
 * empty. */
struct caller {
    char text[JOB_CALLER_MAX_BYTES + 1];
};

/* Returns the caller of a request. The key's name is used only after the gate has admitted the
 * request (server/access/gate.h). Call it on the exchange's thread. */
struct caller caller_of(const struct exchange *exchange);
/* Makes a caller from the name of a key ("": no key) and an address (NULL: unknown, treated as a
 * unix socket). */
struct caller caller_make(const char *key_name, const struct sockaddr *address);
/* Returns the number by which the engine knows the caller (engine/drawing/turns.h). It is a hash of
 * `text`; nobody can choose an address or a name that collides with another caller's. */
uint64_t caller_number(const char *text);
bool caller_equals(const struct caller *a, const struct caller *b);

/* Decides which jobs, drawings and results a request can see: those of its own API key, or all. The
 * request is answered as if the others did not exist. */
struct viewer {
    char name[KEY_NAME_MAX_BYTES + 1]; /* the name of its API key; "": none */
    bool sees_all;                     /* its key has KEY_MAY_ALL_JOBS */
};
/* Returns the viewer of a request, under the same conditions as caller_of. */
struct viewer viewer_of(const struct exchange *exchange);
/* Returns whether the viewer may see what `owner` (the name of a key, or "") has made. */
bool viewer_sees(const struct viewer *viewer, const char *owner);

/* Returns the address of the client's connection; NULL: unknown. Call it on the exchange's
 * thread. */
const struct sockaddr *caller_address(const struct exchange *exchange);

#endif
