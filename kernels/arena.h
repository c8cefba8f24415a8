/* Memory for activations: a stack of tensors that is planned once and never frees in between.
 *
 * A model allocates its output first, then temporaries above it, and gives the temporaries back
 * with a mark. A dry run (kernels/compute.h) walks a model without computing and leaves the peak;
 * the arena then reserves that peak once, and no allocation happens in a step.
 *
 * One thread at a time.
 */
#ifndef KERNELS_ARENA_H
#define KERNELS_ARENA_H

#include "kernels/memory.h"

struct arena;

/* An arena that owns no memory yet, of the device whose memory is given (borrowed). Destroy takes
 * NULL. */
bool arena_create(const struct device_memory *memory, struct arena **out, struct error *err)
    __attribute__((warn_unused_result));
void arena_destroy(struct arena *arena);

/* Makes at least `bytes` available. The arena must be empty. ERROR_NO_MEMORY if refused, or if the
 * device's memory says that there is less: a system promises any amount and kills the process when
 * it is used. */
bool arena_reserve(struct arena *arena, size_t bytes, struct error *err)
    __attribute__((warn_unused_result));

/* What arena_reserve takes of the device for `bytes`. */
size_t arena_block_bytes(size_t bytes);

/* Aligned to MEMORY_ALIGNMENT, contents undefined; NULL when the reserve is too small. In planning
 * mode (between arena_plan_begin and arena_plan_end) addresses are unusable but distinct and never
 * NULL. */
void *arena_alloc(struct arena *arena, size_t bytes);

/* Everything allocated after a mark is given back by arena_release. */
size_t arena_mark(const struct arena *arena);
void arena_release(struct arena *arena, size_t mark);

/* Planning: allocations only count. arena_plan_end returns the peak in bytes. */
void arena_plan_begin(struct arena *arena);
size_t arena_plan_end(struct arena *arena);

bool arena_is_planning(const struct arena *arena);

size_t arena_reserved_bytes(const struct arena *arena);
/* Changes whenever the arena's memory does: addresses from before mean nothing afterwards. */
unsigned arena_generation(const struct arena *arena);

#endif
