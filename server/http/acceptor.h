/* One thread that accepts clients from the listening socket while there are free places. When the
 * process has no file descriptors left, or every place is busy, clients wait in the kernel's accept
 * queue, and the log says so. */
#ifndef SERVER_HTTP_ACCEPTOR_H
#define SERVER_HTTP_ACCEPTOR_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/socket.h>

struct acceptor;
struct connections;

/* Starts the thread. `listen_fd` (non-blocking) stays the caller's. `shared`: another process also
 * holds the socket and can accept the clients that still wait after acceptor_destroy. `adopt` takes
 * over the client's socket, also on failure. A place has already been taken for the client. */
bool acceptor_create(int listen_fd, bool shared, struct connections *connections,
    bool (*adopt)(void *user, int fd, const struct sockaddr *address, socklen_t size), void *user,
    struct acceptor **out, struct error *err) __attribute__((warn_unused_result));
/* Stops the thread. Clients not accepted by then are refused, unless the socket is shared. NULL is
 * fine. */
void acceptor_destroy(struct acceptor *acceptor);

#endif
