/* The processes that mpirun or srun started for one command: who this one is, and what it takes of
 * the machine that they share. */
#ifndef COMMAND_RANKS_H
#define COMMAND_RANKS_H

#include "kernels/devices.h"
#include "train/ranks/agreement.h"

struct ranks {
    struct cluster *cluster;     /* owned */
    struct agreement *agreement; /* owned; NULL: this process is alone */
    int device_ranks;            /* ranks_compute_alike: those that share this one's device */
};

/* Starts the cluster that `kind` names ("auto", "alone" or "mpi"). Ranks other than 0 write only
 * warnings to the log from here on, with their rank. The ranks of one machine divide its processors
 * among them, unless OMP_NUM_THREADS says how many threads each has. ERROR_CONFLICT if they are of
 * different versions. After a failure *out may have a cluster, for ranks_end; after ERROR_TIMEOUT
 * or ERROR_PEER_LOST call cluster_fail instead. */
bool ranks_start(const char *kind, double timeout_s, struct ranks *out, struct error *err)
    __attribute__((warn_unused_result));
/* Ends the cluster, on all ranks. A zeroed one is fine. If the others are lost, logs `err` and ends
 * the process instead. */
void ranks_end(struct ranks *ranks, const struct error *err);

/* "cuda" stands for the GPU with the rank's number on its machine; so does "auto" if there is a
 * GPU. */
void ranks_choose_device(const struct ranks *ranks, struct device_choice *device);

/* Compares what the ranks compute with: the device with its code. ERROR_CONFLICT names what
 * differs. Counts the ranks that share a device. */
bool ranks_compute_alike(struct ranks *ranks, const struct kernels *kernels, struct error *err)
    __attribute__((warn_unused_result));

#endif
