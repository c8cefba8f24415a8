/* Tests who computes which micro-batch: in every step each micro-batch once, in rounds whose ranks
 * ascend from 0, so that adding in the order of ranks is adding in the order of micro-batches; and
 * with several ranks no more rounds than needed. */
#include "train/ranks/round.h"

#include "tests/check.h"
#include "train/examples/order.h"

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

int main(void) {
    rounds_are_the_order_of_micro_batches();
    more_ranks_than_micro_batches_are_refused();
    return check_done();
}
