#include "kernels/compute/recordings.h"

#include "base/log.h"
#include "kernels/compute/overlay.h"

#include <stdlib.h>
#include <string.h>

#define KEPT_MAX 16 /* enough for a few sizes of steps, decodes and texts */

enum entry_state { ENTRY_FREE, ENTRY_SEEN, ENTRY_RECORDED, ENTRY_REFUSED };

struct entry {
    enum entry_state state;
    unsigned char key[RECORDING_KEY_MAX];
    size_t key_bytes;
    struct overlay_key overlay;
    void (*run)(struct compute *c, const void *user);
    size_t mark;                 /* the arena's position when it runs */
    struct recording *recording; /* owned; NULL unless ENTRY_RECORDED */
    double flops;
    int64_t used; /* time of last use, to find the oldest */
};

struct recordings {
    const struct recorder *recorder; /* borrowed, or NULL */
    struct overlay_tables *tables;   /* owned; NULL without a recorder */
    struct entry entries[KEPT_MAX];
    unsigned generation; /* the arena's, when the entries were made */
    int64_t clock;
    bool refused; /* a recording failed, and a warning was logged */
    struct recordings_figures figures;
};

bool recordings_create(const struct kernels *kernels, struct recordings **out, struct error *err) {
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return error_set(err, ERROR_NO_MEMORY, "no memory for recordings");
    (*out)->recorder = kernels->recorder;
    if (!kernels->recorder || overlay_tables_create(kernels, &(*out)->tables, err))
        return true;
    free(*out);
    *out = NULL;
    return false;
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

void recordings_clear(struct recordings *recordings) {
    if (recordings)
        clear(recordings);
}

void recordings_destroy(struct recordings *recordings) {
    recordings_clear(recordings);
    if (recordings)
        overlay_tables_destroy(recordings->tables);
    free(recordings);
}

/* Returns the sequence's entry. If there is none, frees the least recently used entry and returns
 * that one. */
static struct entry *find(struct recordings *r, const struct arena *arena, const void *key,
    size_t key_bytes, const struct overlay_key *overlay,
    void (*run)(struct compute *c, const void *user)) {
    if (r->generation != arena_generation(arena))
        clear(r);
    r->generation = arena_generation(arena);
    struct entry *oldest = &r->entries[0];
    for (int i = 0; i < KEPT_MAX; i++) {
        struct entry *e = &r->entries[i];
        if (e->state != ENTRY_FREE && e->run == run && e->mark == arena_mark(arena) &&
            e->key_bytes == key_bytes && memcmp(e->key, key, key_bytes) == 0 &&
            memcmp(&e->overlay, overlay, sizeof(*overlay)) == 0)
            return e;
        if (e->used < oldest->used)
            oldest = e;
    }
    entry_free(r, oldest);
    return oldest;
}

/* Calls the sequence's operations while the device records them; nothing is executed. On failure
 * returns false with the reason in *err, and c is unchanged. */
static bool record(
    struct compute *c, struct recordings *r, struct entry *e, const void *user, struct error *err) {
    const double before = c->flops;
    if (!r->recorder->begin(err))
        return false;
    e->run(c, user);
    const double flops = c->flops - before;
    c->flops = before; /* nothing was executed yet */
    if (!compute_ok(c)) {
        r->recorder->end(NULL, NULL);
        *err = c->error;
        c->error = (struct error){ 0 };
        arena_release(c->arena, e->mark);
        return false;
    }
    if (!r->recorder->end(&e->recording, err))
        return false;
    e->state = ENTRY_RECORDED;
    e->flops = flops;
    r->figures.kept++;
    r->figures.recorded++;
    r->figures.launches = r->recorder->launches(e->recording);
    return true;
}

/* Recording only saves time. If anything prevents it (no memory for the graph, a call that cannot
 * be captured), the sequence is launched call by call from now on. A call that is itself at fault
 * then reports its error again. Only a lost device is reported here. */
static void record_or_refuse(
    struct compute *c, struct recordings *r, struct entry *e, const void *user) {
    struct error err = { 0 };
    if (record(c, r, e, user, &err))
        return;
    e->state = ENTRY_REFUSED;
    if (err.code == ERROR_DEVICE_LOST)
        c->error = err;
    else if (!r->refused)
        log_warning("the device cannot record a step, each of its kernels is launched by itself, "
                    "which is slower: %s",
            err.message);
    r->refused = true;
}

/* Runs, records or replays the sequence of `e`. The tables already hold its overlay. */
static void run_entry(struct compute *c, struct recordings *r, struct entry *e, const void *user) {
    e->used = ++r->clock;
    if (e->state == ENTRY_FREE) {
        e->state = ENTRY_SEEN;
        e->run(c, user);
        return;
    }
    if (e->state == ENTRY_SEEN)
        record_or_refuse(c, r, e, user);
    if (!compute_ok(c))
        return;
    if (e->state != ENTRY_RECORDED) {
        e->run(c, user);
        return;
    }
    if (r->recorder->replay(e->recording, &c->error)) {
        c->flops += e->flops;
        r->figures.replayed++;
        r->figures.launches = r->recorder->launches(e->recording);
    }
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
    struct overlay_key overlay;
    bool moved;
    if (!overlay_tables_update(r->tables, c->overlay, &overlay, &moved, &c->error)) {
        clear(r); /* their tables may no longer exist */
        return;
    }
    if (moved)
        clear(r);
    struct entry *e = find(r, c->arena, key, key_bytes, &overlay, run);
    if (e->state == ENTRY_FREE) {
        e->run = run;
        e->mark = arena_mark(c->arena);
        e->overlay = overlay;
        e->key_bytes = key_bytes;
        memcpy(e->key, key, key_bytes);
    }
    c->tables = r->tables;
    run_entry(c, r, e, user);
    c->tables = NULL;
}

void recordings_get_figures(const struct recordings *recordings, struct recordings_figures *out) {
    *out = recordings->figures;
}
