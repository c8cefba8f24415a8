#include "server/http/bodies.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define GROWTH_MIN_BYTES ((size_t)4096)
#define GROWTH_MAX_BYTES ((size_t)1 << 20)

/* A caller with at least one body here. */
struct holder {
    struct holder *next;
    struct caller caller;
    int bodies;
    size_t bytes;
};

/* While a body is busy or complete, its own thread may read it without the lock. */
struct body {
    struct body *previous, *next;
    struct holder *holder;
    char *bytes; /* owned */
    size_t size, capacity, announced;
    size_t moved_at; /* `size` at its last move (see bodies.h) */
    int64_t moved_ms;
    bool small;
    bool busy;     /* its thread is writing: cannot be evicted */
    bool complete; /* likewise */
    bool refused;  /* evicted, or there was no room for it */
};

struct bodies {
    size_t max_bytes, reserve_bytes;
    pthread_mutex_t mutex; /* guards the rest, and every body and holder */
    struct body *first;
    struct holder *holders;
    size_t large_bytes, small_bytes; /* sums of the capacities, large and small */
};

bool bodies_create(size_t max_bytes, size_t reserve_bytes, struct bodies **out, struct error *err) {
    struct bodies *bodies = calloc(1, sizeof(*bodies));
    if (!bodies)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the HTTP server");
    bodies->max_bytes = max_bytes;
    bodies->reserve_bytes = reserve_bytes;
    pthread_mutex_init(&bodies->mutex, NULL);
    *out = bodies;
    return true;
}

void bodies_destroy(struct bodies *bodies) {
    if (!bodies)
        return;
    pthread_mutex_destroy(&bodies->mutex);
    free(bodies);
}

/* --- Call with the lock held --- */

static struct holder *find_holder(struct bodies *bodies, const struct caller *caller) {
    struct holder *holder = bodies->holders;
    while (holder && !caller_equals(&holder->caller, caller))
        holder = holder->next;
    if (holder)
        return holder;
    holder = calloc(1, sizeof(*holder));
    if (!holder)
        return NULL;
    holder->caller = *caller;
    holder->next = bodies->holders;
    return bodies->holders = holder;
}

static void leave_holder(struct bodies *bodies, struct holder *holder) {
    if (--holder->bodies > 0)
        return;
    struct holder **link = &bodies->holders;
    while (*link != holder)
        link = &(*link)->next;
    *link = holder->next;
    free(holder);
}

static size_t *room_of(struct bodies *bodies, const struct body *body) {
    return body->small ? &bodies->small_bytes : &bodies->large_bytes;
}

static void count(struct bodies *bodies, struct body *body, size_t capacity) {
    size_t *room = room_of(bodies, body);
    *room = *room - body->capacity + capacity;
    body->holder->bytes = body->holder->bytes - body->capacity + capacity;
    body->capacity = capacity;
}

/* Frees the bytes of the body. Do not call it for a busy body. */
static void release(struct bodies *bodies, struct body *body) {
    free(body->bytes);
    body->bytes = NULL;
    body->size = 0;
    count(bodies, body, 0);
}

static void refuse(struct bodies *bodies, struct body *body) {
    body->refused = true;
    release(bodies, body);
}

static bool fits(const struct bodies *bodies, const struct body *body, size_t growth) {
    const size_t all = bodies->large_bytes + bodies->small_bytes;
    return all + growth <= bodies->max_bytes + bodies->reserve_bytes &&
           (body->small || bodies->large_bytes + growth <= bodies->max_bytes);
}

/* Returns whether `other` may be evicted for `body`. A small body evicts only small ones. A large
 * body evicts small ones only while these use more than their reserve. */
static bool competes(
    const struct bodies *bodies, const struct body *body, const struct body *other) {
    if (other->capacity == 0 || other->complete || (other->busy && other != body))
        return false;
    return body->small ? other->small
                       : !other->small || bodies->small_bytes > bodies->reserve_bytes;
}

/* Returns the body that moved longest ago, among `body` and those that may be evicted for it. */
static struct body *find_slowest(const struct bodies *bodies, struct body *body) {
    struct body *slowest = body;
    for (struct body *other = bodies->first; other; other = other->next)
        if (competes(bodies, body, other) && other->moved_ms < slowest->moved_ms)
            slowest = other;
    return slowest;
}

/* Returns the slowest body of the caller that holds most, if that caller holds more than the caller
 * of `body` would hold after `growth` more bytes. Otherwise returns NULL. */
static struct body *find_of_largest(
    const struct bodies *bodies, const struct body *body, size_t growth) {
    struct body *best = NULL;
    for (struct body *other = bodies->first; other; other = other->next) {
        const size_t bytes = other->holder->bytes;
        if (!competes(bodies, body, other) || other->holder == body->holder ||
            bytes <= body->holder->bytes + growth)
            continue;
        if (!best || bytes > best->holder->bytes ||
            (bytes == best->holder->bytes && other->moved_ms < best->moved_ms))
            best = other;
    }
    return best;
}

