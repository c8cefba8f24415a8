/* Tests who computes which micro-batch: in every step each micro-batch once, in rounds whose ranks
 * ascend from 0, so that adding in the order of ranks is adding in the order of micro-batches; and
 * with several ranks no more rounds than needed. Gradients that are not in host memory come and go
 * in pieces, and are summed all the same. */
#include "train/ranks/round.h"

#include "tests/check.h"
#include "train/examples/order.h"

#include <stdlib.h>
#include <string.h>

static void rounds_are_the_order_of_micro_batches(void) {
    int steps = 0;
    for (int accumulation = 1; accumulation <= 9; accumulation++)
        for (int world = 1; world <= accumulation; world++)
            for (int64_t batches = 1; batches <= 20; batches++) {
                int next = 0, rounds = 0, in_step = 0;
                for (int64_t batch = 0; batch < batches; batch++) {
                    const int rank = round_rank(batch, accumulation, world);
                    const bool ends = round_ends(batch, batches, accumulation, world);
                    const bool syncs = order_syncs(batch, batches, accumulation);
                    CHECK(rank == next && rank < world,
                        "A %d N %d: batch %lld is rank %d's, not %d's", accumulation, world,
                        (long long)batch, rank, next);
                    in_step++;
                    next = ends ? 0 : next + 1;
                    rounds += ends;
                    CHECK(!syncs || ends, "A %d N %d: a round is open at the end of a step",
                        accumulation, world);
                    if (!syncs)
                        continue;
                    CHECK(rounds == (in_step + world - 1) / world,
                        "A %d N %d: %d rounds for %d batches", accumulation, world, rounds,
                        in_step);
                    rounds = in_step = 0;
                    steps++;
                }
            }
    printf("%d steps\n", steps);
}

static void more_ranks_than_micro_batches_are_refused(void) {
    struct error err = { 0 };
    CHECK(round_suits(4, 4, &err) && round_suits(1, 1, &err), "%s", err.message);
    CHECK(!round_suits(1, 4, &err) && strcmp(err.param, "gradient_accumulation_steps") == 0 &&
              strcmp(err.value, "1") == 0 &&
              strcmp(err.message,
                  "4 ranks share 1 micro-batch: gradient_accumulation_steps: 1 is not allowed; at "
                  "least the number of ranks, 4, or data_parallel \"multiply\"") == 0,
        "%s", err.message);
    CHECK(!round_suits(2, 3, &err) && strstr(err.message, "3 ranks share 2 micro-batches"), "%s",
        err.message);
}

/* The memory of a device that is apart: nothing of it is seen but by view and upload. Here it is
 * host memory whose calls are counted. */
#define LARGEST ((size_t)32 << 20)
static size_t largest, viewed, uploaded;

static const void *view(const void *from, size_t bytes, struct error *err) {
    (void)err;
    largest = bytes > largest ? bytes : largest;
    viewed += bytes;
    return from;
}

static bool upload(void *to, const void *from, size_t bytes, struct error *err) {
    (void)err;
    largest = bytes > largest ? bytes : largest;
    uploaded += bytes;
    memcpy(to, from, bytes);
    return true;
}

static float gradient(int64_t i, int round) {
    return (float)(i % 8191) * (round ? 0.1f : 1e-6f);
}

static void gradients_of_a_device_come_and_go_in_pieces(void) {
    const int64_t floats = (int64_t)20000003; /* two whole pieces and a part */
    const size_t bytes = (size_t)floats * sizeof(float);
    const struct device_memory memory = { .view = view, .upload = upload };
    const struct kernels kernels = { .device = DEVICE_CUDA, .memory = &memory };
    struct parameters p = {
        .kernels = &kernels, .floats = floats, .gradients = malloc((size_t)floats * sizeof(float))
    };
    struct error err = { 0 };
    struct cluster *c = cluster_alone(&err);
    struct agreement *a = NULL;
    struct round round = { 0 };
    CHECK(c && p.gradients && agreement_create(c, &a, &err) && round_open(&round, a, &p, &err),
        "%s", err.message);
    for (int r = 0; r < 2; r++) {
        for (int64_t i = 0; i < floats; i++)
            p.gradients[i] = gradient(i, r);
        CHECK(round_end(&round, 1, 0.5, 1, r == 1, &err), "%s", err.message);
    }
    int64_t wrong = 0;
    for (int64_t i = 0; i < floats; i++)
        wrong += p.gradients[i] != (0 + gradient(i, 0)) + gradient(i, 1);
    printf("%zu bytes of gradients, at most %zu at once: %lld sums wrong\n", bytes, largest,
        (long long)wrong);
    CHECK(wrong == 0, "%lld of %lld sums", (long long)wrong, (long long)floats);
    CHECK(viewed == 2 * bytes && uploaded == bytes && largest == LARGEST,
        "viewed %zu, uploaded %zu, at most %zu", viewed, uploaded, largest);
    round_close(&round);
    agreement_destroy(a);
    free(p.gradients);
    c->ops->end(c);
}

int main(void) {
    rounds_are_the_order_of_micro_batches();
    more_ranks_than_micro_batches_are_refused();
    gradients_of_a_device_come_and_go_in_pieces();
    return check_done();
}
