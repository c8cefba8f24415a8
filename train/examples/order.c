#include "train/examples/order.h"

#include "train/examples/draws.h"

#include <stdlib.h>
#include <string.h>

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static bool is_bucketed(const struct order_options *o) {
    return o->buckets && o->bucket_count > 1;
}

/* Returns the number of batches of all ranks together, without the repeated batches that complete
 * the last round. */
static int64_t global_batches(const struct order_options *o) {
    if (!is_bucketed(o))
        return ceil_div(o->count, o->batch_size);
    int64_t batches = 0;
    for (int bucket = 0; bucket < o->bucket_count; bucket++) {
        int64_t members = 0;
        for (int64_t i = 0; i < o->count; i++)
            members += o->buckets[i] == bucket;
        batches += ceil_div(members, o->batch_size);
    }
    return batches;
}

int64_t order_batches(const struct order_options *o) {
    return ceil_div(global_batches(o), o->world);
}

bool order_syncs(int64_t batch, int64_t batches, int accumulation) {
    return (batch + 1) % accumulation == 0 || batch + 1 == batches;
}

int64_t order_updates(int64_t batches, int accumulation) {
    return ceil_div(batches, accumulation);
}

/* All batches of one epoch, of all ranks. */
struct epoch {
    int64_t *order;           /* the permutation: [count] */
    int64_t *items, *starts;  /* of the batches, as in struct order */
    int64_t *open, *open_end; /* used while filling: each bucket's open batch */
    int64_t batches;
};

static void epoch_finish(struct epoch *e) {
    free(e->order);
    free(e->items);
    free(e->starts);
    free(e->open);
    free(e->open_end);
}

static void close_batch(struct epoch *e, const int64_t *items, int64_t count) {
    const int64_t at = e->starts[e->batches];
    memcpy(e->items + at, items, (size_t)count * sizeof(*items));
    e->starts[++e->batches] = at + count;
}

static void fill_bucketed(const struct order_options *o, struct epoch *e) {
    for (int64_t i = 0; i < o->count; i++) {
        const int bucket = o->buckets[e->order[i]];
        int64_t *batch = e->open + (int64_t)bucket * o->batch_size;
        batch[e->open_end[bucket]++] = e->order[i];
        if (e->open_end[bucket] == o->batch_size) {
            close_batch(e, batch, o->batch_size);
            e->open_end[bucket] = 0;
        }
    }
    for (int bucket = 0; bucket < o->bucket_count; bucket++)
        if (e->open_end[bucket])
            close_batch(e, e->open + (int64_t)bucket * o->batch_size, e->open_end[bucket]);
}

/* Cuts the permutation into batches. With several ranks, its beginning is repeated until every rank
 * has full batches. */
static void fill_plain(const struct order_options *o, struct epoch *e) {
    const int64_t size = o->batch_size;
    const int64_t wanted = o->world > 1 ? order_batches(o) * o->world * size : o->count;
    const int64_t first = o->count < o->world * size ? o->count : o->world * size;
    for (int64_t i = 0; i < wanted; i++)
        e->items[i] = e->order[i < o->count ? i : (i - o->count) % first];
    for (int64_t at = 0; at < wanted; at += size)
        e->starts[++e->batches] = at + size < wanted ? at + size : wanted;
}

static bool epoch_init(
    const struct order_options *o, int64_t epoch, struct epoch *e, struct error *err) {
    const size_t batches = (size_t)(order_batches(o) * o->world);
    *e = (struct epoch){ 0 };
    e->order = calloc((size_t)o->count, sizeof(int64_t));
    e->items = calloc(batches * (size_t)o->batch_size, sizeof(int64_t));
    e->starts = calloc(batches + 1, sizeof(int64_t));
    if (is_bucketed(o)) {
        e->open = calloc((size_t)o->bucket_count * (size_t)o->batch_size, sizeof(int64_t));
        e->open_end = calloc((size_t)o->bucket_count, sizeof(int64_t));
    }
    if (!e->order || !e->items || !e->starts || (is_bucketed(o) && (!e->open || !e->open_end)))
        return error_set(
            err, ERROR_NO_MEMORY, "no memory for the order of %lld pictures", (long long)o->count);
    struct mt19937 mt;
    mt19937_init(&mt, o->seed + (uint64_t)epoch);
    draws_permutation(&mt, o->count, e->order);
    if (is_bucketed(o))
        fill_bucketed(o, e);
    else
        fill_plain(o, e);
    return true;
}

bool order_init(
    const struct order_options *o, int64_t epoch, struct order *out, struct error *err) {
    struct epoch e;
    *out = (struct order){ .batches = order_batches(o) };
    bool ok = epoch_init(o, epoch, &e, err);
    if (ok) {
        out->items = calloc((size_t)(out->batches * o->batch_size), sizeof(int64_t));
        out->starts = calloc((size_t)out->batches + 1, sizeof(int64_t));
        ok = (out->items && out->starts) ||
             error_set(err, ERROR_NO_MEMORY, "no memory for an epoch's batches");
    }
    for (int64_t i = 0; ok && i < out->batches; i++) {
        int64_t batch = i * o->world + o->rank;
        if (batch >= e.batches) /* repeats batches from the beginning */
            batch = (batch - e.batches) % (e.batches < o->world ? e.batches : o->world);
        const int64_t count = e.starts[batch + 1] - e.starts[batch];
        memcpy(out->items + out->starts[i], e.items + e.starts[batch],
            (size_t)count * sizeof(int64_t));
        out->starts[i + 1] = out->starts[i] + count;
    }
    epoch_finish(&e);
    if (!ok)
        order_finish(out);
    return ok;
}

void order_finish(struct order *order) {
    free(order->items);
    free(order->starts);
    *order = (struct order){ 0 };
}
