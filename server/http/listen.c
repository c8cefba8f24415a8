#include "server/http/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static bool bad_address(const char *address, struct error *err) {
    return error_field(err, "--listen", address,
        "HOST:PORT such as 127.0.0.1:8188, localhost:0 or [::1]:8188, or unix:PATH");
}

/* Splits "host:port" and "[host]:port". */
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

/* Parses the host as an address. Does not look up names, because the address that we listen on must
 * not depend on a resolver. */
static bool resolve(const char *text, const char *host, int port, union address *out,
    socklen_t *size, struct error *err) {
    memset(out, 0, sizeof(*out));
    if (inet_pton(
            AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, &out->v4.sin_addr) == 1) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons((uint16_t)port);
        *size = sizeof(out->v4);
    } else if (inet_pton(AF_INET6, host, &out->v6.sin6_addr) == 1) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons((uint16_t)port);
        *size = sizeof(out->v6);
    } else {
        return bad_address(text, err);
    }
    return true;
}

static bool is_loopback(const union address *address) {
    return address->any.sa_family == AF_INET ? ntohl(address->v4.sin_addr.s_addr) >> 24 == 127
                                             : IN6_IS_ADDR_LOOPBACK(&address->v6.sin6_addr) != 0;
}

static bool may_listen(const char *text, const union address *address,
    const struct listen_policy *policy, struct error *err) {
    if (is_loopback(address) || (policy->keys && policy->no_tls))
        return true;
    if (!policy->keys)
        return error_set(err, ERROR_INVALID,
            "--listen: %s is not a loopback address, and without --api-keys FILE everybody who "
            "reaches it could draw and change what is here; latentd key makes a key",
            text);
    return error_set(err, ERROR_INVALID,
        "--listen: %s is not a loopback address, and keys, prompts and pictures would travel as "
        "plain text. Put a proxy with TLS in front and listen on 127.0.0.1, or say that you want "
        "this with --insecure-no-tls",
        text);
}

static bool system_error(const char *text, struct error *err) {
    return error_set(err, ERROR_IO, "--listen %s: %s", text, strerror(errno));
}

/* Fills in host and URL from the bound address. */
static bool describe_tcp(struct listener *out, const union address *address) {
    const bool ipv6 = address->any.sa_family == AF_INET6;
    char name[INET6_ADDRSTRLEN];
    const void *binary = ipv6 ? (const void *)&address->v6.sin6_addr
                              : (const void *)&address->v4.sin_addr;
    inet_ntop(address->any.sa_family, binary, name, sizeof(name));
    snprintf(out->host, sizeof(out->host), ipv6 ? "[%s]" : "%s", name);
    snprintf(out->url, sizeof(out->url), "http://%s:%d", out->host,
        ntohs(ipv6 ? address->v6.sin6_port : address->v4.sin_port));
    return true;
}

static bool listen_tcp(
    struct listener *out, const char *text, const struct listen_policy *policy, struct error *err) {
    char host[INET6_ADDRSTRLEN];
    int port = 0;
    union address address;
    socklen_t size;
    if (!split(text, host, sizeof(host), &port, err) ||
        !resolve(text, host, port, &address, &size, err) ||
        !may_listen(text, &address, policy, err))
        return false;
    out->fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (out->fd < 0)
        return system_error(text, err);
    const int on = 1;
    /* A restarted daemon can bind its port again at once. */
    setsockopt(out->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(out->fd, &address.any, size) != 0 || listen(out->fd, SOMAXCONN) != 0 ||
        getsockname(out->fd, &address.any, &size) != 0)
        return system_error(text, err);
    return describe_tcp(out, &address);
}

/* Removes a socket file that nobody listens on, left by a daemon that did not end properly. If it
 * is in use or not a socket, that is an error. */
static bool remove_stale(const char *text, const struct sockaddr_un *address, struct error *err) {
    struct stat status;
    if (lstat(address->sun_path, &status) != 0)
        return errno == ENOENT || system_error(text, err);
    if (!S_ISSOCK(status.st_mode))
        return error_set(err, ERROR_IO, "--listen %s: there is a file that is not a socket", text);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return system_error(text, err);
    const bool refused = connect(fd, (const struct sockaddr *)address, sizeof(*address)) != 0 &&
                         errno == ECONNREFUSED;
    close(fd);
    if (!refused)
        return error_set(err, ERROR_IO, "--listen %s: Address already in use", text);
    return unlink(address->sun_path) == 0 || errno == ENOENT || system_error(text, err);
}

static bool listen_unix(struct listener *out, const char *text, mode_t mode, struct error *err) {
    const char *path = text + strlen("unix:");
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (!*path || strlen(path) >= sizeof(address.sun_path))
        return error_field(err, "--listen", text, "unix: and a path of 1 to %zu bytes",
            sizeof(address.sun_path) - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (!remove_stale(text, &address, err))
        return false;
    out->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (out->fd < 0)
        return system_error(text, err);
    struct stat status;
    /* The umask gives the file at most the permissions of `mode`, from its creation on. A umask
     * affects all threads, but none run yet. */
    const mode_t before = umask(0777 & ~mode);
    const bool bound = bind(out->fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    umask(before);
    if (!bound || lstat(path, &status) != 0)
        return system_error(text, err);
    memcpy(out->path, address.sun_path, sizeof(out->path));
    out->device = status.st_dev;
    out->inode = status.st_ino;
    snprintf(out->url, sizeof(out->url), "%s", text);
    return listen(out->fd, SOMAXCONN) == 0 || system_error(text, err);
}

bool listener_inherit(
    struct listener *listener, int fd, const struct listen_policy *policy, struct error *err) {
    static const char text[] = "the socket handed over";
    union {
        union address ip;
        struct sockaddr_un local;
    } address = { 0 };
    socklen_t size = sizeof(address);
    int listens = 0;
    socklen_t listens_size = sizeof(listens);
    *listener = (struct listener){ .fd = fd, .inherited = true };
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 ||
        fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_size) != 0 ||
        getsockname(fd, &address.ip.any, &size) != 0)
        return system_error(text, err);
    const sa_family_t family = address.ip.any.sa_family;
    if (!listens || (family != AF_INET && family != AF_INET6 && family != AF_UNIX))
        return error_set(err, ERROR_INVALID, "%s does not listen for TCP or unix clients", text);
    if (family != AF_UNIX)
        return may_listen(text, &address.ip, policy, err) && describe_tcp(listener, &address.ip);
    snprintf(listener->url, sizeof(listener->url), "unix:%s", address.local.sun_path);
    return true;
}

bool listener_init(struct listener *listener, const char *address, mode_t mode,
    const struct listen_policy *policy, struct error *err) {
    *listener = (struct listener){ .fd = -1 };
    const bool is_unix = strncmp(address, "unix:", 5) == 0;
    const bool ok = is_unix ? listen_unix(listener, address, mode, err)
                            : listen_tcp(listener, address, policy, err);
    if (!ok)
        listener_finish(listener);
    return ok;
}

void listener_finish(struct listener *listener) {
    struct stat status;
    if (listener->path[0] && lstat(listener->path, &status) == 0 &&
        status.st_dev == listener->device && status.st_ino == listener->inode)
        unlink(listener->path);
    if (listener->fd >= 0)
        close(listener->fd);
    *listener = (struct listener){ .fd = -1 };
}
