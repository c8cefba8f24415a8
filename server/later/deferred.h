/* A deferred answer: another thread works on it while its connection is suspended.
 *
 * The libmicrohttpd thread creates the deferred answer and holds one reference, in the exchange.
 * The worker holds the other reference. The answer is freed with the last reference.
 */
#ifndef SERVER_LATER_DEFERRED_H
#define SERVER_LATER_DEFERRED_H

#include "server/http/exchange.h"
#include "server/later/workers.h"

struct deferred;
struct watcher;

struct deferred_kind {
    /* Sends the answer when the connection resumes. Runs on the connection's thread. */
    enum MHD_Result (*answer)(struct deferred *deferred, struct exchange *exchange);
    /* Called when the client has left, or when the server cuts its drain short. Called at most
     * once, with the mutex held, and before the answer is done (but see `streams`). NULL: the work
     * cannot be stopped. */
    void (*cancel)(struct deferred *deferred);
    /* Frees the deferred answer and everything it owns. Called when the last reference is gone. */
    void (*destroy)(struct deferred *deferred);
    bool streams; /* the body is a stream: cancel may also be called after the answer is done */
};

/* The first member of every deferred answer. Zero-initialise the rest. */
struct deferred {
    const struct deferred_kind *kind;
    struct http_server *server;  /* borrowed */
    struct MHD_Connection *http; /* borrowed */
    struct work work;            /* used by deferred_give */
    void (*run)(struct deferred *deferred);
    pthread_mutex_t mutex; /* guards what follows */
    int references;
    bool suspended, done, cancelled;
};

/* Initialises a deferred answer with two references: the caller's and the worker's. From then on a
 * draining server waits for deferred_done. ERROR_UNAVAILABLE if the server is draining already;
 * then only the caller's reference exists. */
bool deferred_init(struct deferred *deferred, const struct deferred_kind *kind,
    struct exchange *exchange, struct error *err) __attribute__((warn_unused_result));
/* Does what deferred_init does, in a route's handler. On failure `deferred` is destroyed, and the
 * handler must return *refused. NULL counts as a failure: memory is short. */
bool deferred_begin(struct deferred *deferred, const struct deferred_kind *kind,
    struct exchange *exchange, enum MHD_Result *refused) __attribute__((warn_unused_result));
/* Adds `watcher` to the watch. Its id, caller, viewer and `look` must be set. The watcher holds a
 * reference while it is watched. ERROR_UNAVAILABLE if the server is stopping; then only the
 * caller's reference exists. */
bool deferred_watch(struct deferred *deferred, struct watcher *watcher, struct error *err)
    __attribute__((warn_unused_result));

/* Gives the exchange its reference and suspends the connection. If the answer is done already,
 * sends it instead. Returns what the route's handler must return. */
enum MHD_Result deferred_wait(struct deferred *deferred, struct exchange *exchange);
/* Does what deferred_wait does, and gives the work to `workers`. One of them calls `run`, which
 * must end with deferred_done. */
enum MHD_Result deferred_give(struct deferred *deferred, struct exchange *exchange,
    struct workers *workers, void (*run)(struct deferred *deferred));
/* Answers with server-sent events, which `read` supplies (an MHD_ContentReaderCallback). The stream
 * holds a reference until it ends, and then cancels the deferred answer. */
enum MHD_Result deferred_stream(
    struct deferred *deferred, struct exchange *exchange, MHD_ContentReaderCallback read);

/* Call with the mutex held, in the `read` of a stream. Suspends the connection until
 * deferred_go_on. */
void deferred_rest(struct deferred *deferred);
/* Call with the mutex held. Resumes the connection if it is suspended. */
void deferred_go_on(struct deferred *deferred);

/* Call it when the work is done. Resumes the connection and drops the worker's reference. */
void deferred_done(struct deferred *deferred);

/* Call it when the client has left. Any thread; `deferred` is a struct deferred. */
void deferred_cancel(void *deferred);
/* Returns whether the deferred answer has been cancelled. */
bool deferred_is_cancelled(struct deferred *deferred);

/* Adds a reference. */
void deferred_ref(struct deferred *deferred);
void deferred_unref(struct deferred *deferred); /* NULL is fine */

#endif