/* Evicts other bodies until `body` can grow. Returns false if there is no room for it. */
static bool make_room(struct bodies *bodies, struct body *body, size_t growth, int64_t now_ms) {
    while (!fits(bodies, body, growth)) {
        struct body *victim = find_slowest(bodies, body);
        if (!body->small && now_ms - victim->moved_ms < HTTP_BODY_STALL_MS)
            victim = find_of_largest(bodies, body, growth);
        if (!victim || victim == body)
            return false;
        refuse(bodies, victim);
    }
    return true;
}

/* --- One body --- */

struct body *bodies_add(
    struct bodies *bodies, size_t announced, const struct caller *caller, int64_t now_ms) {
    struct body *body = calloc(1, sizeof(*body));
    if (!body)
        return NULL;
    body->announced = announced;
    body->small = announced <= HTTP_SMALL_BODY_BYTES;
    body->moved_ms = now_ms;
    pthread_mutex_lock(&bodies->mutex);
    body->holder = find_holder(bodies, caller);
    if (body->holder) {
        body->holder->bodies++;
        body->next = bodies->first;
        if (body->next)
            body->next->previous = body;
        bodies->first = body;
    }
    pthread_mutex_unlock(&bodies->mutex);
    if (body->holder)
        return body;
    free(body);
    return NULL;
}

void bodies_drop(struct bodies *bodies, struct body *body) {
    if (!body)
        return;
    pthread_mutex_lock(&bodies->mutex);
    release(bodies, body);
    if (body->next)
        body->next->previous = body->previous;
    if (body->previous)
        body->previous->next = body->next;
    else
        bodies->first = body->next;
    leave_holder(bodies, body->holder);
    pthread_mutex_unlock(&bodies->mutex);
    free(body);
}

/* Returns the capacity to allocate when `needed` bytes must fit. */
static size_t capacity_for(const struct body *body, size_t needed) {
    const size_t more = needed < GROWTH_MIN_BYTES   ? GROWTH_MIN_BYTES
                        : needed > GROWTH_MAX_BYTES ? GROWTH_MAX_BYTES
                                                    : needed;
    return more < body->announced - needed ? needed + more : body->announced;
}

static bool no_room(struct error *err) {
    return error_set(err, ERROR_UNAVAILABLE,
        "too many large requests at the same time: this one was dropped, because it arrived more "
        "slowly than others or its caller sends the most");
}

/* Reserves capacity for `size` more bytes and marks the body as busy. Call with the lock held. */
static bool begin_growth(struct bodies *bodies, struct body *body, size_t size, int64_t now_ms) {
    const size_t needed = body->size + size;
    if (body->refused)
        return false;
    if (needed > body->capacity) {
        const size_t capacity = capacity_for(body, needed);
        if (!make_room(bodies, body, capacity - body->capacity, now_ms)) {
            refuse(bodies, body);
            return false;
        }
        count(bodies, body, capacity);
    }
    return body->busy = true;
}

static void end_growth(struct body *body, size_t size, int64_t now_ms) {
    body->busy = false;
    body->size += size;
    if (body->size - body->moved_at >= HTTP_BODY_STEP_BYTES) {
        body->moved_at = body->size;
        body->moved_ms = now_ms;
    }
}

bool bodies_append(struct bodies *bodies, struct body *body, const char *data, size_t size,
    int64_t now_ms, struct error *err) {
    pthread_mutex_lock(&bodies->mutex);
    const size_t before = body->capacity;
    const bool begun = size <= body->announced - body->size &&
                       begin_growth(bodies, body, size, now_ms);
    pthread_mutex_unlock(&bodies->mutex);
    if (!begun)
        return no_room(err);
    /* No other thread touches a busy body. */
    char *bytes = body->capacity > before ? realloc(body->bytes, body->capacity) : body->bytes;
    if (bytes) {
        body->bytes = bytes;
        memcpy(bytes + body->size, data, size);
    }
    pthread_mutex_lock(&bodies->mutex);
    end_growth(body, bytes ? size : 0, now_ms);
    if (!bytes)
        refuse(bodies, body);
    pthread_mutex_unlock(&bodies->mutex);
    return bytes || error_set(err, ERROR_NO_MEMORY, "no memory for the body of this request");
}

bool bodies_complete(
    struct bodies *bodies, struct body *body, const char **bytes, size_t *size, struct error *err) {
    pthread_mutex_lock(&bodies->mutex);
    const bool complete = body->complete = !body->refused;
    *bytes = body->bytes;
    *size = body->size;
    pthread_mutex_unlock(&bodies->mutex);
    return complete || no_room(err);
}

size_t bodies_held_bytes(struct bodies *bodies) {
    pthread_mutex_lock(&bodies->mutex);
    const size_t bytes = bodies->large_bytes + bodies->small_bytes;
    pthread_mutex_unlock(&bodies->mutex);
    return bytes;
}
