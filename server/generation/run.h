/* The run of a generation: it is resolved, given to the engine, encoded, and ends. */
#ifndef SERVER_GENERATION_RUN_H
#define SERVER_GENERATION_RUN_H

#include "server/generation/generation.h"

struct generation_order {
    struct http_server *server;
    const char *id, *caller;
    const char *account;            /* text of the struct caller, for its turns */
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

/* Checks that the caller may have the priority it asks for. ERROR_FORBIDDEN names the field. */
bool generation_check_priority(bool may_prioritize, const struct generate_request *asked,
    struct error *err) __attribute__((warn_unused_result));

/* Returns whether admitting the generation would decode pictures, read an adapter's file, or
 * compute weights from an adapter. */
bool generation_would_wait(const struct generation *g);
/* Returns the workers that admit a generation for which generation_would_wait is true. These are
 * the readers if it brings pictures, so that decoding does not delay other requests at the loaders;
 * else the loaders. Call it before generation_admit. */
struct workers *generation_workers(const struct generation *g);
/* Resolves the generation and submits it to the engine. Every error in the request is reported
 * here. On success owner->ended will be called, possibly before generation_admit returns. On
 * failure the generation has ended. */
bool generation_admit(struct generation *g, struct error *err) __attribute__((warn_unused_result));

/* Encodes the result again after owner->put_off, on an encoder thread, unless the generation is
 * cancelled. */
void generation_encode_again(struct generation *g);

#endif
