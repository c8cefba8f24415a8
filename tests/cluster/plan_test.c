#include "cluster/cluster.h"
#include "cluster/plan.h"
#include "tests/check.h"

/* xorshift64: the same numbers in every run. */
static uint64_t state = 88172645463325252u;
static int64_t below(int64_t n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int64_t)(state % (uint64_t)n);
}

static void known_cuts(void) {
    static const struct {
        int64_t floats;
        int world;
        int64_t cuts[5];
    } rows[] = {
        { 0, 2, { 0, 0, 0 } }, { 1, 1, { 0, 1 } },
        { 60000, 2, { 0, 0, 60000 } }, /* 30,000 is nearer to 0 than to 65,536 */
        { 100000, 2, { 0, 65536, 100000 } }, { 4 * 65536, 4, { 0, 65536, 131072, 196608, 262144 } },
        { 4 * 65536, 3, { 0, 65536, 196608, 262144 } },
        { 859520964, 4, { 0, 214892544, 429785088, 644612096, 859520964 } }, /* SD-1.5's UNet */
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int64_t cuts[5] = { 0 };
        plan_cuts(rows[i].floats, NULL, 0, rows[i].world, cuts);
        for (int r = 0; r <= rows[i].world; r++)
            CHECK(cuts[r] == rows[i].cuts[r], "%lld floats, %d ranks: cut %d at %lld, not %lld",
                (long long)rows[i].floats, rows[i].world, r, (long long)cuts[r],
                (long long)rows[i].cuts[r]);
    }
    /* 65,536 lies 65,436 floats behind the start of its range: 256 blocks of 256 reach 65,636. The
     * second range ends before the block does. */
    const struct plan_range ranges[] = { { 0, 100 }, { 100, 70000 }, { 131000, 100 } };
    int64_t cuts[4];
    plan_cuts(3 * 65536, ranges, 3, 3, cuts);
    CHECK(cuts[1] == 65636 && cuts[2] == 131100 && cuts[3] == 3 * 65536, "%lld, %lld",
        (long long)cuts[1], (long long)cuts[2]);
}

/* Fills ranges that cover an array; some end where the next begins, some leave a gap. */
static size_t random_ranges(int64_t floats, struct plan_range *ranges, size_t most) {
    size_t count = 0;
    for (int64_t at = below(3) ? 0 : below(1000); at < floats && count < most;) {
        int64_t size = below(3) ? 1 + below(200000) : 1 + below(700);
        size = size < floats - at ? size : floats - at;
        ranges[count++] = (struct plan_range){ at, size };
        at += size + (below(4) ? 0 : below(70));
    }
    return count;
}

static bool fits_ranges(int64_t cut, const struct plan_range *ranges, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (cut > ranges[i].at && cut < ranges[i].at + ranges[i].count)
            return (cut - ranges[i].at) % PLAN_BLOCK == 0;
    return true;
}

static void cuts_hold_for_any_size(void) {
    static struct plan_range ranges[4096];
    int tried = 0, empty = 0, moved = 0;
    for (int round = 0; round < 20000; round++) {
        const int world = 1 + (int)below(CLUSTER_RANKS_MAX);
        const int64_t floats = below(3) ? below(40000000) : below(300000);
        const size_t count = random_ranges(floats, ranges, 4096);
        int64_t plain[CLUSTER_RANKS_MAX + 1], cuts[CLUSTER_RANKS_MAX + 1];
        plan_cuts(floats, NULL, 0, world, plain);
        plan_cuts(floats, ranges, count, world, cuts);
        bool ok = cuts[0] == 0 && cuts[world] == floats && plain[0] == 0 && plain[world] == floats;
        for (int r = 0; r < world; r++) {
            ok &= cuts[r] <= cuts[r + 1] && plain[r] <= plain[r + 1];
            ok &= plain[r] % PLAN_PIECE == 0 || plain[r] == floats;
            /* Nearest: at most half a piece from the even share, or at the end. */
            const double even = (double)floats * r / world, off = fabs((double)plain[r] - even);
            ok &= off <= PLAN_PIECE / 2.0 + 1 || plain[r] == floats;
            ok &= cuts[r] >= plain[r] && cuts[r] < plain[r] + PLAN_BLOCK && cuts[r] <= floats;
            ok &= fits_ranges(cuts[r], ranges, count);
            empty += cuts[r] == cuts[r + 1];
            moved += cuts[r] != plain[r];
        }
        CHECK(ok, "round %d: %lld floats, %zu ranges, %d ranks", round, (long long)floats, count,
            world);
        tried += world;
    }
    CHECK(empty > 100 && moved > 1000, "%d empty, %d moved", empty, moved);
    printf("%d shards: in order, aligned, nearest; %d empty, %d moved to a block\n", tried, empty,
        moved);
}

static void buckets_hold_for_any_parts(void) {
    static int64_t floats[500];
    static size_t first[501];
    const int64_t most = PLAN_BUCKET_BYTES / 4;
    int buckets = 0, large = 0;
    for (int round = 0; round < 2000; round++) {
        const size_t count = (size_t)below(500);
        for (size_t i = 0; i < count; i++)
            floats[i] = below(10) ? below(1000000) : below(20000000);
        const size_t n = plan_buckets(floats, count, first);
        bool ok = first[n] == count && (n == 0) == (count == 0) && (n == 0 || first[0] == 0);
        for (size_t b = 0; b < n; b++) {
            int64_t sum = 0;
            for (size_t i = first[b]; i < first[b + 1]; i++)
                sum += floats[i];
            ok &= first[b] < first[b + 1] && (sum <= most || first[b + 1] - first[b] == 1);
            /* As few as possible in this order: the next part would not have fitted. */
            ok &= b + 1 == n || sum + floats[first[b + 1]] > most;
            large += sum > most;
        }
        CHECK(ok, "round %d: %zu parts, %zu buckets", round, count, n);
        buckets += (int)n;
    }
    printf("%d buckets of at most %d bytes, %d with one larger part\n", buckets, PLAN_BUCKET_BYTES,
        large);
}

/* The slices of a bucket are the bucket: in order, without gap or overlap. */
static void slices_cover_a_bucket(void) {
    for (int round = 0; round < 2000; round++) {
        const int world = 1 + (int)below(8);
        const int64_t floats = below(2000000);
        int64_t cuts[9], begin = below(floats + 1), end = begin + below(floats - begin + 1);
        plan_cuts(floats, NULL, 0, world, cuts);
        int64_t at = begin;
        for (int r = 0; r < world; r++) {
            int64_t from, to;
            plan_slice(cuts, r, begin, end, &from, &to);
            if (from < to) {
                CHECK(from == at && from >= cuts[r] && to <= cuts[r + 1], "%lld to %lld",
                    (long long)from, (long long)to);
                at = to;
            }
        }
        CHECK(at == end, "[%lld, %lld) is covered to %lld", (long long)begin, (long long)end,
            (long long)at);
    }
}

int main(void) {
    known_cuts();
    cuts_hold_for_any_size();
    buckets_hold_for_any_parts();
    slices_cover_a_bucket();
    return check_done();
}
