/* Which pictures make up which batch: a function of (seed, epoch, rank, world), as accelerate
 * orders and shards them, so that a resumed job goes on where it was and several processes need
 * not talk.
 *
 * The order of an epoch is torch.randperm with the generator seeded by seed + epoch (accelerate's
 * SeedableRandomSampler). Cut into batches, batch i goes to rank i % world (BatchSamplerShard):
 * alone, a process takes the last, smaller batch as it is; among several all get as many full
 * batches, filled up from the epoch's beginning.
 *
 * With aspect buckets the pictures of one batch have one size: in the order of the permutation,
 * each picture joins its bucket's open batch, which counts as soon as it is full; what is left open
 * follows, lowest bucket first. With one bucket that is the plain order. Among several processes
 * smaller batches stay so, and missing ones are repeated from the beginning. */
#ifndef TRAIN_ORDER_H
#define TRAIN_ORDER_H

#include "base/error.h"

#include <stdint.h>

struct order_options {
    uint64_t seed;
    int64_t count; /* pictures, each as often as it is repeated */
    int batch_size;
    int rank, world;
    const int32_t *buckets; /* [count], each from 0 to bucket_count - 1, borrowed; NULL: one */
    int bucket_count;
};

/* One rank's batches of one epoch. */
struct order {
    int64_t *items;  /* owned: batch b is items[starts[b]] .. items[starts[b + 1] - 1] */
    int64_t *starts; /* owned: [batches + 1] */
    int64_t batches;
};

bool order_init(const struct order_options *options, int64_t epoch, struct order *out,
    struct error *err) __attribute__((warn_unused_result));
void order_finish(struct order *order); /* a zeroed one is fine */

/* Batches of each epoch, the same on every rank. */
int64_t order_batches(const struct order_options *options);

/* accelerate's accumulation: whether the optimizer steps after batch `batch` of `batches` in an
 * epoch: every `accumulation` batches, and after the last one. */
bool order_syncs(int64_t batch, int64_t batches, int accumulation);
/* Optimizer steps of an epoch. */
int64_t order_updates(int64_t batches, int accumulation);

#endif
