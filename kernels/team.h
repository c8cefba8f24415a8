/* The threads that share an operation on the CPU: OpenMP's team of the calling thread. */
#ifndef KERNELS_TEAM_H
#define KERNELS_TEAM_H

#include "base/error.h"

/* Starts the calling thread's team, so that a system that refuses threads reports it now: OpenMP's
 * runtime ends the process if it cannot create a thread later. Every thread that computes has its
 * own team and calls this first; calling it again is fine. */
bool team_start(struct error *err) __attribute__((warn_unused_result));

/* Makes the calling thread compute alone, without a team, until team_rejoin gets the value returned
 * here. For work that runs beside another thread's and must leave the processors to it. */
int team_leave(void);
void team_rejoin(int threads);

#endif
