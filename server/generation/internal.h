/* Shared by the files of server/generation: a generation without the connection or the job that it
 * belongs to. */
#ifndef SERVER_GENERATION_INTERNAL_H
#define SERVER_GENERATION_INTERNAL_H

#include "server/generation/generation.h"

/* What a generation is drawn for: a client (client.c) or a job (jobs.c). */
struct generation_owner {
    /* Encodes the drawn result, on an encoder thread. */
    bool (*encode)(struct generation *g, struct error *err);
    /* Called when `encode` ran out of disk space. Returns true if the owner will call
     * generation_encode_again later, from any thread. NULL: the generation fails. */
    bool (*put_off)(struct generation *g);
    /* Called when it has begun, has advanced, or has a new preview; on the engine thread or an
     * encoder thread. Must not wait. NULL: not called. */
    void (*news)(struct generation *g);
    /* Called once at the end, on an encoder thread, with g->error set; not called if
     * generation_admit failed. */
    void (*ended)(struct generation *g);
    /* Replaces generation_cancel when the generation is cancelled by its id. NULL:
     * generation_cancel. */
    void (*cancel)(struct generation *g);
    bool has_queue; /* as in struct engine_callbacks */
};

struct generation_order {
    struct http_server *server;
    const char *id, *caller;
    const char *account;            /* the text of the struct caller whose turns it takes */
    bool may_prioritize;            /* a priority above 0 is allowed */
    struct generate_request *asked; /* taken over, also on failure */
    const struct generation_kind *kind;
    void *user; /* taken over, also on failure */
    const struct generation_options *options;
    const struct generation_owner *owner;
    void *owned_by;
};

/* Returns a generation with one reference; it is in the server's list until it ends. Returns NULL
 * after filling err. */
struct generation *generation_create(const struct generation_order *order, struct error *err)
    __attribute__((warn_unused_result));
void generation_ref(struct generation *g);
void generation_unref(struct generation *g); /* NULL is fine */

/* Checks that the caller may have the priority it asks for. ERROR_FORBIDDEN names the field. */
bool generation_check_priority(bool may_prioritize, const struct generate_request *asked,
    struct error *err) __attribute__((warn_unused_result));

/* Returns whether admitting it would decode pictures, read an adapter's file, or compute weights
 * from an adapter. */
bool generation_would_wait(const struct generation *g);
/* Returns the workers that admit it if generation_would_wait: readers if it brings pictures, so
 * that decoding does not hold up other requests' loaders; else loaders. Call it before
 * generation_admit. */
struct workers *generation_workers(const struct generation *g);
/* Resolves it and submits it to the engine; every error in the request is reported here. On success
 * owner->ended will be called, possibly before this returns. On failure the generation has
 * ended. */
bool generation_admit(struct generation *g, struct error *err) __attribute__((warn_unused_result));

/* Encodes once more after owner->put_off, on an encoder thread, unless it is cancelled. */
void generation_encode_again(struct generation *g);

/* Any thread, at any time. */
void generation_cancel(struct generation *g);

void generation_get_progress(struct generation *g, struct generation_progress *out);
/* Returns a reference to the first preview with a number above `after`; NULL if there is none. */
struct preview *generation_get_preview(struct generation *g, uint64_t after);

#endif
