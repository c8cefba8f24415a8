/* The threads that read requests and send answers: each is a libmicrohttpd of its own, which the
 * acceptor gives clients to, up to HTTP_THREAD_CONNECTIONS each. A thread without anything to do
 * sleeps.
 *
 * Why not one libmicrohttpd with a pool of threads. Each thread asks epoll_wait for up to 128
 * events, and when exactly 128 come it asks again, with its whole time-out of up to
 * HTTP_IDLE_TIMEOUT_S, before it looks at them (MHD_epoll in 0.9.75 to 1.0.1 at least): then 128
 * clients that write at the same moment wait half a minute, and are closed unanswered. epoll_wait
 * reports a descriptor once a call, so 128 events need 128 descriptors. A thread's set holds one of
 * its own, by which others wake it, and its connections: with 126 of them it can never report more
 * than 127. But the library's pool chooses threads by the number of the descriptor, and what it
 * does where one of them is full is to close the client with a lock held. So we choose, by a count
 * that includes a connection from before the library gets it until its thread is about to take it
 * out of its set; the next one enters that set by the same thread, hence later.
 */
#ifndef SERVER_HTTP_LIBRARY_THREADS_H
#define SERVER_HTTP_LIBRARY_THREADS_H

#include "base/error.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>

struct exchange;
struct http_server;

/* `user` of every callback. */
struct http_thread {
    struct http_server *server; /* borrowed */
    struct MHD_Daemon *daemon;  /* owned */
    atomic_int connections;
    struct exchange
        *heads; /* that are coming, of this thread alone (server/http/library/refusal.h) */
};

/* As libmicrohttpd has them. */
struct http_callbacks {
    MHD_AccessHandlerCallback on_request;
    MHD_NotifyConnectionCallback on_connection;
    MHD_RequestCompletedCallback on_completed;
    void *(*on_target)(void *user, const char *target, struct MHD_Connection *http);
    void (*on_log)(void *user, const char *format, va_list args);
};

struct http_threads;

/* As many as `connections_max` connections need. `server` is borrowed. */
bool http_threads_create(struct http_server *server, const struct http_callbacks *callbacks,
    int connections_max, struct http_threads **out, struct error *err)
    __attribute__((warn_unused_result));
/* Closes the connections, which must not be suspended. NULL is fine. */
void http_threads_destroy(struct http_threads *threads);

/* Gives a client to the thread that has the fewest. Owns `fd` from then on, also when it fails; the
 * caller sees to it that there are never more than connections_max. One thread may call. */
bool http_threads_adopt(struct http_threads *threads, int fd, const struct sockaddr *address,
    socklen_t size) __attribute__((warn_unused_result));
/* on_connection calls this when a connection of the thread ends. */
void http_thread_let_go(struct http_thread *thread);

#endif
