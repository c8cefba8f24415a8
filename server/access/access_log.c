#include "server/access/access_log.h"

#include "base/log.h"
#include "base/monotonic.h"
#include "base/text/secrets.h"
#include "base/text/json.h"
#include "server/http/caller.h"
#include "server/http/exchange.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PATH_SHOWN_BYTES 512
#define COMPLAINT_MS 60000

struct access_log {
    int fd; /* non-blocking, unless it is a socket: then MSG_DONTWAIT is used */
    bool is_socket;
    atomic_int lost;
    atomic_llong said_ms; /* when the last loss was logged; 0: never */
};

bool access_log_open(const char *path, struct access_log **out, struct error *err) {
    struct access_log *log = calloc(1, sizeof(*log));
    if (!log)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the access log");
    /* A pipe whose reader is slow must not stop an HTTP thread. Standard output is reopened, so
     * that O_NONBLOCK does not affect other processes that share it. A socket cannot be
     * reopened. */
    const char *name = strcmp(path, "-") == 0 ? "/proc/self/fd/1" : path;
    struct stat status;
    log->fd = open(name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640);
    if (log->fd < 0 && name != path)
        log->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    if (log->fd >= 0)
        log->is_socket = fstat(log->fd, &status) == 0 && S_ISSOCK(status.st_mode);
    if (log->fd < 0) {
        error_set(err, ERROR_IO, "--access-log %s: %s", path, strerror(errno));
        free(log);
        return false;
    }
    *out = log;
    return true;
}

void access_log_close(struct access_log *log) {
    if (!log)
        return;
    close(log->fd);
    free(log);
}

static const char *peer_text(const struct exchange *exchange, char text[INET6_ADDRSTRLEN]) {
    const struct sockaddr *address = caller_address(exchange);
    if (address && address->sa_family == AF_INET)
        return inet_ntop(
            AF_INET, &((const struct sockaddr_in *)address)->sin_addr, text, INET6_ADDRSTRLEN);
    if (address && address->sa_family == AF_INET6)
        return inet_ntop(
            AF_INET6, &((const struct sockaddr_in6 *)address)->sin6_addr, text, INET6_ADDRSTRLEN);
    return "unix";
}

/* RFC 3339 with milliseconds, in UTC. */
static void now_text(char text[40]) {
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    const size_t used = strftime(text, 40, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text + used, 40 - used, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

static char *line_of(const struct exchange *exchange) {
    char when[40], peer[INET6_ADDRSTRLEN], target[PATH_SHOWN_BYTES + 1];
    now_text(when);
    snprintf(target, sizeof(target), "%s", exchange->target);
    json_t *json = json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:I, s:f}", "time", when, "id",
        exchange->id, "peer", peer_text(exchange, peer), "caller", exchange->caller, "method",
        json_lenient_string(exchange->method_name), "target", json_lenient_string(target), "status",
        exchange->status ? json_integer(exchange->status) : json_null(), "received_bytes",
        (json_int_t)exchange->body_received, "seconds",
        (double)(monotonic_ms() - exchange->begun_ms) / 1000);
    char *line = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(json);
    if (line)
        secrets_mask(line); /* target, id and method come from the client */
    return line;
}

static void complain(struct access_log *log) {
    const long long now_ms = monotonic_ms();
    long long said_ms = atomic_load(&log->said_ms);
    atomic_fetch_add(&log->lost, 1);
    if (said_ms && now_ms - said_ms < COMPLAINT_MS)
        return;
    if (atomic_compare_exchange_strong(&log->said_ms, &said_ms, now_ms))
        log_warning(
            "%d lines of the access log could not be written", atomic_exchange(&log->lost, 0));
}

static bool append(const struct access_log *log, const char *line, size_t length) {
    const ssize_t written = log->is_socket
                                ? send(log->fd, line, length, MSG_DONTWAIT | MSG_NOSIGNAL)
                                : write(log->fd, line, length);
    return written == (ssize_t)length;
}

void access_log_write(struct access_log *log, const struct exchange *exchange) {
    char *line = line_of(exchange);
    const size_t length = line ? strlen(line) : 0;
    if (line)
        line[length] = '\n'; /* replaces the NUL: one write is one line */
    if (!line || !append(log, line, length + 1))
        complain(log);
    free(line);
}
