/* Memory for activations: a stack of tensors in one block of memory, which is allocated once and
 * kept.
 *
 * A model allocates its output first and its temporaries above it, and releases the temporaries
 * with a mark. A dry run (kernels/compute/compute.h) walks a model without computing and yields the
 * peak. The arena then reserves that peak once, so that a step allocates nothing.
 *
 * One thread at a time.
 */
#ifndef KERNELS_COMPUTE_ARENA_H
#define KERNELS_COMPUTE_ARENA_H

#include "kernels/memory.h"

struct arena;

/* Creates an arena for the device of `memory` (borrowed). It owns no memory before arena_reserve.
 * arena_destroy accepts NULL. */
bool arena_create(const struct device_memory *memory, struct arena **out, struct error *err)
    __attribute__((warn_unused_result));
void arena_destroy(struct arena *arena);

/* Makes at least `bytes` available. The arena must be empty. Returns ERROR_NO_MEMORY if the device
 * refuses, or if it reports too little available memory. The report is checked because a system may
 * grant any amount and kill the process when the memory is used. */
bool arena_reserve(struct arena *arena, size_t bytes, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the number of bytes that arena_reserve(bytes) allocates on the device. */
size_t arena_block_bytes(size_t bytes);

/* Returns memory aligned to MEMORY_ALIGNMENT, contents undefined, or NULL if the reserve is too
 * small. While planning (between arena_plan_begin and arena_plan_end) the addresses must not be
 * used, but they are distinct and never NULL. */
void *arena_alloc(struct arena *arena, size_t bytes);

/* arena_release frees everything that was allocated after the mark. */
size_t arena_mark(const struct arena *arena);
void arena_release(struct arena *arena, size_t mark);

/* While planning, allocations are only counted. arena_plan_end returns the peak in bytes. */
void arena_plan_begin(struct arena *arena);
size_t arena_plan_end(struct arena *arena);

bool arena_is_planning(const struct arena *arena);

size_t arena_reserved_bytes(const struct arena *arena);
/* Returns a number that changes whenever the arena's memory is replaced. Addresses from before the
 * change are invalid. */
unsigned arena_generation(const struct arena *arena);

#endif
