#include "server/generation/repeats.h"

#include "base/monotonic.h"
#include "server/http/respond.h"
#include "server/later/deferred.h"

#include <stdlib.h>
#include <string.h>

/* Another connection waiting for the same answer. */
struct waiter {
    struct deferred deferred; /* the first member */
    struct repeat *repeat;    /* a reference */
    struct waiter *next;
};

struct repeat {
    struct repeats *repeats;
    char caller[KEY_NAME_MAX_BYTES + 1], key[JOB_KEY_MAX_BYTES + 1];
    struct digest request;

    /* The mutex of `repeats` guards the rest; the answer does not change once it has ended. */
    int references; /* one of the list, and one of each user */
    bool listed, ended;
    double ended_s;
    struct generation_body body; /* its bytes are owned */
    struct error error;
    struct waiter *waiters;
    struct repeat *next; /* newest first */
};

struct repeats {
    pthread_mutex_t mutex;
    struct repeat *first;
};

bool repeats_create(struct repeats **out, struct error *err) {
    struct repeats *repeats = calloc(1, sizeof(*repeats));
    *out = repeats;
    if (!repeats)
        return error_set(err, ERROR_NO_MEMORY, "no memory for repeated requests");
    pthread_mutex_init(&repeats->mutex, NULL);
    return true;
}

/* From here to repeats_begin: call with the lock held. */
static void unref(struct repeat *repeat) {
    if (--repeat->references > 0)
        return;
    free(repeat->body.bytes);
    free(repeat);
}

static void forget(struct repeat *repeat) {
    struct repeat **at = &repeat->repeats->first;
    if (!repeat->listed)
        return;
    while (*at != repeat)
        at = &(*at)->next;
    *at = repeat->next;
    repeat->listed = false;
    unref(repeat);
}

/* Forgets old entries, and the oldest of too many; keeps those under way. */
static void make_room(struct repeats *repeats) {
    const double now = monotonic_seconds();
    size_t bytes = 0;
    int count = 0;
    for (struct repeat *r = repeats->first, *next; r; r = next) {
        next = r->next;
        if (!r->ended)
            continue;
        bytes += r->body.size;
        count++;
        if (now - r->ended_s > REPEATS_S || bytes > REPEATS_BYTES || count > REPEATS_MAX)
            forget(r);
    }
}

static struct repeat *find(struct repeats *repeats, const char *caller, const char *key) {
    struct repeat *r = repeats->first;
    while (r && !(strcmp(r->caller, caller) == 0 && strcmp(r->key, key) == 0))
        r = r->next;
    return r;
}

static struct repeat *add(
    struct repeats *repeats, const char *caller, const char *key, const struct digest *request) {
    struct repeat *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->repeats = repeats;
    snprintf(r->caller, sizeof(r->caller), "%s", caller);
    snprintf(r->key, sizeof(r->key), "%s", key);
    r->request = *request;
    r->references = 1;
    r->listed = true;
    r->next = repeats->first;
    repeats->first = r;
    return r;
}

void repeats_destroy(struct repeats *repeats) {
    if (!repeats)
        return;
    while (repeats->first)
        forget(repeats->first);
    pthread_mutex_destroy(&repeats->mutex);
    free(repeats);
}

bool repeats_begin(struct repeats *repeats, const char *caller, const char *key,
    const struct digest *request, struct repeat **out, bool *known, struct error *err) {
    pthread_mutex_lock(&repeats->mutex);
    make_room(repeats);
    struct repeat *r = find(repeats, caller, key);
    bool ok = !r || memcmp(&r->request, request, sizeof(*request)) == 0;
    *known = r && ok;
    if (!ok)
        error_set(
            err, ERROR_CONFLICT, "Idempotency-Key %s was sent before, with another request", key);
    if (!r)
        r = add(repeats, caller, key, request);
    if (!r)
        ok = error_set(err, ERROR_NO_MEMORY, "no memory for the request");
    if (ok) {
        r->references++;
        *out = r;
    }
    pthread_mutex_unlock(&repeats->mutex);
    return ok;
}

void repeat_unref(struct repeat *repeat) {
    if (!repeat)
        return;
    struct repeats *repeats = repeat->repeats;
    pthread_mutex_lock(&repeats->mutex);
    unref(repeat);
    pthread_mutex_unlock(&repeats->mutex);
}

/* Returns false if memory is short. */
static bool copy_body(const struct generation_body *body, struct generation_body *out) {
    *out = *body;
    out->bytes = malloc(body->size + 1);
    if (out->bytes)
        memcpy(out->bytes, body->bytes, body->size);
    return out->bytes;
}

void repeat_end(
    struct repeat *repeat, const struct generation_body *body, const struct error *why) {
    struct repeats *repeats = repeat->repeats;
    struct generation_body copy = { 0 };
    const bool kept = body && copy_body(body, &copy);
    pthread_mutex_lock(&repeats->mutex);
    if (kept)
        repeat->body = copy;
    else if (why)
        repeat->error = *why;
    else
        error_set(&repeat->error, ERROR_NO_MEMORY, "no memory for the answer");
    repeat->ended = true;
    repeat->ended_s = monotonic_seconds();
    struct waiter *waiter = repeat->waiters;
    repeat->waiters = NULL;
    if (!kept)
        forget(repeat);
    pthread_mutex_unlock(&repeats->mutex);
    while (waiter) {
        struct waiter *next = waiter->next; /* it may be freed once it is done */
        deferred_done(&waiter->deferred);
        waiter = next;
    }
}

bool repeat_abandon(struct repeat *repeat) {
    struct repeats *repeats = repeat->repeats;
    pthread_mutex_lock(&repeats->mutex);
    const bool alone = !repeat->waiters;
    if (alone)
        forget(repeat);
    pthread_mutex_unlock(&repeats->mutex);
    return alone;
}

/* --- Waiting for an answer --- */

static void destroy(struct deferred *deferred) {
    struct waiter *waiter = (struct waiter *)deferred;
    repeat_unref(waiter->repeat);
    free(waiter);
}

static enum MHD_Result answer(struct deferred *deferred, struct exchange *exchange) {
    const struct repeat *repeat = ((struct waiter *)deferred)->repeat;
    struct generation_body copy;
    struct error err = repeat->error;
    if (err.code == ERROR_NONE && !copy_body(&repeat->body, &copy))
        error_set(&err, ERROR_NO_MEMORY, "no memory for the answer");
    return err.code == ERROR_NONE ? generation_respond(exchange, &copy)
                                  : respond_error(exchange, &err);
}

enum MHD_Result repeat_answer(struct exchange *exchange, struct repeat *repeat) {
    static const struct deferred_kind kind = { .answer = answer, .destroy = destroy };
    enum MHD_Result refused;
    struct waiter *waiter = calloc(1, sizeof(*waiter));
    if (waiter)
        waiter->repeat = repeat;
    else
        repeat_unref(repeat);
    if (!deferred_begin((struct deferred *)waiter, &kind, exchange, &refused))
        return refused;
    pthread_mutex_lock(&repeat->repeats->mutex);
    const bool ended = repeat->ended;
    if (!ended) {
        waiter->next = repeat->waiters;
        repeat->waiters = waiter;
    }
    pthread_mutex_unlock(&repeat->repeats->mutex);
    if (ended)
        deferred_done(&waiter->deferred);
    return deferred_wait(&waiter->deferred, exchange);
}
