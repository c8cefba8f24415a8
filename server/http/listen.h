/* The address the daemon listens on. */
#ifndef SERVER_HTTP_LISTEN_H
#define SERVER_HTTP_LISTEN_H

#include "base/error.h"

#include <stdbool.h>

struct listener {
    int fd; /* bound and listening; the owner closes it */
    bool ipv6;
    char host[64]; /* as it stands in a URL: "127.0.0.1", "[::1]" */
    int port;      /* the real one, also when 0 was asked for */
};

/* "127.0.0.1:8188", "localhost:0", "[::1]:8188". Port 0 takes any free port. Only loopback
 * addresses: there is no authentication, so anything else is refused with a message that says so.
 */
bool listen_on(const char *address, struct listener *out, struct error *err)
    __attribute__((warn_unused_result));

#endif
