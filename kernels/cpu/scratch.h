/* Memory that an entry of the CPU's table needs while it runs, and nothing else.
 *
 * It comes from the top of the caller's arena: a dry run calls the entries that take some, they
 * take it and compute nothing, and so the arena's plan counts it and a step allocates nothing. A
 * caller without an arena gets blocks of the thread's own, which grow and are kept until the thread
 * ends.
 */
#ifndef KERNELS_CPU_SCRATCH_H
#define KERNELS_CPU_SCRATCH_H

#include "kernels/arena.h"

/* As struct kernels has it: from whose arena the calling thread takes scratch from now on. */
void cpu_lend(struct arena *arena);

/* Whether this call only plans: what it asked for is there to be counted, not to be touched, and
 * neither are its tensors. */
bool cpu_plans(void);

/* At least `bytes`, aligned to MEMORY_ALIGNMENT, until the entry returns or the thread asks again;
 * contents undefined. NULL and an error if memory is refused. */
void *cpu_scratch(size_t bytes, struct error *err);

/* The same beside it, for an entry that is made of others. */
void *cpu_scratch_outer(size_t bytes, struct error *err);

#endif
