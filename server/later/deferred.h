/* A deferred answer: another thread works on it while its connection is suspended.
 *
 * The libmicrohttpd thread creates it and holds one reference, in the exchange; the worker holds
 * the other. It is freed with the last reference.
 */
#ifndef SERVER_LATER_DEFERRED_H
#define SERVER_LATER_DEFERRED_H

#include "server/http/exchange.h"
#include "server/later/workers.h"

struct deferred;
struct watcher;

struct deferred_kind {
    /* Answers when the connection resumes, on the connection's thread. */
    enum MHD_Result (*answer)(struct deferred *deferred, struct exchange *exchange);
    /* The client has left, or the server cuts its drain short. Called at most once, with the mutex
     * held and before the answer is done (see `streams`). NULL: the work cannot be stopped. */
    void (*cancel)(struct deferred *deferred);
    /* Frees it and everything it owns, after the last reference is gone. */
    void (*destroy)(struct deferred *deferred);
    bool streams; /* the answer has no end of its own: cancel may also be called after it is done */
};

/* The first member of every deferred answer. Zero-initialise the rest. */
struct deferred {
    const struct deferred_kind *kind;
    struct http_server *server;  /* borrowed */
    struct MHD_Connection *http; /* borrowed */
    struct work work;            /* of deferred_give */
    void (*run)(struct deferred *deferred);
    pthread_mutex_t mutex; /* guards what follows */
    int references;
    bool suspended, done, cancelled;
};

/* Initialises it with both references. From here on a draining server waits for deferred_done.
 * ERROR_UNAVAILABLE if the server is draining: then only the caller's reference exists. */
bool deferred_init(struct deferred *deferred, const struct deferred_kind *kind,
    struct exchange *exchange, struct error *err) __attribute__((warn_unused_result));
/* As deferred_init, in a route's handler. On failure `deferred` is destroyed, and *refused is what
 * the handler returns. NULL fails: memory is short. */
bool deferred_begin(struct deferred *deferred, const struct deferred_kind *kind,
    struct exchange *exchange, enum MHD_Result *refused) __attribute__((warn_unused_result));
/* Has the watch look at `watcher`, which holds a reference meanwhile; its id, callers and `look`
 * are set. ERROR_UNAVAILABLE if the server stops: then only the caller's reference exists. */
bool deferred_watch(struct deferred *deferred, struct watcher *watcher, struct error *err)
    __attribute__((warn_unused_result));

/* Gives the exchange its reference and suspends the connection, or answers if the answer is done
 * already. What the handler returns. */
enum MHD_Result deferred_wait(struct deferred *deferred, struct exchange *exchange);
/* As deferred_wait, and has one of the workers call `run`, which ends with deferred_done. */
enum MHD_Result deferred_give(struct deferred *deferred, struct exchange *exchange,
    struct workers *workers, void (*run)(struct deferred *deferred));
/* Answers with server-sent events, which `read` hands over as a MHD_ContentReaderCallback. Holds a
 * reference meanwhile, and cancels at the end. */
enum MHD_Result deferred_stream(
    struct deferred *deferred, struct exchange *exchange, MHD_ContentReaderCallback read);

/* Call with the mutex held, in the `read` of a stream: suspends the connection until
 * deferred_go_on. */
void deferred_rest(struct deferred *deferred);
/* Call with the mutex held. Resumes the connection if it is suspended. */
void deferred_go_on(struct deferred *deferred);

/* Reports that the work is done: resumes the connection and drops the worker's reference. */
void deferred_done(struct deferred *deferred);

/* Reports that the client has left. Any thread; `deferred` is a struct deferred. */
void deferred_cancel(void *deferred);
/* Whether that was reported. */
bool deferred_is_cancelled(struct deferred *deferred);

/* Adds a reference. */
void deferred_ref(struct deferred *deferred);
void deferred_unref(struct deferred *deferred); /* NULL is fine */

#endif
