/* Takes clients off the listening socket, one thread: as many as there are places for. Where the
 * process has run out of descriptors, or every place is busy, clients wait in the system's own
 * queue, and the log says so. */
#ifndef SERVER_HTTP_ACCEPTOR_H
#define SERVER_HTTP_ACCEPTOR_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/socket.h>

struct acceptor;
struct connections;

/* `listen_fd` (non-blocking) stays the caller's; where it is shared with another process, who comes
 * after the end waits for that. `adopt` owns the client's socket from then on,
 * also when it fails; a place has been taken for it. */
bool acceptor_create(int listen_fd, bool shared, struct connections *connections,
    bool (*adopt)(void *user, int fd, const struct sockaddr *address, socklen_t size), void *user,
    struct acceptor **out, struct error *err) __attribute__((warn_unused_result));
/* Whoever is not accepted by then is refused, unless the socket is shared. NULL is fine. */
void acceptor_destroy(struct acceptor *acceptor);

#endif
