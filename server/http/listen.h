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
};

/* "127.0.0.1:8188", "localhost:0", "[::1]:8188", "unix:/run/latentd.sock". Port 0 takes any free
 * port. Only loopback addresses: there is no authentication, so anything else is refused with a
 * message that says so. A unix socket's file gets `mode`; one that is left over from a process that
 * ended is replaced, one that is in use, or another kind of file, is not. */
bool listener_init(struct listener *listener, const char *address, mode_t mode, struct error *err)
    __attribute__((warn_unused_result));
/* Closes it and removes its file, if that is still there. */
void listener_finish(struct listener *listener);

#endif
