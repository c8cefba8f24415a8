/* The caller of a request, for sharing resources fairly: the name of its API key, else its
 * address. */
#ifndef SERVER_HTTP_CALLER_H
#define SERVER_HTTP_CALLER_H

#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct exchange;

/* "key NAME", "ip 192.0.2.7", "ip 2001:db8:1:2::/64" (the first half of an IPv6 address, since a
 * client owns the other half), or "unix" for all clients of a unix socket. Never empty. */
struct caller {
    char text[JOB_CALLER_MAX_BYTES + 1];
};

/* Call it on the exchange's thread. Uses the key's name once the gate has admitted the request
 * (server/access/gate.h). */
struct caller caller_of(const struct exchange *exchange);
/* Makes a caller of a key's name ("": none) and an address (NULL: unknown, as for a unix
 * socket). */
struct caller caller_make(const char *key_name, const struct sockaddr *address);
/* Returns the number by which the engine knows the caller (engine/drawing/turns.h): a hash of
 * `text` for which nobody can choose a colliding address or name. */
uint64_t caller_number(const char *text);
bool caller_equals(const struct caller *a, const struct caller *b);

/* Whose view a request has of what callers have made: jobs, drawings and their results. These do
 * not exist for anybody but their owner. */
struct viewer {
    char name[KEY_NAME_MAX_BYTES + 1]; /* of its API key; "": none */
    bool sees_all;                     /* sees everything: its key has KEY_MAY_ALL_JOBS */
};
/* As caller_of. */
struct viewer viewer_of(const struct exchange *exchange);
/* Returns whether the viewer may see what this owner (a key's name, or "") has made. */
bool viewer_sees(const struct viewer *viewer, const char *owner);

/* Returns the address of the client's connection; NULL: unknown. Call it on the exchange's
 * thread. */
const struct sockaddr *caller_address(const struct exchange *exchange);

#endif
