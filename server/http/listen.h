/* The address the daemon listens on. */
#ifndef SERVER_HTTP_LISTEN_H
#define SERVER_HTTP_LISTEN_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/types.h>

struct listener {
    int fd;         /* bound, listening, non-blocking */
    char host[64];  /* as it stands in a URL: "127.0.0.1", "[::1]"; "" for a unix socket */
    char url[160];  /* "http://127.0.0.1:8188" with the real port, "unix:/run/latentd.sock" */
    char path[108]; /* of a unix socket, "" otherwise */
    dev_t device;   /* of that socket's file, so that no other is ever removed */
    ino_t inode;
    bool inherited; /* it goes on listening after us */
};

/* Who may come from beyond this machine. */
struct listen_policy {
    bool keys;   /* every request carries an API key */
    bool no_tls; /* the operator knows that keys and pictures then travel as plain text */
};

/* "127.0.0.1:8188", "localhost:0", "[::1]:8188", "unix:/run/latentd.sock". Port 0 takes any free
 * port. An address that is not the loopback's is refused unless the policy has both. A unix
 * socket's file gets `mode`; one that is left over from a process that ended is replaced, one that
 * is in use, or another kind of file, is not. */
bool listener_init(struct listener *listener, const char *address, mode_t mode,
    const struct listen_policy *policy, struct error *err) __attribute__((warn_unused_result));
/* Takes over a socket that somebody else has bound, by the same rules, and made listen. */
bool listener_inherit(struct listener *listener, int fd, const struct listen_policy *policy,
    struct error *err) __attribute__((warn_unused_result));
/* Closes it and removes its file, if that is still there. */
void listener_finish(struct listener *listener);

#endif
