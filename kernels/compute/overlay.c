#include "kernels/compute/overlay.h"

#include "base/list.h"
#include "kernels/check.h"

#include <stdlib.h>
#include <string.h>

/* --- pairs --- */

struct low_rank_pair {
    const struct kernels *kernels; /* borrowed */
    void *memory;                  /* owned, in device memory; or NULL */
    size_t bytes;                  /* both factors: down, then up */
    float *down, *up;              /* in `memory`, or in the caller's memory */
    int64_t rank, n, k, taps;
};

static int64_t panels_of(int64_t count) {
    return (count + LOW_RANK_PANEL - 1) / LOW_RANK_PANEL;
}

static int64_t taps_of(const struct packed *target) {
    return target->is_conv && target->kind != CONV_1X1 ? 9 : 1;
}

/* Whether t is a matrix: [..][..] or [..][..][1][1], or, with 9 taps, [..][..][3][3]. */
static bool is_factor(const struct tensor *t, int64_t taps) {
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16)
        return false;
    const int64_t side = taps == 9 ? 3 : 1;
    return (t->rank == 2 && taps == 1) ||
           (t->rank == 4 && t->shape[2] == side && t->shape[3] == side);
}

static bool refuse(const char *name, const char *what, const struct tensor *t, struct error *err,
    const char *want, int64_t a, int64_t b) {
    char text[112];
    return error_set(err, ERROR_INVALID, "%s: its %s factor is %s; %s [%lld][%lld] is wanted", name,
        what, tensor_describe(t, text, sizeof(text)), want, (long long)a, (long long)b);
}

static bool factors_fit(const char *name, const struct packed *target, int64_t n,
    const struct tensor *down, const struct tensor *up, struct error *err) {
    const int64_t taps = taps_of(target), rank = down->rank ? down->shape[0] : 0;
    if (rank < 1 || !is_factor(down, taps) || down->shape[1] != target->k)
        return refuse(
            name, "down", down, err, taps == 9 ? "a 3x3 one of" : "one of", rank, target->k);
    if (!is_factor(up, 1) || up->shape[0] != n || up->shape[1] != rank)
        return refuse(name, "up", up, err, "one of", n, rank);
    return n >= 1 && n <= target->n ? true
                                    : error_set(err, ERROR_INTERNAL, "%s: %lld outputs of %lld",
                                          name, (long long)n, (long long)target->n);
}

/* to[panel][inner][lane] = from[panel * 16 + lane][inner], with zeros in lanes beyond `outer`. */
static void lay_out(const float *from, int64_t outer, int64_t inner, float *to) {
    for (int64_t first = 0; first < outer; first += LOW_RANK_PANEL) {
        const int lanes = outer - first < LOW_RANK_PANEL ? (int)(outer - first) : LOW_RANK_PANEL;
        for (int64_t i = 0; i < inner; i++, to += LOW_RANK_PANEL) {
            for (int lane = 0; lane < lanes; lane++)
                to[lane] = from[(first + lane) * inner + i];
            for (int lane = lanes; lane < LOW_RANK_PANEL; lane++)
                to[lane] = 0;
        }
    }
}

/* to[outer][taps][k] = from[outer][k][taps]. */
static void taps_first(const float *from, int64_t outer, int64_t k, int64_t taps, float *to) {
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < k; i++)
            for (int64_t tap = 0; tap < taps; tap++)
                to[(o * taps + tap) * k + i] = from[(o * k + i) * taps + tap];
}

/* Fills the host's copy of the panels with both factors, down first. `work` has room for rank *
 * max(2 * taps * k, n) floats. */
static void fill(const struct low_rank_pair *p, const struct tensor *down, const struct tensor *up,
    float *work, float *panels) {
    const int64_t count = p->rank * p->taps * p->k;
    float *ordered = work;
    convert_elements(work, DTYPE_F32, down->data, down->dtype, count);
    if (p->taps > 1) {
        ordered = work + count;
        taps_first(work, p->rank, p->k, p->taps, ordered);
    }
    lay_out(ordered, p->rank, p->taps * p->k, panels);
    convert_elements(work, DTYPE_F32, up->data, up->dtype, p->n * p->rank);
    lay_out(work, p->n, p->rank, panels + panels_of(p->rank) * p->taps * p->k * LOW_RANK_PANEL);
}

