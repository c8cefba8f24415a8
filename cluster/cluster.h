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
 * Errors: ERROR_TIMEOUT names the ranks that have not come within the deadline, ERROR_PEER_LOST
 * means that the connection to a rank is broken. After either of them every further call fails at
 * once, and the memory that was given to the failed call must stay as it is: the job is over, and
 * cluster_fail ends the process.
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
/* Exit status of a rank that lost another one: start the job again, and it goes on from its last
 * checkpoint. It is EX_TEMPFAIL of sysexits.h. */
#define CLUSTER_EXIT_AGAIN 75

/* Which of the processes this is. */
struct cluster_place {
    int rank, world;             /* 0 <= rank < world */
    int local_rank, local_world; /* among the ranks of this machine */
    int node, nodes;             /* this machine among the job's machines */
};

/* An array of floats of which every rank has one of the same length. Ranks on one machine read each
 * other's directly. */
struct cluster_window {
    float *floats; /* this rank's array; host memory, aligned to 64 bytes, zero at first */
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

    /* See cluster_busy. */
    void (*busy)(struct cluster *c, bool busy);

    /* Ends orderly: all ranks call it. Frees the cluster. */
    void (*end)(struct cluster *c);
};

/* A world of one rank: what moves stays where it is, and nothing can fail but for memory. */
struct cluster *cluster_alone(struct error *err);

/* Starts the implementation that `kind` names: "alone", "mpi" (the module cluster-mpi.so in
 * libexec/latentd, which needs Open MPI's library), or "auto": mpi if mpirun or srun started this
 * process as one of several, else alone. `timeout_s` is how long a call waits for the other ranks.
 *
 * ERROR_UNSUPPORTED with the file's name if the module or the library is not installed.
 * ERROR_CONFLICT if the launcher and the MPI library do not agree about the number of ranks. The
 * caller ends the cluster with ops->end. */
struct cluster *cluster_start(const char *kind, double timeout_s, struct error *err);

/* A rank calls this with true before it works for long without the others (it writes a checkpoint,
 * it draws validation pictures), and with false afterwards. In between it makes no other call.
 * Meanwhile the others may wait for it beyond the deadline, as long as its process lives. */
void cluster_busy(struct cluster *c, bool busy);

/* Compares a text between all ranks: the build, the processor's level, the dtype. If texts differ,
 * every rank gets the same ERROR_CONFLICT, which names the first two ranks that differ and what
 * they have: "ranks differ in LABEL: rank 0 on a has x, rank 2 on b has y". Of long texts it shows
 * the part that differs. `text` has at most CLUSTER_COMPARE_BYTES bytes. */
#define CLUSTER_COMPARE_BYTES (1 << 20)
bool cluster_compare(struct cluster *c, const char *label, const char *text, struct error *err)
    __attribute__((warn_unused_result));

/* Logs one line, "rank 1 of 4 on HOST: MESSAGE", and ends the process with CLUSTER_EXIT_AGAIN,
 * without waiting for the other ranks and without cleaning up. For ERROR_TIMEOUT and
 * ERROR_PEER_LOST. mpirun and srun end the other ranks. `c` may be NULL. */
void cluster_fail(const struct cluster *c, const struct error *err) __attribute__((noreturn));

#endif
