/* Ranks: processes that work on one job, each with its own copy of the model.
 *
 * A cluster moves bytes between ranks and adds floats. It knows nothing of training. Every rank
 * makes the same calls in the same order with the same sizes; a call that some rank leaves out
 * ends with ERROR_TIMEOUT on the others, which names the missing ranks.
 *
 * Sums are exact: the owner of a part takes the numbers of all ranks as they are and adds them in
 * the order of ranks, each addition rounded to f32. N ranks therefore compute the same bits as one
 * process that adds the same numbers in the same order. Libraries' reductions (MPI_Allreduce,
 * ncclReduceScatter) promise no order, hence they are never used for such sums.
 *
 * One thread at a time.
 */
#ifndef CLUSTER_CLUSTER_H
#define CLUSTER_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define CLUSTER_RANKS_MAX 64 /* bits of `present` */

/* Which of the processes this is. */
struct cluster_place {
    int rank, world;             /* 0 <= rank < world */
    int local_rank, local_world; /* among the ranks of this machine */
    int node, nodes;             /* this machine among the job's machines */
};

/* An array of floats of which every rank has one of the same length. Ranks on one machine read each
 * other's directly. */
struct cluster_window {
    float *floats; /* this rank's array; host memory, zero at first */
    int64_t count;
    void *handle; /* the implementation's */
};

struct cluster {
    const struct cluster_ops *ops;
    struct cluster_place place;
};

struct cluster_ops {
    const char *name; /* "alone", "mpi" */

    /* Collects `bytes` bytes of every rank: `all` is [world][bytes], the same on every rank. Waits
     * until all ranks have called. */
    bool (*gather)(struct cluster *c, const void *own, size_t bytes, void *all, struct error *err);
    /* Copies `bytes` bytes from one rank's `data` to every other rank's. */
    bool (*broadcast)(struct cluster *c, void *data, size_t bytes, int from, struct error *err);

    /* Makes a window of `count` floats on every rank. */
    bool (*open_window)(
        struct cluster *c, int64_t count, struct cluster_window *out, struct error *err);
    /* Frees it; a zeroed one is fine. */
    void (*close_window)(struct cluster *c, struct cluster_window *window);

    /* `cuts` [world + 1] divides a window: rank r owns the floats [cuts[r], cuts[r + 1]).
     *
     * add_to_owner: for each float i of this rank's part, and for each rank q whose bit in
     * `present` is set, in ascending order of q: onto[i - cuts[rank]] += q's window[i]. When it
     * returns, every rank may write to its window again. `onto` is outside of all windows. */
    bool (*add_to_owner)(struct cluster *c, const struct cluster_window *window,
        const int64_t *cuts, uint64_t present, float *onto, struct error *err);
    /* Copies every rank's part of its own window to the same place of all other ranks' windows. */
    bool (*share)(struct cluster *c, const struct cluster_window *window, const int64_t *cuts,
        struct error *err);

    /* Ends orderly: all ranks call it. Frees the cluster. */
    void (*end)(struct cluster *c);
};

/* A world of one rank: what moves stays where it is, and nothing can fail but for memory. */
struct cluster *cluster_alone(struct error *err);

/* Starts the implementation that `kind` names: "alone", "mpi" (libexec/latentd/cluster-mpi.so,
 * which needs an MPI library), or "auto": mpi if mpirun or srun started this process, else alone.
 * `timeout_s` is how long a call waits for the other ranks. ERROR_UNSUPPORTED with the library's
 * name if what is needed is not installed. The caller ends it with ops->end. */
struct cluster *cluster_start(const char *kind, double timeout_s, struct error *err);

#endif