struct low_rank_factors low_rank_factors_of(const struct packed *target, int64_t n, int64_t rank) {
    const int64_t taps = taps_of(target);
    return (struct low_rank_factors){ .down_floats = panels_of(rank) * taps * target->k *
                                                     LOW_RANK_PANEL,
        .up_floats = panels_of(n) * rank * LOW_RANK_PANEL,
        .rank = rank,
        .n = n,
        .k = target->k,
        .taps = taps };
}

struct low_rank_factors low_rank_pair_factors(const struct low_rank_pair *pair) {
    const int64_t down_floats = pair->up - pair->down;
    return (struct low_rank_factors){ .down = pair->down,
        .up = pair->up,
        .down_floats = down_floats,
        .up_floats = (int64_t)(pair->bytes / sizeof(float)) - down_floats,
        .rank = pair->rank,
        .n = pair->n,
        .k = pair->k,
        .taps = pair->taps };
}

/* Creates a pair in `memory` or, if that is NULL, in memory that the pair owns. Contents
 * undefined. */
static bool pair_alloc(const char *name, const struct packed *target, int64_t n, int64_t rank,
    float *memory, struct low_rank_pair **out, struct error *err) {
    const struct low_rank_factors f = low_rank_factors_of(target, n, rank);
    struct low_rank_pair *p = calloc(1, sizeof(*p));
    if (!p)
        return error_set(
            err, ERROR_NO_MEMORY, "%s: no memory for factors of rank %lld", name, (long long)rank);
    *p = (struct low_rank_pair){ .kernels = target->owner,
        .bytes = (size_t)(f.down_floats + f.up_floats) * sizeof(float),
        .rank = rank,
        .n = n,
        .k = f.k,
        .taps = f.taps };
    if (!memory && !p->kernels->memory->alloc(MEMORY_WEIGHTS, p->bytes, &p->memory, err)) {
        low_rank_pair_destroy(p);
        return error_prefix(err, "%s", name);
    }
    p->down = memory ? memory : p->memory;
    p->up = p->down + f.down_floats;
    *out = p;
    return true;
}

/* Copies both factors from `panels`, in host memory, to the pair's device memory. */
static bool pair_upload(
    const char *name, struct low_rank_pair *p, const float *panels, struct error *err) {
    return p->kernels->memory->upload(p->down, panels, p->bytes, err) ||
           error_prefix(err, "%s", name);
}

bool low_rank_pair_create(const char *name, const struct packed *target, int64_t n,
    const struct tensor *down, const struct tensor *up, struct low_rank_pair **out,
    struct error *err) {
    *out = NULL;
    if (!factors_fit(name, target, n, down, up, err))
        return false;
    const int64_t rank = down->shape[0], inner = taps_of(target) * target->k;
    const int64_t largest = rank * (2 * inner > n ? 2 * inner : n);
    struct low_rank_pair *p = NULL;
    float *work = malloc((size_t)largest * sizeof(float)), *panels = NULL;
    bool ok = pair_alloc(name, target, n, rank, NULL, &p, err);
    if (ok) {
        panels = malloc(p->bytes);
        ok = (panels && work) ||
             error_set(err, ERROR_NO_MEMORY, "%s: no memory for factors of rank %lld", name,
                 (long long)rank);
    }
    if (ok) {
        fill(p, down, up, work, panels);
        ok = pair_upload(name, p, panels, err);
    }
    free(work);
    free(panels);
    if (!ok) {
        low_rank_pair_destroy(p);
        return false;
    }
    *out = p;
    return true;
}

bool low_rank_pair_create_zeros(const char *name, const struct packed *target, int64_t n,
    int64_t rank, float *memory, struct low_rank_pair **out, struct error *err) {
    *out = NULL;
    if (rank < 1 || n < 1 || n > target->n)
        return error_set(err, ERROR_INTERNAL, "%s: rank %lld for %lld of %lld outputs", name,
            (long long)rank, (long long)n, (long long)target->n);
    struct low_rank_pair *p;
    if (!pair_alloc(name, target, n, rank, memory, &p, err))
        return false;
    float *zeros = calloc(1, p->bytes);
    bool ok = zeros || error_set(err, ERROR_NO_MEMORY, "%s: no memory for factors of rank %lld",
                           name, (long long)rank);
    ok = ok && pair_upload(name, p, zeros, err);
    free(zeros);
    if (!ok) {
        low_rank_pair_destroy(p);
        return false;
    }
    *out = p;
    return true;
}

