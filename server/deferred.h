/* An answer that comes later: somebody else works on it, and its connection is suspended meanwhile.
 *
 * The libmicrohttpd thread begins it and holds one reference, in the exchange; who works on it
 * holds the other. The last one frees it.
 */
#ifndef SERVER_DEFERRED_H
#define SERVER_DEFERRED_H

#include "server/http/exchange.h"

struct deferred;

struct deferred_kind {
    /* Says what came out, when the connection goes on. On its thread. */
    enum MHD_Result (*answer)(struct deferred *deferred, struct exchange *exchange);
    /* The client has left, or the server is in a hurry; at most once, from the watching thread,
     * under the mutex and before it is done. NULL: nothing can be stopped. */
    void (*cancel)(struct deferred *deferred);
    /* Frees it and all it owns. Nobody holds it any more. */
    void (*destroy)(struct deferred *deferred);
    bool streams; /* its answer has no end of its own: cancel is also called after it is done */
};

/* The first member of what answers later; otherwise zeroed to begin with. */
struct deferred {
    const struct deferred_kind *kind;
    struct http_server *server;  /* borrowed */
    struct MHD_Connection *http; /* borrowed */
    pthread_mutex_t mutex;       /* guards what follows */
    int references;
    bool suspended, done, cancelled;
};

/* With both references. From here on a draining server waits for deferred_done; ERROR_UNAVAILABLE
 * if it drains already: then there is one reference, the caller's. */
bool deferred_init(struct deferred *deferred, const struct deferred_kind *kind,
    struct exchange *exchange, struct error *err) __attribute__((warn_unused_result));
/* Instead of deferred_done where the work never began: the caller's reference alone is left. */
void deferred_take_back(struct deferred *deferred);

/* Gives the exchange its reference and suspends the connection; false if it is done already, and
 * kind->answer may be called. */
bool deferred_suspend(struct deferred *deferred, struct exchange *exchange);

/* The work is done: the connection goes on, and the worker's reference is gone. */
void deferred_done(struct deferred *deferred);

/* The client is gone. Any thread; `deferred` is a struct deferred. */
void deferred_cancel(void *deferred);

/* One more reference. */
void deferred_ref(struct deferred *deferred);
void deferred_unref(struct deferred *deferred); /* NULL is fine */

#endif
