/* The threads that read requests and send answers. Each thread is a libmicrohttpd daemon of its
 * own. The acceptor gives it clients, up to HTTP_THREAD_CONNECTIONS. A thread without work sleeps.
 *
 * Why not one libmicrohttpd daemon with a pool of threads? Each thread of a pool asks epoll_wait
 * for up to 128 events. When it gets exactly 128, it calls epoll_wait again before it handles them,
 * with its whole time-out of up to HTTP_IDLE_TIMEOUT_S (MHD_epoll, in 0.9.75 to 1.0.1 at least). So
 * 128 clients that write at the same moment wait half a minute and are closed unanswered.
 * epoll_wait reports a descriptor once per call, so 128 events need 128 descriptors. A thread's
 * epoll set holds the thread's connections, and one descriptor by which other threads wake it. With
 * 126 connections it reports at most 127 events, so a limit of 126 connections would be enough. But
 * the library's pool chooses a thread by the client's descriptor number, and if that thread is
 * full, it closes the client with a lock held. So we choose the thread ourselves, by our own count
 * of its connections. A connection is counted from before the library gets it until the
 * connection's thread is about to remove it from the epoll set. The same thread adds the next
 * connection to the set, and does so only after that removal. So the set never holds more
 * connections than the limit.
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

/* The `user` argument of every callback. */
struct http_thread {
    struct http_server *server; /* borrowed */
    struct MHD_Daemon *daemon;  /* owned */
    atomic_int connections;
    struct exchange *heads; /* with incomplete heads (library/refusal.h); this thread only */
};

/* The callbacks have libmicrohttpd's signatures. */
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
/* Closes the connections, none of which may be suspended. NULL is fine. */
void http_threads_destroy(struct http_threads *threads);

/* Gives a client to the thread with the fewest connections. Takes over `fd`, also on failure. The
 * caller must keep the total at connections_max or less. Only one thread may call it. */
bool http_threads_adopt(struct http_threads *threads, int fd, const struct sockaddr *address,
    socklen_t size) __attribute__((warn_unused_result));
/* Decrements the thread's count of connections. on_connection calls it when a connection ends. */
void http_thread_let_go(struct http_thread *thread);

#endif
