#include "cluster/plan.h"

static int64_t at_most(int64_t value, int64_t most) {
    return value < most ? value : most;
}

void plan_cuts(
    int64_t floats, const struct plan_range *ranges, size_t range_count, int world, int64_t *cuts) {
    size_t range = 0;
    cuts[0] = 0;
    for (int r = 1; r < world; r++) {
        /* The nearest multiple of a piece to r * floats / world; no product overflows. */
        const int64_t even = floats / world * r + floats % world * r / world;
        int64_t cut = at_most((even + PLAN_PIECE / 2) / PLAN_PIECE * PLAN_PIECE, floats);
        while (range < range_count && ranges[range].at + ranges[range].count <= cut)
            range++;
        if (range < range_count && ranges[range].at < cut) {
            const int64_t at = ranges[range].at;
            cut = at + (cut - at + PLAN_BLOCK - 1) / PLAN_BLOCK * PLAN_BLOCK;
            cut = at_most(cut, at + ranges[range].count);
        }
        cuts[r] = cut;
    }
    cuts[world] = floats;
}

size_t plan_buckets(const int64_t *floats, size_t count, size_t *first) {
    const int64_t most = PLAN_BUCKET_BYTES / (int64_t)sizeof(float);
    size_t buckets = 0;
    int64_t filled = 0;
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || filled + floats[i] > most) {
            first[buckets++] = i;
            filled = 0;
        }
        filled += floats[i];
    }
    first[buckets] = count;
    return buckets;
}

void plan_slice(
    const int64_t *cuts, int rank, int64_t begin, int64_t end, int64_t *from, int64_t *to) {
    *from = begin > cuts[rank] ? begin : cuts[rank];
    *to = at_most(end, cuts[rank + 1]);
    if (*to < *from)
        *to = *from = begin;
}
