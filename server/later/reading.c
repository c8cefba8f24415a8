#include "server/later/reading.h"

#include "server/http/connections.h"
#include "server/http/respond.h"
#include "server/later/deferred.h"

#include <stddef.h>
#include <stdlib.h>

struct reading {
    struct deferred deferred; /* the first member */
    const struct reading_kind *kind;
    struct exchange *exchange; /* borrowed; exists until the connection resumes */
    bool ok;                   /* the contents of `read` are owned */
    struct error error;
    _Alignas(max_align_t) unsigned char read[];
};

static void destroy(struct deferred *deferred) {
    struct reading *r = (struct reading *)deferred;
    if (r->ok)
        r->kind->finish(r->read);
    free(r);
}

static bool read_body(const struct reading_kind *kind, const struct exchange *exchange, void *out,
    struct error *err) {
    if (kind->read(exchange, out, err))
        return true;
    if (err->code == ERROR_NONE)
        error_set(err, ERROR_NO_MEMORY, "no memory for the request");
    return false;
}

/* Runs on a reader thread. Does not parse if the client has left. */
static void read_later(struct deferred *deferred) {
    struct reading *r = (struct reading *)deferred;
    r->ok = !deferred_is_cancelled(deferred) && read_body(r->kind, r->exchange, r->read, &r->error);
    deferred_done(deferred);
}

static void explain_cancelled(struct exchange *exchange, struct error *err) {
    if (server_state(exchange->server) == ENGINE_STOPPING)
        error_set(err, ERROR_UNAVAILABLE, "the server stopped before it had read the request");
    else
        error_set(err, ERROR_CANCELLED,
            "the client closed its side of the connection, which counts as disconnecting");
}

/* Calls the handler when the connection resumes. The handler may suspend the connection again for
 * its own answer. So before that the exchange gives up its reference to this deferred answer, and
 * the watch for a hang-up ends. */
static enum MHD_Result answer(struct deferred *deferred, struct exchange *exchange) {
    struct reading *r = (struct reading *)deferred;
    enum MHD_Result result;
    exchange->reads = false;
    exchange->deferred = NULL;
    if (exchange->connection)
        connections_enter(exchange->server->connections, exchange->connection, CONNECTION_WORK);
    if (deferred_is_cancelled(deferred))
        explain_cancelled(exchange, &r->error);
    if (r->error.code != ERROR_NONE) {
        result = respond_error(exchange, &r->error);
    } else {
        r->ok = false; /* taken over */
        result = r->kind->handle(exchange, r->read);
    }
    deferred_unref(deferred);
    return result;
}

static enum MHD_Result read_now(struct exchange *exchange, struct reading *r) {
    struct error err = { 0 };
    const bool ok = read_body(r->kind, exchange, r->read, &err);
    const enum MHD_Result result = ok ? r->kind->handle(exchange, r->read)
                                      : respond_error(exchange, &err);
    free(r);
    return result;
}

enum MHD_Result reading_start(struct exchange *exchange, const struct reading_kind *kind) {
    static const struct deferred_kind deferred = { .answer = answer, .destroy = destroy };
    enum MHD_Result refused;
    struct reading *r = calloc(1, sizeof(*r) + kind->size);
    if (r) {
        r->kind = kind;
        r->exchange = exchange;
    }
    if (r && exchange->body_size <= HTTP_READ_AT_ONCE_BYTES)
        return read_now(exchange, r);
    if (!deferred_begin((struct deferred *)r, &deferred, exchange, &refused))
        return refused;
    exchange->reads = true;
    return deferred_give(&r->deferred, exchange, exchange->server->readers, read_later);
}
