/* Memory that an entry of the CPU's table needs only while it runs.
 *
 * It comes from the top of the caller's arena. A dry run calls the entries that need scratch; they
 * allocate it and compute nothing. The arena's plan thus includes the scratch, and a step allocates
 * nothing. A caller without an arena gets blocks that belong to the thread. They grow as needed and
 * are kept until the thread ends.
 */
#ifndef KERNELS_CPU_SCRATCH_H
#define KERNELS_CPU_SCRATCH_H

#include "kernels/compute/arena.h"

/* kernels.lend: sets the arena from which the calling thread takes scratch from now on. */
void cpu_lend(struct arena *arena);

/* Whether the current call only plans. If so, neither its scratch nor its tensors may be
 * touched. */
bool cpu_plans(void);

/* Returns at least `bytes` bytes, aligned to MEMORY_ALIGNMENT, contents undefined. They are valid
 * until the entry returns or the thread calls this again. NULL with an error if memory is
 * refused. */
void *cpu_scratch(size_t bytes, struct error *err);

/* For an entry that calls other entries: returns a second block, which stays valid when those
 * entries call cpu_scratch. */
void *cpu_scratch_outer(size_t bytes, struct error *err);

#endif
