/* How a flat array of floats is divided among ranks and into buckets: pure functions.
 *
 * A shard is what one rank owns: the floats [cuts[r], cuts[r + 1]). A bucket is a run of
 * neighbouring parts (the gradients of weights, in the order in which the backward completes them)
 * that is moved at once. */
#ifndef CLUSTER_PLAN_H
#define CLUSTER_PLAN_H

#include <stddef.h>
#include <stdint.h>

/* Shards begin at multiples of this many floats. Sums of squares are made of pieces of that size,
 * so that a piece belongs to one shard. */
#define PLAN_PIECE 65536
/* Optimizers with 8-bit states scale blocks of this many values, counted from a range's start. */
#define PLAN_BLOCK 256
#define PLAN_BUCKET_BYTES (32 << 20)

/* Floats that are stepped alike. */
struct plan_range {
    int64_t at, count;
};

/* Writes cuts [world + 1] of an array of `floats` floats: cuts[0] is 0, cuts[world] is `floats`,
 * and each cut between is the multiple of PLAN_PIECE nearest to its even share, r * floats /
 * world. If there are fewer pieces than ranks, some shards are empty.
 *
 * With `ranges` (ascending, disjoint; `range_count` may be 0) a cut within a range is moved to the
 * next multiple of PLAN_BLOCK after the range's start, or to the range's end if that comes first:
 * no block of 8-bit states lies in two shards. Such cuts are at most PLAN_BLOCK - 1 floats behind
 * those without ranges, so that a piece may lie in two shards. */
void plan_cuts(
    int64_t floats, const struct plan_range *ranges, size_t range_count, int world, int64_t *cuts);

/* Divides `count` neighbouring parts into buckets. `floats` [count] are their sizes. Bucket b has
 * the parts [first[b], first[b + 1]); `first` has room for count + 1. A bucket has at most
 * PLAN_BUCKET_BYTES, except for one with a single part that is larger. Returns the number of
 * buckets. */
size_t plan_buckets(const int64_t *floats, size_t count, size_t *first);

/* Writes how far the floats [begin, end), a bucket, lie in the shard [cuts[rank], cuts[rank + 1]):
 * [*from, *to), which is empty (*from == *to) if they do not. */
void plan_slice(
    const int64_t *cuts, int rank, int64_t begin, int64_t end, int64_t *from, int64_t *to);

#endif
