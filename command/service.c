#include "command/service.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_SOCKET 3

static struct {
    char path[108]; /* socket for notifications; "": none */
    long long watchdog_us;
    int sockets;
} service;

static long long number_in(const char *name) {
    const char *text = getenv(name);
    char *end;
    errno = 0;
    const long long number = text ? strtoll(text, &end, 10) : 0;
    return text && *text && !*end && !errno ? number : 0;
}

/* Returns whether the variables are meant for this process. They may have been inherited from
 * another one. */
static bool is_for_us(const char *name) {
    return !getenv(name) || number_in(name) == getpid();
}

void service_begin(void) {
    static const char *const ours[] = { "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID",
        "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES" };
    const char *path = getenv("NOTIFY_SOCKET");
    if (path && (path[0] == '/' || path[0] == '@') && strlen(path) < sizeof(service.path))
        snprintf(service.path, sizeof(service.path), "%s", path);
    if (is_for_us("WATCHDOG_PID"))
        service.watchdog_us = number_in("WATCHDOG_USEC");
    if (getenv("LISTEN_PID") && is_for_us("LISTEN_PID"))
        service.sockets = (int)number_in("LISTEN_FDS");
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
        unsetenv(ours[i]);
}

bool service_take_socket(int *fd, struct error *err) {
    *fd = service.sockets == 1 ? FIRST_SOCKET : -1;
    return service.sockets <= 1 ||
           error_set(
               err, ERROR_INVALID, "%d sockets are handed over; one is enough", service.sockets);
}

void service_notify(const char *state) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const size_t length = strlen(service.path);
    if (length == 0)
        return;
    memcpy(address.sun_path, service.path, length);
    if (address.sun_path[0] == '@')
        address.sun_path[0] = 0; /* abstract: begins with a NUL */
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return; /* systemd's watchdog will notice */
    sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&address,
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length));
    close(fd);
}

int service_watchdog_ms(void) {
    const long long half_ms = service.watchdog_us / 2000;
    return half_ms <= 0 ? 0 : half_ms > INT32_MAX ? INT32_MAX : (int)half_ms;
}
