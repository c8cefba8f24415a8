/* A deferred answer: another thread works on it while its connection is suspended.
 *
 * The libmicrohttpd thread creates it and holds one reference, in the exchange; the worker holds
 * the other. It is freed with the last reference.
 */
#ifndef SERVER_LATER_DEFERRED_H
#define SERVER_LATER_DEFERRED_H

#include "server/http/exchange.h"

struct deferred;

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
    pthread_mutex_t mutex;       /* guards what follows */
    int references;
    bool suspended, done, cancelled;
};

/* Initialises it with both references. From here on a draining server waits for deferred_done.
 * ERROR_UNAVAILABLE if the server is draining: then only the caller's reference exists. */
bool deferred_init(struct deferred *deferred, const struct deferred_kind *kind,
    struct exchange *exchange, struct error *err) __attribute__((warn_unused_result));
/* Replaces deferred_done if the work never began: only the caller's reference is left. */
void deferred_take_back(struct deferred *deferred);

/* Gives the exchange its reference and suspends the connection. Returns false if the answer is done
 * already: then call kind->answer. */
bool deferred_suspend(struct deferred *deferred, struct exchange *exchange);

/* Reports that the work is done: resumes the connection and drops the worker's reference. */
void deferred_done(struct deferred *deferred);

/* Reports that the client has left. Any thread; `deferred` is a struct deferred. */
void deferred_cancel(void *deferred);

/* Adds a reference. */
void deferred_ref(struct deferred *deferred);
void deferred_unref(struct deferred *deferred); /* NULL is fine */

#endif
