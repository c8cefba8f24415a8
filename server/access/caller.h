/* Who is behind a request, where all callers share what there is: the name of the API key that it
 * carries, else the address that it comes from. */
#ifndef SERVER_ACCESS_CALLER_H
#define SERVER_ACCESS_CALLER_H

#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct exchange;

/* "key NAME", "ip 192.0.2.7", "ip 2001:db8:1:2::/64" (the first half of an IPv6 address: a client
 * has the other one to itself), or "unix" for all clients of a unix socket. Never empty. */
struct caller {
    char text[JOB_CALLER_MAX_BYTES + 1];
};

/* A key's name counts once the gate has admitted the request (server/access/gate.h). The thread of
 * the exchange. */
struct caller caller_of(const struct exchange *exchange);
/* That of a key's name ("": none) and an address (NULL: not known, as of a unix socket). */
struct caller caller_make(const char *key_name, const struct sockaddr *address);
/* What the engine knows it by (engine/turns.h): a number of `text`, which nobody can choose an
 * address or a name for. */
uint64_t caller_number(const char *text);
bool caller_equals(const struct caller *a, const struct caller *b);

/* On whose behalf a request asks for what callers have made: jobs, drawings and what they left. To
 * anybody else than its owner, that is not there. */
struct viewer {
    char name[KEY_NAME_MAX_BYTES + 1]; /* of the API key that it carries; "": of none */
    bool sees_all;                     /* whoever the owner is: its key may (KEY_MAY_ALL_JOBS) */
};
/* As caller_of. */
struct viewer viewer_of(const struct exchange *exchange);
/* Whether what this owner has made (a key's name, or "") is there for the viewer. */
bool viewer_sees(const struct viewer *viewer, const char *owner);

/* Where the client's connection comes from; NULL: not known. The thread of the exchange. */
const struct sockaddr *caller_address(const struct exchange *exchange);

#endif
