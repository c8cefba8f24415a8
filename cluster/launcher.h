/* Which rank the program that started this process has given it, by environment variables. Some
 * things must be known before an MPI library is loaded: whether there are other ranks at all. */
#ifndef CLUSTER_LAUNCHER_H
#define CLUSTER_LAUNCHER_H

#include "base/error.h"

#include <stdbool.h>

struct launcher {
    const char *name; /* "mpirun", "srun", ...; NULL: none started this process */
    int rank, world;  /* world: -1: the launcher does not say */
};

/* Reads a variable; NULL if it is not set. */
typedef const char *(*launcher_get)(void *user, const char *name);

/* Fills *out from variables. The innermost launcher counts: mpirun within srun is mpirun. The
 * script that sbatch runs is no rank of srun. ERROR_INVALID names a variable that makes no
 * sense. */
bool launcher_read(launcher_get get, void *user, struct launcher *out, struct error *err)
    __attribute__((warn_unused_result));

/* A launcher_get of this process's environment; `user` is not used. */
const char *launcher_environment(void *user, const char *name);

#endif
