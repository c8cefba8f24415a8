#include "kernels/recordings.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

#define KEPT_MAX 12 /* the steps, decodes and text encodings of a few sizes */

enum entry_state { ENTRY_FREE, ENTRY_SEEN, ENTRY_RECORDED, ENTRY_REFUSED };

struct entry {
    enum entry_state state;
    unsigned char key[RECORDING_KEY_MAX];
    size_t key_bytes;
    void (*run)(struct compute *c, const void *user);
    size_t mark;                 /* where the arena stands when it runs */
    struct recording *recording; /* owned; NULL unless ENTRY_RECORDED */
    double flops;
    int64_t used; /* for the oldest */
};

struct recordings {
    const struct recorder *recorder; /* borrowed, or NULL */
    struct entry entries[KEPT_MAX];
    unsigned generation; /* of the arena, to which all entries belong */
    int64_t clock;
    struct recordings_figures figures;
};

bool recordings_create(const struct kernels *kernels, struct recordings **out, struct error *err) {
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return error_set(err, ERROR_NO_MEMORY, "no memory for recordings");
    (*out)->recorder = kernels->recorder;
    return true;
}

static void entry_free(struct recordings *r, struct entry *entry) {
    if (entry->state == ENTRY_RECORDED) {
        r->recorder->destroy(entry->recording);
        r->figures.kept--;
    }
    memset(entry, 0, sizeof(*entry));
}

static void clear(struct recordings *r) {
    for (int i = 0; i < KEPT_MAX; i++)
        entry_free(r, &r->entries[i]);
}

void recordings_destroy(struct recordings *recordings) {
    if (recordings)
        clear(recordings);
    free(recordings);
}

void recordings_get_figures(const struct recordings *recordings, struct recordings_figures *out) {
    *out = recordings->figures;
}

/* The entry of this sequence, or one that is ENTRY_FREE, emptied if need be. */
static struct entry *find(struct recordings *r, const struct arena *arena, const void *key,
    size_t key_bytes, void (*run)(struct compute *c, const void *user)) {
    if (r->generation != arena_generation(arena))
        clear(r);
    r->generation = arena_generation(arena);
    struct entry *oldest = &r->entries[0];
    for (int i = 0; i < KEPT_MAX; i++) {
        struct entry *e = &r->entries[i];
        if (e->state != ENTRY_FREE && e->run == run && e->mark == arena_mark(arena) &&
            e->key_bytes == key_bytes && memcmp(e->key, key, key_bytes) == 0)
            return e;
        if (e->used < oldest->used)
            oldest = e;
    }
    entry_free(r, oldest);
    return oldest;
}

/* Runs the sequence while the device writes it down. False if the device would not, which is no
 * error of the run; c->error is set if a call itself was wrong. */
static bool record(struct compute *c, struct recordings *r, struct entry *e, const void *user) {
    struct error err = { 0 };
    double before = c->flops;
    bool begun = r->recorder->begin(&err);
    if (begun) {
        e->run(c, user);
        if (!compute_ok(c)) {
            r->recorder->end(NULL, NULL);
            return false;
        }
        if (r->recorder->end(&e->recording, &err)) {
            e->state = ENTRY_RECORDED;
            e->flops = c->flops - before;
            r->figures.kept++;
            r->figures.recorded++;
            r->figures.launches = r->recorder->launches(e->recording);
            c->flops = before; /* nothing ran yet */
            return true;
        }
        c->flops = before;
    }
    if (err.code == ERROR_DEVICE_LOST || err.code == ERROR_NO_MEMORY) {
        c->error = err;
        return false;
    }
    e->state = ENTRY_REFUSED;
    log_warning("the device cannot record a step, each is launched by itself: %s", err.message);
    return false;
}

void compute_recorded(struct compute *c, const void *key, size_t key_bytes,
    void (*run)(struct compute *c, const void *user), const void *user) {
    if (!compute_ok(c))
        return;
    struct recordings *r = c->recordings;
    if (!r || !r->recorder || c->dry_run) {
        run(c, user);
        return;
    }
    if (key_bytes > RECORDING_KEY_MAX) {
        error_set(&c->error, ERROR_INTERNAL, "a recording's key has %zu bytes, at most %d fit",
            key_bytes, RECORDING_KEY_MAX);
        return;
    }
    struct entry *e = find(r, c->arena, key, key_bytes, run);
    e->used = ++r->clock;
    if (e->state == ENTRY_FREE) {
        e->state = ENTRY_SEEN;
        e->run = run;
        e->mark = arena_mark(c->arena);
        e->key_bytes = key_bytes;
        memcpy(e->key, key, key_bytes);
        run(c, user);
        return;
    }
    bool recorded = e->state == ENTRY_RECORDED || (e->state == ENTRY_SEEN && record(c, r, e, user));
    if (!compute_ok(c))
        return;
    if (!recorded) {
        run(c, user);
        return;
    }
    if (r->recorder->replay(e->recording, &c->error)) {
        c->flops += e->flops;
        r->figures.replayed++;
        r->figures.launches = r->recorder->launches(e->recording);
    }
}
