/* The threads that share an operation on the CPU: OpenMP's team of the calling thread. */
#ifndef KERNELS_TEAM_H
#define KERNELS_TEAM_H

#include "base/error.h"

/* Starts the calling thread's team, so that a system that refuses threads reports it now. Later,
 * OpenMP's runtime would end the process if it cannot create a thread. Every thread that computes
 * has its own team and calls this first; calling it again is fine. */
bool team_start(struct error *err) __attribute__((warn_unused_result));

/* Makes the calling thread compute alone, without a team, until the value returned here is passed
 * to team_rejoin. For work that must leave the other processors to another thread. */
int team_leave(void);
void team_rejoin(int threads);

#endif