void low_rank_pair_destroy(struct low_rank_pair *pair) {
    if (!pair)
        return;
    if (pair->kernels)
        pair->kernels->memory->release(MEMORY_WEIGHTS, pair->memory, pair->bytes);
    free(pair);
}

size_t low_rank_pair_bytes(const struct low_rank_pair *pair) {
    return pair->bytes + sizeof(*pair);
}

struct low_rank_term low_rank_pair_term(
    const struct low_rank_pair *pair, int64_t first, float scale) {
    return (struct low_rank_term){ pair->down, pair->up, pair->rank, first, pair->n, scale };
}

/* --- what a row changes --- */

/* What one row changes in one weight. */
struct change {
    const struct packed *target;      /* borrowed; `replacement` too */
    const struct packed *replacement; /* or NULL */
    struct low_rank_term *terms;      /* owned */
    int count;
};

/* What one row changes in one norm. */
struct norm_change {
    const void *gamma; /* address of the norm's own scale */
    struct tensor scale, shift;
};

struct row_overlay {
    struct change *changes; /* owned, sorted by the targets' serials */
    size_t count;
    struct norm_change *norms; /* owned */
    size_t norm_count;
    uint64_t serial; /* unique: no other row_overlay ever has it */
};

bool row_overlay_create(struct row_overlay **out, struct error *err) {
    static _Atomic uint64_t last;
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an overlay");
    (*out)->serial = ++last;
    return true;
}

void row_overlay_destroy(struct row_overlay *overlay) {
    for (size_t i = 0; overlay && i < overlay->count; i++)
        free(overlay->changes[i].terms);
    if (overlay) {
        free(overlay->changes);
        free(overlay->norms);
    }
    free(overlay);
}

