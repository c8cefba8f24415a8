/* Which pictures make up which batch, as a function of (seed, epoch, rank, world). Ordering and
 * sharding are those of accelerate. A resumed job finds its place again, and several processes need
 * not communicate.
 *
 * The order of an epoch is torch.randperm with a generator seeded by seed + epoch (accelerate's
 * SeedableRandomSampler). It is cut into batches, and batch i goes to rank i % world
 * (BatchSamplerShard). A single process takes the last, smaller batch as it is. Several processes
 * all get the same number of full batches, filled up from the epoch's beginning.
 *
 * With aspect buckets all pictures of a batch have one size. In the order of the permutation, each
 * picture is added to its bucket's open batch. A batch is emitted when it is full. The batches that
 * are still open at the end follow, lowest bucket first. With one bucket this is the plain order.
 * With several processes smaller batches stay small, and batches from the beginning are repeated to
 * complete the last round. */
#ifndef TRAIN_EXAMPLES_ORDER_H
#define TRAIN_EXAMPLES_ORDER_H

#include "base/error.h"

#include <stdint.h>

struct order_options {
    uint64_t seed;
    int64_t count; /* number of pictures, with repeats */
    int batch_size;
    int rank, world;
    const int32_t *buckets; /* borrowed [count], each 0 .. bucket_count - 1; NULL: one */
    int bucket_count;
};

/* The batches of one rank in one epoch. */
struct order {
    int64_t *items;  /* owned: batch b is items[starts[b]] .. items[starts[b + 1] - 1] */
    int64_t *starts; /* owned: [batches + 1] */
    int64_t batches;
};

bool order_init(const struct order_options *options, int64_t epoch, struct order *out,
    struct error *err) __attribute__((warn_unused_result));
void order_finish(struct order *order); /* a zeroed one is fine */

/* Returns the number of batches per epoch, which is the same on every rank. */
int64_t order_batches(const struct order_options *options);

/* Returns whether the optimizer steps after batch `batch` of an epoch's `batches`. As in
 * accelerate, it does so after every `accumulation` batches, and after the last batch. */
bool order_syncs(int64_t batch, int64_t batches, int accumulation);
/* Returns the optimizer steps per epoch. */
int64_t order_updates(int64_t batches, int accumulation);

#endif
