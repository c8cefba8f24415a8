/* What the files of server/generation share: a generation without the connection, or the job, that
 * it is for. */
#ifndef SERVER_GENERATION_INTERNAL_H
#define SERVER_GENERATION_INTERNAL_H

#include "server/generation/generation.h"

/* Whom it is for: a client (client.c) or a job (jobs.c). */
struct generation_owner {
    /* On an encoder's thread, once it is drawn: makes of it what is asked for. */
    bool (*encode)(struct generation *g, struct error *err);
    /* There was no space for what `encode` writes: true if the owner calls generation_encode_again
     * later, from any thread. NULL: that is the end. */
    bool (*put_off)(struct generation *g);
    /* It has begun, got further, or has another preview. On the engine's thread or an encoder's:
     * must not wait. NULL: nobody wants to know. */
    void (*news)(struct generation *g);
    /* The end, g->error says how: on an encoder's thread, once, unless generation_admit failed. */
    void (*ended)(struct generation *g);
    /* Instead of generation_cancel, for who cancels it by its id. NULL: that is all. */
    void (*cancel)(struct generation *g);
    bool has_queue; /* as struct engine_callbacks has it */
};

struct generation_order {
    struct http_server *server;
    const char *id, *caller;
    const char *account;            /* the text of struct caller: whose turns it takes */
    bool may_prioritize;            /* its priority may be above 0 */
    struct generate_request *asked; /* taken over, also on failure */
    const struct generation_kind *kind;
    void *user; /* the same */
    const struct generation_options *options;
    const struct generation_owner *owner;
    void *owned_by;
};

/* With one reference, and in the server's list until it has ended. NULL after filling err. */
struct generation *generation_create(const struct generation_order *order, struct error *err)
    __attribute__((warn_unused_result));
void generation_ref(struct generation *g);
void generation_unref(struct generation *g); /* NULL is fine */

/* Whether its caller may ask for its priority; ERROR_FORBIDDEN names it. */
bool generation_check_priority(bool may_prioritize, const struct generate_request *asked,
    struct error *err) __attribute__((warn_unused_result));

/* Whether admitting it would decode pictures, read an adapter's file, or make weights of one. */
bool generation_would_wait(const struct generation *g);
/* Who admits it then: readers where there are pictures, which keep no loader from others. Before
 * it is admitted. */
struct workers *generation_workers(const struct generation *g);
/* All that can be wrong with the request is said here, whoever waits. On success the engine has it,
 * and owner->ended will be called, maybe before this returns; if not, it has ended now. */
bool generation_admit(struct generation *g, struct error *err) __attribute__((warn_unused_result));

/* After owner->put_off: tries once more, on an encoder's thread, unless it is cancelled. */
void generation_encode_again(struct generation *g);

/* Any thread, at any time. */
void generation_cancel(struct generation *g);

void generation_get_progress(struct generation *g, struct generation_progress *out);
/* The first preview with a number above `after`, a reference; NULL: there is none. */
struct preview *generation_get_preview(struct generation *g, uint64_t after);

#endif
