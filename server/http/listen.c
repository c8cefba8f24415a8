#include "server/http/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static bool bad_address(const char *address, struct error *err) {
    return error_field(
        err, "--listen", address, "HOST:PORT such as 127.0.0.1:8188, localhost:0 or [::1]:8188");
}

/* Host and port of "host:port" and "[host]:port". */
static bool split(const char *address, char *host, size_t host_size, int *port, struct error *err) {
    const char *colon = strrchr(address, ':');
    const char *begin = address, *end = colon;
    if (!colon || colon == address)
        return bad_address(address, err);
    if (*address == '[') {
        begin++;
        end--;
        if (end < begin || *end != ']')
            return bad_address(address, err);
    } else if (memchr(address, ':', (size_t)(colon - address))) {
        return bad_address(address, err);
    }
    char *rest;
    errno = 0;
    long number = strtol(colon + 1, &rest, 10);
    if (errno || rest == colon + 1 || *rest || colon[1] < '0' || colon[1] > '9' || number > 65535 ||
        (size_t)(end - begin) >= host_size)
        return bad_address(address, err);
    memcpy(host, begin, (size_t)(end - begin));
    host[end - begin] = 0;
    *port = (int)number;
    return true;
}

/* No names are looked up: what we listen on must not depend on a resolver. */
static bool resolve(const char *text, const char *host, int port, union address *out,
    socklen_t *size, struct error *err) {
    memset(out, 0, sizeof(*out));
    bool loopback;
    if (inet_pton(
            AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, &out->v4.sin_addr) == 1) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons((uint16_t)port);
        *size = sizeof(out->v4);
        loopback = ntohl(out->v4.sin_addr.s_addr) >> 24 == 127;
    } else if (inet_pton(AF_INET6, host, &out->v6.sin6_addr) == 1) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons((uint16_t)port);
        *size = sizeof(out->v6);
        loopback = IN6_IS_ADDR_LOOPBACK(&out->v6.sin6_addr);
    } else {
        return bad_address(text, err);
    }
    if (loopback)
        return true;
    return error_set(err, ERROR_INVALID,
        "--listen: %s is not a loopback address. This version has no authentication, so it only "
        "listens on 127.0.0.1, [::1] or localhost; to serve others put a proxy that authenticates "
        "in front of it",
        text);
}

bool listen_on(const char *text, struct listener *out, struct error *err) {
    char host[INET6_ADDRSTRLEN];
    int port = 0;
    union address address;
    socklen_t size;
    if (!split(text, host, sizeof(host), &port, err) ||
        !resolve(text, host, port, &address, &size, err))
        return false;
    memset(out, 0, sizeof(*out));
    out->ipv6 = address.any.sa_family == AF_INET6;
    out->fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (out->fd < 0)
        return error_set(err, ERROR_IO, "--listen %s: %s", text, strerror(errno));
    const int on = 1;
    /* A restarted daemon gets its port back at once. */
    setsockopt(out->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(out->fd, &address.any, size) != 0 || listen(out->fd, SOMAXCONN) != 0 ||
        getsockname(out->fd, &address.any, &size) != 0) {
        error_set(err, ERROR_IO, "--listen %s: %s", text, strerror(errno));
        close(out->fd);
        out->fd = -1;
        return false;
    }
    out->port = ntohs(out->ipv6 ? address.v6.sin6_port : address.v4.sin_port);
    char name[INET6_ADDRSTRLEN];
    const void *binary = out->ipv6 ? (const void *)&address.v6.sin6_addr
                                   : (const void *)&address.v4.sin_addr;
    inet_ntop(address.any.sa_family, binary, name, sizeof(name));
    snprintf(out->host, sizeof(out->host), out->ipv6 ? "[%s]" : "%s", name);
    return true;
}
