/* What the module cluster-mpi.so exports. It is a file of its own, loaded by name when ranks are
 * asked for, because only it needs an MPI library. */
#ifndef CLUSTER_MODULE_H
#define CLUSTER_MODULE_H

#include "cluster/cluster.h"

#define CLUSTER_EXPORTED __attribute__((visibility("default")))

/* The version of latentd that the module belongs to. */
extern const char cluster_mpi_version[] CLUSTER_EXPORTED;

/* Initialises MPI and returns its world as a cluster; at most once in a process. If MPI itself
 * cannot be initialised, the library prints why and ends the process. */
struct cluster *cluster_mpi_open(double timeout_s, struct error *err) CLUSTER_EXPORTED;

/* Environment variables, which must be the same for all ranks:
 *
 * LATENTD_CLUSTER_SHARED_RANKS: at most this many ranks of a machine share memory; 1: none. Ranks
 * that do not share memory send messages. Without it all ranks of a machine share memory. For a
 * machine with a small /dev/shm, and for tests.
 *
 * LATENTD_CLUSTER_MESSAGE_BYTES: the most bytes of a message; 33554432 without it. */
#define CLUSTER_SHARED_RANKS "LATENTD_CLUSTER_SHARED_RANKS"
#define CLUSTER_MESSAGE_BYTES "LATENTD_CLUSTER_MESSAGE_BYTES"

#endif
