/* The threads that share an operation on the CPU: OpenMP's team of the calling thread. */
#ifndef KERNELS_TEAM_H
#define KERNELS_TEAM_H

#include "base/error.h"

/* Starts the calling thread's team, so that a system which refuses threads says so now: OpenMP's
 * runtime ends the process where it cannot create one. Every thread that computes has its own
 * team, and calls this first; a second call is fine. */
bool team_start(struct error *err) __attribute__((warn_unused_result));

/* From now on the calling thread computes alone, without a team: for work beside another thread's,
 * whose processors it leaves alone. Until team_rejoin gets what this returns. */
int team_leave(void);
void team_rejoin(int threads);

#endif
