/* The threads that read requests and send answers. Each is a libmicrohttpd daemon of its own; the
 * acceptor gives it clients, up to HTTP_THREAD_CONNECTIONS each. A thread without work sleeps.
 *
 * Why not one libmicrohttpd daemon with a pool of threads? Each thread asks epoll_wait for up to
 * 128 events. When exactly 128 come, it asks again, with its whole time-out of up to
 * HTTP_IDLE_TIMEOUT_S, before it looks at them (MHD_epoll, in 0.9.75 to 1.0.1 at least): then 128
 * clients that write at the same moment wait half a minute and are closed unanswered. epoll_wait
 * reports a descriptor once per call, so 128 events need 128 descriptors. A thread's set holds one
 * descriptor of its own, by which other threads wake it, and its connections: with 126 of them it
 * can report at most 127. But the library's pool chooses a thread by the descriptor's number, and
 * if that thread is full, it closes the client with a lock held. So we choose the thread, by a
 * count that includes a connection from before the library gets it until its thread is about to
 * remove it from its set. The next connection enters that set on the same thread, hence later.
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
    struct exchange *heads; /* whose heads are coming (library/refusal.h); for this thread alone */
};

/* With libmicrohttpd's signatures. */
struct http_callbacks {
    MHD_AccessHandlerCallback on_request;
    MHD_NotifyConnectionCallback on_connection;
    MHD_RequestCompletedCallback on_completed;
    void *(*on_target)(void *user, const char *target, struct MHD_Connection *http);
    void (*on_log)(void *user, const char *format, va_list args);
};

struct http_threads;

/* Starts as many threads as `connections_max` connections need. `server` is borrowed. */
bool http_threads_create(struct http_server *server, const struct http_callbacks *callbacks,
    int connections_max, struct http_threads **out, struct error *err)
    __attribute__((warn_unused_result));
/* Closes the connections; none may be suspended. NULL is fine. */
void http_threads_destroy(struct http_threads *threads);

/* Gives a client to the thread with the fewest connections. Owns `fd` from then on, also on
 * failure. The caller keeps the total at connections_max or less. Only one thread may call. */
bool http_threads_adopt(struct http_threads *threads, int fd, const struct sockaddr *address,
    socklen_t size) __attribute__((warn_unused_result));
/* on_connection calls this when a connection of the thread ends. */
void http_thread_let_go(struct http_thread *thread);

#endif
