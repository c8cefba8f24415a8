/* Why the cluster adds by itself: how many sums MPI_Allreduce gets different from the fold in the
 * order of ranks. That number is only printed, as it depends on the library; ours must be 0. */
#include "cluster/cluster.h"
#include "tests/check.h"

#include <mpi.h>

#define COUNT 1000000

static float value(int64_t i, int rank) {
    uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank * 40503 + 17);
    x ^= x >> 13;
    x *= 0x5bd1e995u;
    x ^= x >> 15;
    return ((float)(x & 0xffffff) / 8388608.0f - 1.0f) * (float)(1 << ((x >> 24) & 7));
}

int main(void) {
    static float library[COUNT], own[COUNT];
    struct error err = { 0 };
    struct cluster_window w = { 0 };
    int64_t cuts[CLUSTER_RANKS_MAX + 1];
    struct cluster *c = cluster_start("mpi", 60, &err);
    if (!c || !c->ops->open_window(c, COUNT, &w, &err)) {
        printf("FAIL: %s\n", err.message);
        return 1;
    }
    const int world = c->place.world, rank = c->place.rank;
    for (int64_t i = 0; i < COUNT; i++)
        w.floats[i] = value(i, rank);
    MPI_Allreduce(w.floats, library, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int r = 0; r <= world; r++)
        cuts[r] = (int64_t)COUNT * r / world;
    const bool ok = c->ops->add_to_owner(c, &w, cuts, ~UINT64_C(0), own, &err);
    CHECK(ok, "%s", err.message);
    int64_t of_library = 0, ours = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        float sum = 0;
        for (int q = 0; q < world; q++)
            sum += value(i, q);
        of_library += memcmp(&sum, &library[i], sizeof(sum)) != 0;
        if (i >= cuts[rank] && i < cuts[rank + 1])
            ours += memcmp(&sum, &own[i - cuts[rank]], sizeof(sum)) != 0;
    }
    CHECK(ours == 0, "rank %d: %lld of our sums differ", rank, (long long)ours);
    if (rank == 0)
        printf("%d ranks: MPI_Allreduce differs from the fold in %lld of %d sums, ours in %lld\n",
            world, (long long)of_library, COUNT, (long long)ours);
    c->ops->close_window(c, &w);
    c->ops->end(c);
    return check_done();
}