/* Returns the index of the first change whose target's serial number is not below `serial`. */
static size_t place_of(const struct row_overlay *overlay, uint64_t serial) {
    size_t low = 0, high = overlay->count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (overlay->changes[middle].target->serial < serial)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const struct change *change_of(
    const struct row_overlay *overlay, const struct packed *target) {
    if (!overlay)
        return NULL;
    const size_t i = place_of(overlay, target->serial);
    return i < overlay->count && overlay->changes[i].target == target ? &overlay->changes[i] : NULL;
}

/* Does what change_of does, but adds a missing change. Returns NULL if there is no memory. */
static struct change *change_for(
    struct row_overlay *overlay, const struct packed *target, struct error *err) {
    const size_t at = place_of(overlay, target->serial);
    if (at < overlay->count && overlay->changes[at].target == target)
        return &overlay->changes[at];
    if (!LIST_ROOM(overlay->changes, overlay->count, "an overlay's weights", err))
        return NULL;
    struct change *change = &overlay->changes[at];
    memmove(change + 1, change, (overlay->count - at) * sizeof(*change));
    overlay->count++;
    *change = (struct change){ .target = target };
    return change;
}

bool row_overlay_add_low_rank(struct row_overlay *overlay, const struct packed *target,
    int64_t first, const struct low_rank_pair *pair, float scale, struct error *err) {
    if (pair->kernels != target->owner || pair->k != target->k || pair->taps != taps_of(target) ||
        first < 0 || pair->n > target->n - first)
        return error_set(err, ERROR_INTERNAL,
            "factors for [%lld][%lld] do not fit outputs from %lld on of a weight [%lld][%lld]",
            (long long)pair->n, (long long)pair->k, (long long)first, (long long)target->n,
            (long long)target->k);
    struct change *change = change_for(overlay, target, err);
    if (!change || !LIST_ROOM(change->terms, change->count, "the terms of a weight", err))
        return false;
    change->terms[change->count++] = low_rank_pair_term(pair, first, scale);
    return true;
}

bool row_overlay_replace(struct row_overlay *overlay, const struct packed *target,
    const struct packed *replacement, struct error *err) {
    if (replacement->owner != target->owner || replacement->is_conv != target->is_conv ||
        (target->is_conv && replacement->kind != target->kind) || replacement->n != target->n ||
        replacement->k != target->k || replacement->geglu != target->geglu)
        return error_set(err, ERROR_INTERNAL,
            "a weight [%lld][%lld] cannot stand for one of [%lld][%lld]", (long long)replacement->n,
            (long long)replacement->k, (long long)target->n, (long long)target->k);
    struct change *change = change_for(overlay, target, err);
    if (!change)
        return false;
    change->replacement = replacement;
    return true;
}

static const struct norm_change *norm_change_of(
    const struct row_overlay *overlay, const struct tensor *gamma) {
    for (size_t i = 0; overlay && i < overlay->norm_count; i++)
        if (overlay->norms[i].gamma == gamma->data)
            return &overlay->norms[i];
    return NULL;
}

bool row_overlay_replace_norm(struct row_overlay *overlay, const struct tensor *gamma,
    const struct tensor *scale, const struct tensor *shift, struct error *err) {
    if (!tensor_same_shape(scale, gamma) || !tensor_same_shape(shift, gamma) ||
        scale->device != gamma->device || norm_change_of(overlay, gamma))
        return error_set(err, ERROR_INTERNAL,
            "a norm's parameters [%lld] cannot stand for those [%lld], or already do",
            (long long)scale->shape[0], (long long)gamma->shape[0]);
    if (!LIST_ROOM(overlay->norms, overlay->norm_count, "an overlay's norms", err))
        return false;
    overlay->norms[overlay->norm_count++] = (struct norm_change){ gamma->data, *scale, *shift };
    return true;
}

/* --- running --- */

static const struct packed *weight_of(
    const struct overlay *o, int64_t row, const struct packed *target) {
    const struct change *change = change_of(o->rows[row], target);
    return change && change->replacement ? change->replacement : target;
}

static bool has_terms(const struct overlay *o, int64_t row, const struct packed *target) {
    const struct change *change = change_of(o->rows[row], target);
    return change && change->count;
}

/* Finds a row's terms in the device's tables. */
static void find_terms(const struct overlay_tables *t, const struct packed *target, int64_t row,
    struct low_rank_args *args);

/* y += terms of x. Row i of x and of y belongs to row `row` + i of the overlay. At most
 * OVERLAY_ROWS_AT_ONCE rows are one call. */
static void add_low_rank(struct compute *c, const struct overlay *o, const struct packed *target,
    int64_t row, const struct tensor *x, struct tensor *y) {
    struct low_rank_row rows[OVERLAY_ROWS_AT_ONCE];
    for (int64_t first = 0, count; first < x->shape[0]; first += count) {
        const int64_t left = x->shape[0] - first;
        count = left < OVERLAY_ROWS_AT_ONCE ? left : OVERLAY_ROWS_AT_ONCE;
        bool any = false;
        for (int64_t i = 0; i < count; i++) {
            const struct change *change = change_of(o->rows[row + first + i], target);
            rows[i] = change ? (struct low_rank_row){ change->terms, change->count }
                             : (struct low_rank_row){ NULL, 0 };
            any |= rows[i].count > 0;
        }
        const struct tensor from = tensor_rows(x, first, count);
        struct tensor to = tensor_rows(y, first, count);
        struct low_rank_args args = {
            .x = &from, .kind = target->is_conv ? target->kind : CONV_1X1, .rows = rows, .y = &to
        };
        if (any && c->tables)
            find_terms(c->tables, target, row + first, &args);
        if (any)
            op_low_rank(c, &args);
    }
}

/* --- tables --- */

/* An overlay's tables on the device: the spans of all rows for each weight that has terms in any
 * row, then all terms. */
struct overlay_tables {
    const struct kernels *kernels; /* borrowed */
    void *block;                   /* owned, in device memory */
    size_t bytes;
    char *host; /* owned: [bytes], the host's copy of `block` */
    /* What the tables hold now: */
    uint64_t *targets; /* owned: the weights' serial numbers, sorted */
    size_t target_count, target_room;
    uint64_t *rows; /* owned: the row_overlays' serial numbers, 0 for none */
    int row_count, row_room;
    struct overlay_key key;
};

bool overlay_tables_create(
    const struct kernels *kernels, struct overlay_tables **out, struct error *err) {
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an overlay's tables");
    (*out)->kernels = kernels;
    return true;
}

void overlay_tables_destroy(struct overlay_tables *tables) {
    if (!tables)
        return;
    tables->kernels->memory->release(MEMORY_WEIGHTS, tables->block, tables->bytes);
    free(tables->host);
    free(tables->targets);
    free(tables->rows);
    free(tables);
}

/* Returns the index of the first target whose serial number is not below `serial`. */
static size_t target_place(const struct overlay_tables *t, uint64_t serial) {
    size_t low = 0, high = t->target_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (t->targets[middle] < serial)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static size_t spans_bytes(const struct overlay_tables *t) {
    const size_t bytes = t->target_count * (size_t)t->row_count * sizeof(struct low_rank_span);
    return (bytes + 15) / 16 * 16;
}

static void find_terms(const struct overlay_tables *t, const struct packed *target, int64_t row,
    struct low_rank_args *args) {
    const size_t at = target_place(t, target->serial);
    args->spans = (const struct low_rank_span *)t->block + at * (size_t)t->row_count + row;
    args->terms = (const void *)((const char *)t->block + spans_bytes(t));
}

static bool is_current(const struct overlay_tables *t, const struct overlay *overlay) {
    bool same = t->row_count == overlay->count;
    for (int i = 0; same && i < overlay->count; i++)
        same = t->rows[i] == (overlay->rows[i] ? overlay->rows[i]->serial : 0);
    return same;
}

/* Makes room for `count` items of `size` bytes; the contents stay. */
static bool grow(void **items, size_t *room, size_t count, size_t size, struct error *err) {
    if (count <= *room)
        return true;
    const size_t more = count < 2 * *room ? 2 * *room : count;
    void *grown = reallocarray(*items, more, size);
    if (!grown)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an overlay's tables");
    *items = grown;
    *room = more;
    return true;
}

/* Lists in t->targets every weight that has terms in any row. */
static bool list_targets(
    struct overlay_tables *t, const struct overlay *overlay, struct error *err) {
    t->target_count = 0;
    for (int row = 0; row < overlay->count; row++) {
        const struct row_overlay *r = overlay->rows[row];
        for (size_t i = 0; r && i < r->count; i++) {
            const uint64_t serial = r->changes[i].target->serial;
            const size_t at = target_place(t, serial);
            if (!r->changes[i].count || (at < t->target_count && t->targets[at] == serial))
                continue;
            if (!grow((void **)&t->targets, &t->target_room, t->target_count + 1,
                    sizeof(*t->targets), err))
                return false;
            memmove(t->targets + at + 1, t->targets + at,
                (t->target_count++ - at) * sizeof(*t->targets));
            t->targets[at] = serial;
        }
    }
    return true;
}

/* Mixes `word` into the key's two hashes. One is splitmix64's; the other uses FNV's prime and some
 * bits of the first hash. */
static void mix(struct overlay_key *key, uint64_t word) {
    uint64_t z = (key->words[0] += word + 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    key->words[0] = z ^ z >> 31;
    key->words[1] = ((key->words[1] ^ word) * 0x100000001b3u ^ z >> 17) + 1;
}

static struct overlay_key key_of(const struct overlay *overlay) {
    struct overlay_key key = { { 0, 0 } };
    bool any = false;
    for (int row = 0; row < overlay->count; row++) {
        const struct row_overlay *r = overlay->rows[row];
        mix(&key, r ? r->count : 0);
        mix(&key, r ? r->norm_count : 0);
        any |= r && (r->count || r->norm_count);
        for (size_t i = 0; r && i < r->norm_count; i++) {
            mix(&key, (uintptr_t)r->norms[i].gamma);
            mix(&key, (uintptr_t)r->norms[i].scale.data);
        }
        for (size_t i = 0; r && i < r->count; i++) {
            const struct change *c = &r->changes[i];
            mix(&key, c->target->serial);
            mix(&key, c->replacement ? c->replacement->serial : 0);
            mix(&key, c->count > 0);
        }
    }
    return any ? key : (struct overlay_key){ { 0, 0 } };
}

/* Makes room for spans and terms. If the memory has to grow, its contents are lost and *moved is
 * set. */
static bool reserve(struct overlay_tables *t, size_t bytes, bool *moved, struct error *err) {
    if (bytes <= t->bytes)
        return true;
    bytes = bytes < (size_t)64 << 10 ? (size_t)64 << 10 : 2 * bytes;
    const struct device_memory *memory = t->kernels->memory;
    memory->release(MEMORY_WEIGHTS, t->block, t->bytes);
    free(t->host);
    t->block = NULL;
    t->bytes = 0;
    *moved = true;
    t->host = malloc(bytes);
    if (!t->host)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an overlay's tables");
    if (!memory->alloc(MEMORY_WEIGHTS, bytes, &t->block, err))
        return false;
    t->bytes = bytes;
    return true;
}

static bool fill_tables(
    struct overlay_tables *t, const struct overlay *overlay, bool *moved, struct error *err) {
    size_t count = 0, spans = spans_bytes(t);
    for (int row = 0; row < overlay->count; row++)
        for (size_t i = 0; overlay->rows[row] && i < overlay->rows[row]->count; i++)
            count += (size_t)overlay->rows[row]->changes[i].count;
    const size_t bytes = spans + count * sizeof(struct low_rank_term);
    if (bytes == 0) /* no row has low-rank terms */
        return true;
    if (!reserve(t, bytes, moved, err))
        return false;
    memset(t->host, 0, spans);
    struct low_rank_term *terms = (struct low_rank_term *)(t->host + spans);
    uint32_t first = 0;
    for (int row = 0; row < overlay->count; row++)
        for (size_t i = 0; overlay->rows[row] && i < overlay->rows[row]->count; i++) {
            const struct change *c = &overlay->rows[row]->changes[i];
            if (!c->count)
                continue;
            const size_t at = target_place(t, c->target->serial);
            struct low_rank_span *span = (struct low_rank_span *)t->host +
                                         at * (size_t)overlay->count + row;
            *span = (struct low_rank_span){ first, (uint32_t)c->count };
            memcpy(terms + first, c->terms, (size_t)c->count * sizeof(*terms));
            first += (uint32_t)c->count;
        }
    return t->kernels->memory->upload(t->block, t->host, bytes, err);
}

bool overlay_tables_update(struct overlay_tables *tables, const struct overlay *overlay,
    struct overlay_key *key, bool *moved, struct error *err) {
    struct overlay_tables *t = tables;
    *moved = false;
    *key = (struct overlay_key){ { 0, 0 } };
    if (!overlay)
        return true;
    if (is_current(t, overlay)) {
        *key = t->key;
        return true;
    }
    size_t room = (size_t)t->row_room;
    if (!grow((void **)&t->rows, &room, (size_t)overlay->count, sizeof(*t->rows), err))
        return false;
    t->row_room = (int)room;
    t->row_count = overlay->count;
    if (!list_targets(t, overlay, err) || !fill_tables(t, overlay, moved, err)) {
        t->row_count = 0; /* the contents are no longer valid */
        return false;
    }
    for (int i = 0; i < overlay->count; i++)
        t->rows[i] = overlay->rows[i] ? overlay->rows[i]->serial : 0;
    t->key = *key = key_of(overlay);
    return true;
}

/* --- layers --- */

/* Returns `count` tokens of row `row` of t, from token `first` on, as [1][count][c]. t:
 * [rows][...][c]. */
static struct tensor tokens_of(const struct tensor *t, int64_t row, int64_t first, int64_t count) {
    const int64_t channels = t->shape[t->rank - 1];
    const int64_t tokens = tensor_elements(t) / t->shape[0] / channels;
    struct tensor piece = *t;
    piece.data = (char *)t->data +
                 (size_t)((row * tokens + first) * channels) * dtype_size(t->dtype);
    piece.rank = 3;
    piece.shape[0] = 1;
    piece.shape[1] = count;
    piece.shape[2] = channels;
    return piece;
}

/* h = the product without its gate; h += terms; y = (first half of h) * gelu(second half) +
 * residual. Runs in pieces that fit into a cache if the table has a size for them (geglu_tokens).
 * All rows of `a` have terms. */
static void run_geglu(struct compute *c, const struct overlay *o, const struct linear_args *a,
    int64_t row, const struct packed *weight) {
    const int64_t rows = a->x->shape[0], tokens = tensor_elements(a->x) / rows / a->weight->k;
    const int64_t most = c->kernels->geglu_tokens;
    const int64_t step = most && most < tokens ? most : tokens;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t first = 0; first < tokens; first += step) {
            const int64_t count = tokens - first < step ? tokens - first : step;
            const size_t mark = arena_mark(c->arena);
            const struct tensor x = tokens_of(a->x, i, first, count);
            struct tensor y = tokens_of(a->y, i, first, count), residual;
            struct tensor h = compute_tensor_3d(c, y.dtype, 1, count, a->weight->n);
            if (a->residual)
                residual = tokens_of(a->residual, i, first, count);
            op_linear(
                c, &(struct linear_args){ .x = &x, .weight = weight, .y = &h, .ungated = true });
            add_low_rank(c, o, a->weight, row + i, &x, &h);
            op_geglu(c, &(struct geglu_args){ &h, a->residual ? &residual : NULL, &y });
            arena_release(c->arena, mark);
        }
    }
}

/* y = activation(product + terms) + residual */
static void run_activated(struct compute *c, const struct overlay *o, const struct linear_args *a,
    int64_t row, const struct packed *weight) {
    const size_t mark = arena_mark(c->arena);
    struct tensor h = *a->y;
    if (a->residual) { /* the residual may be y */
        h = compute_tensor_1d(c, a->y->dtype, tensor_elements(a->y));
        h.rank = a->y->rank;
        memcpy(h.shape, a->y->shape, sizeof(h.shape));
    }
    op_linear(c, &(struct linear_args){ .x = a->x, .weight = weight, .y = &h });
    add_low_rank(c, o, a->weight, row, a->x, &h);
    op_add(c, &(struct add_args){ .a = &h, .activation = a->activation, .y = &h });
    if (a->residual)
        op_add(c, &(struct add_args){ .a = a->residual, .b = &h, .y = a->y });
    arena_release(c->arena, mark);
}

/* Sets *count to how many rows, beginning with row `first`, one call can compute. These rows use
 * the same weight for `target`, and the same weight for `other` unless `other` is NULL. `after`:
 * something is computed after the terms are added. In that case, either every one of these rows has
 * terms or no row has any. Returns whether the rows have terms; always false without `after`. */
static bool next_run(const struct overlay *o, const struct packed *target,
    const struct packed *other, bool after, int64_t first, int64_t *count) {
    const bool terms = after && has_terms(o, first, target);
    for (*count = 1; first + *count < o->count; ++*count)
        if (weight_of(o, first + *count, target) != weight_of(o, first, target) ||
            (other && weight_of(o, first + *count, other) != weight_of(o, first, other)) ||
            (after && has_terms(o, first + *count, target) != terms))
            break;
    return terms;
}

/* Stores tensor_rows(t, first, count) in *rows and returns `rows`. Returns NULL if t is NULL. */
static const struct tensor *rows_of(
    const struct tensor *t, int64_t first, int64_t count, struct tensor *rows) {
    if (t)
        *rows = tensor_rows(t, first, count);
    return t ? rows : NULL;
}

static void run_linear(struct compute *c, const struct overlay *o, const struct linear_args *args) {
    const struct packed *target = args->weight;
    const bool activated = args->activation != ACTIVATION_NONE || (target->geglu && !args->ungated);
    for (int64_t first = 0, count; first < o->count; first += count) {
        const bool apart = next_run(o, target, NULL, activated, first, &count);
        const struct packed *weight = weight_of(o, first, target);
        const struct tensor x = tensor_rows(args->x, first, count);
        struct tensor y = tensor_rows(args->y, first, count), residual;
        struct linear_args a = *args;
        a.x = &x;
        a.y = &y;
        a.residual = rows_of(args->residual, first, count, &residual);
        if (apart) {
            (target->geglu ? run_geglu : run_activated)(c, o, &a, first, weight);
            continue;
        }
        a.weight = weight;
        op_linear(c, &a);
    }
    if (!activated)
        add_low_rank(c, o, target, 0, args->x, args->y);
}

/* Computes a y whose dtype is wider than that of x: sums the convolution and its terms in x's
 * dtype, then converts the sum. */
static void run_widened(struct compute *c, const struct overlay *o, const struct conv2d_args *a,
    int64_t row, const struct packed *target) {
    const size_t mark = arena_mark(c->arena);
    const int64_t *shape = a->y->shape;
    struct tensor h = compute_tensor_4d(c, a->x->dtype, shape[0], shape[1], shape[2], shape[3]);
    struct conv2d_args narrow = *a;
    narrow.y = &h;
    op_conv2d(c, &narrow);
    add_low_rank(c, o, target, row, a->x, &h);
    op_convert(c, &(struct convert_args){ .x = &h, .y = a->y });
    arena_release(c->arena, mark);
}

static void run_conv2d(struct compute *c, const struct overlay *o, const struct conv2d_args *args) {
    const struct packed *target = args->weight, *other = args->shortcut_weight;
    const bool widened = args->y->dtype != args->x->dtype;
    for (int64_t first = 0, count; first < o->count; first += count) {
        const bool apart = next_run(o, target, other, widened, first, &count);
        const struct tensor x = tensor_rows(args->x, first, count);
        struct tensor y = tensor_rows(args->y, first, count), row_add, residual, shortcut;
        const struct conv2d_args a = { .x = &x,
            .weight = weight_of(o, first, target),
            .row_add = rows_of(args->row_add, first, count, &row_add),
            .row_add_offset = args->row_add_offset,
            .residual = rows_of(args->residual, first, count, &residual),
            .shortcut = rows_of(args->shortcut, first, count, &shortcut),
            .shortcut_weight = other ? weight_of(o, first, other) : NULL,
            .y = &y };
        if (apart)
            run_widened(c, o, &a, first, target);
        else
            op_conv2d(c, &a);
    }
    if (!widened)
        add_low_rank(c, o, target, 0, args->x, args->y);
    if (other)
        add_low_rank(c, o, other, 0, args->shortcut, args->y);
}

/* Returns how many rows from `first` on have the same parameters. *change: their replacement, or
 * NULL for the norm's own. */
static int64_t norm_run(const struct overlay *o, const struct tensor *gamma, int64_t first,
    const struct norm_change **change) {
    int64_t row = first;
    *change = norm_change_of(o->rows[first], gamma);
    do
        row++;
    while (row < o->count && norm_change_of(o->rows[row], gamma) == *change);
    return row - first;
}

static bool changes_norm(const struct overlay *o, const struct tensor *gamma) {
    for (int row = 0; row < o->count; row++)
        if (norm_change_of(o->rows[row], gamma))
            return true;
    return false;
}

static void run_group_norm(
    struct compute *c, const struct overlay *o, const struct group_norm_args *args) {
    const struct norm_change *change;
    for (int64_t first = 0, count; first < o->count; first += count) {
        count = norm_run(o, args->gamma, first, &change);
        const struct tensor x = tensor_rows(args->x, first, count);
        struct tensor y = tensor_rows(args->y, first, count), more, joined;
        struct group_norm_args a = *args;
        a.x = &x;
        a.y = &y;
        a.more = rows_of(args->more, first, count, &more);
        if (args->joined) {
            joined = tensor_rows(args->joined, first, count);
            a.joined = &joined;
        }
        a.gamma = change ? &change->scale : args->gamma;
        a.beta = change ? &change->shift : args->beta;
        op_group_norm(c, &a);
    }
}

static void run_layer_norm(
    struct compute *c, const struct overlay *o, const struct layer_norm_args *args) {
    const struct norm_change *change;
    for (int64_t first = 0, count; first < o->count; first += count) {
        count = norm_run(o, args->gamma, first, &change);
        const struct tensor x = tensor_rows(args->x, first, count);
        struct tensor y = tensor_rows(args->y, first, count);
        struct layer_norm_args a = *args;
        a.x = &x;
        a.y = &y;
        a.gamma = change ? &change->scale : args->gamma;
        a.beta = change ? &change->shift : args->beta;
        op_layer_norm(c, &a);
    }
}

static bool has_rows(struct compute *c, const struct tensor *x, const char *name) {
    char text[112];
    return c->overlay->count == x->shape[0] ||
           check_fail(&(struct check){ c, name }, "x is %s, the overlay has %d rows",
               tensor_describe(x, text, sizeof(text)), c->overlay->count);
}

bool overlay_run(struct compute *c, enum operation operation, const void *args) {
    const struct overlay *overlay = c->overlay;
#define RUN(name, changes)                                                                         \
    case OPERATION_##name: {                                                                       \
        const struct name##_args *a = args;                                                        \
        if (!(changes))                                                                            \
            return false;                                                                          \
        if (has_rows(c, a->x, #name)) {                                                            \
            c->overlay = NULL; /* or the calls inside would apply it again */                      \
            run_##name(c, overlay, a);                                                             \
        }                                                                                          \
        break;                                                                                     \
    }
    switch (operation) {
        RUN(linear, true)
        RUN(conv2d, true)
        RUN(group_norm, changes_norm(overlay, a->gamma))
        RUN(layer_norm, changes_norm(overlay, a->gamma))
    default:
        return false;
    }
#undef RUN
    c->overlay = overlay;
    return true;
}
