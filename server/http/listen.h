/* The socket that the daemon listens on, and its address. */
#ifndef SERVER_HTTP_LISTEN_H
#define SERVER_HTTP_LISTEN_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/types.h>

struct listener {
    int fd;         /* bound, listening, non-blocking */
    char host[64];  /* as in a URL: "127.0.0.1", "[::1]"; "" for a unix socket */
    char url[160];  /* "http://127.0.0.1:8188" with the real port, "unix:/run/latentd.sock" */
    char path[108]; /* of a unix socket; "" for TCP */
    dev_t device;   /* identifies the file: no other is removed */
    ino_t inode;
    bool inherited; /* other processes hold it too, so it stays open when the daemon ends */
};

/* The conditions under which the daemon may listen on a non-loopback address. */
struct listen_policy {
    bool keys;   /* every request needs an API key */
    bool no_tls; /* the operator accepts keys and pictures sent as plain text */
};

/* Binds and listens on "127.0.0.1:8188", "localhost:0", "[::1]:8188" or "unix:/run/latentd.sock".
 * Port 0 takes any free port. A non-loopback address is refused unless the policy has both flags.
 * The file of a unix socket gets `mode`. A socket file left by a process that has ended is
 * replaced. A socket in use or another kind of file is an error. */
bool listener_init(struct listener *listener, const char *address, mode_t mode,
    const struct listen_policy *policy, struct error *err) __attribute__((warn_unused_result));
/* Takes over a bound and listening socket from another process. The same rules apply as for
 * listener_init. */
bool listener_inherit(struct listener *listener, int fd, const struct listen_policy *policy,
    struct error *err) __attribute__((warn_unused_result));
/* Closes the socket. Removes its file, unless the file has been replaced by another. */
void listener_finish(struct listener *listener);

#endif
