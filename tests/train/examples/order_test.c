/* The order of batches for every rank, compared with accelerate's samplers. Buckets, which
 * accelerate does not have, are checked by their rules. */
#include "train/examples/order.h"

#include "tests/train/recorded.h"

static void compare(const json_t *item, size_t *batches) {
    struct order_options options = { .seed = (uint64_t)recorded_integer(item, "seed"),
        .count = recorded_integer(item, "count"),
        .batch_size = (int)recorded_integer(item, "batch_size"),
        .world = (int)recorded_integer(item, "world") };
    const json_t *ranks = json_object_get(item, "ranks");
    for (options.rank = 0; options.rank < options.world; options.rank++) {
        const json_t *rank = json_array_get(ranks, (size_t)options.rank);
        struct order order;
        struct error err = { 0 };
        CHECK(
            order_init(&options, recorded_integer(item, "epoch"), &order, &err), "%s", err.message);
        CHECK(order.batches == (int64_t)json_array_size(rank) &&
                  order.batches == order_batches(&options),
            "%lld batches of %lld pictures", (long long)order.batches, (long long)options.count);
        for (int64_t b = 0; b < order.batches; b++, ++*batches) {
            const json_t *batch = json_array_get(rank, (size_t)b);
            const int64_t count = order.starts[b + 1] - order.starts[b];
            bool same = count == (int64_t)json_array_size(batch);
            for (int64_t i = 0; same && i < count; i++)
                same = order.items[order.starts[b] + i] == (int64_t)recorded_at(batch, (size_t)i);
            CHECK(same, "count %lld, batches of %d, rank %d of %d: batch %lld differs",
                (long long)options.count, options.batch_size, options.rank, options.world,
                (long long)b);
        }
        order_finish(&order);
    }
}

static void pictures_of_a_batch_share_a_bucket(int world) {
    enum { COUNT = 103, BUCKETS = 4 };
    int32_t buckets[COUNT];
    for (int i = 0; i < COUNT; i++)
        buckets[i] = i * i % 7 % BUCKETS;
    int seen[COUNT] = { 0 }, full = 0;
    int64_t batches = 0;
    for (int rank = 0; rank < world; rank++) {
        struct order_options options = { 9, COUNT, 4, rank, world, buckets, BUCKETS };
        struct order order, again;
        struct error err = { 0 };
        CHECK(order_init(&options, 2, &order, &err) && order_init(&options, 2, &again, &err), "%s",
            err.message);
        CHECK(rank == 0 || order.batches == batches, "rank %d has %lld batches", rank,
            (long long)order.batches);
        batches = order.batches;
        CHECK(
            memcmp(order.items, again.items, sizeof(int64_t) * (size_t)order.starts[batches]) == 0,
            "the order is not the same twice");
        for (int64_t b = 0; b < order.batches; b++) {
            full += order.starts[b + 1] - order.starts[b] == 4;
            for (int64_t i = order.starts[b]; i < order.starts[b + 1]; i++) {
                CHECK(buckets[order.items[i]] == buckets[order.items[order.starts[b]]],
                    "batch %lld mixes buckets", (long long)b);
                seen[order.items[i]]++;
            }
        }
        order_finish(&order);
        order_finish(&again);
    }
    int missing = 0, twice = 0;
    for (int i = 0; i < COUNT; i++) {
        missing += seen[i] == 0;
        twice += seen[i] > 1;
    }
    printf("%d ranks: %lld batches each, %d full, %d pictures twice\n", world, (long long)batches,
        full, twice);
    CHECK(missing == 0, "%d pictures are in no batch", missing);
    CHECK(world > 1 || twice == 0, "%d pictures are in two batches", twice);
}

static void windows_end_with_the_epoch(void) {
    /* With 10 batches and an accumulation of 4, accelerate makes a step after batches 4, 8 and
     * 10. */
    char steps[11] = "";
    for (int b = 0; b < 10; b++)
        steps[b] = order_syncs(b, 10, 4) ? 'x' : '.';
    CHECK(strcmp(steps, "...x...x.x") == 0, "%s", steps);
    CHECK(order_updates(10, 4) == 3 && order_updates(8, 4) == 2 && order_updates(3, 1) == 3,
        "%lld updates", (long long)order_updates(10, 4));
}

int main(int argc, char **argv) {
    json_t *cases = recorded_load(argc, argv), *item;
    size_t i, batches = 0;
    json_array_foreach(cases, i, item) compare(item, &batches);
    CHECK(batches > 130, "%zu batches", batches);
    printf("%zu epochs, %zu batches as accelerate has them\n", json_array_size(cases), batches);
    json_decref(cases);
    pictures_of_a_batch_share_a_bucket(1);
    pictures_of_a_batch_share_a_bucket(3);
    windows_end_with_the_epoch();
    return check_done();
}
