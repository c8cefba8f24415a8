#include "kernels/compute/arena.h"

#include <stdint.h>
#include <stdlib.h>

#define ALIGNMENT MEMORY_ALIGNMENT

/* The first address of a plan. It is not canonical on any 64-bit machine, so a kernel that uses an
 * address of a plan faults at once. */
#define PLAN_BASE ((uintptr_t)1 << 62)

struct arena {
    const struct device_memory *memory; /* borrowed */
    char *base;                         /* owned, from `memory`; not for the host to use */
    size_t reserved;
    size_t used;
    bool planning;
    size_t planned, peak;
    unsigned generation;
};

bool arena_create(const struct device_memory *memory, struct arena **out, struct error *err) {
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an arena");
    (*out)->memory = memory;
    return true;
}

void arena_destroy(struct arena *arena) {
    if (!arena)
        return;
    arena->memory->release(MEMORY_ACTIVATIONS, arena->base, arena->reserved);
    free(arena);
}

size_t arena_block_bytes(size_t bytes) {
    const size_t page = (size_t)2 << 20; /* whole huge pages, if the system has them */
    return (bytes + page - 1) / page * page;
}

bool arena_reserve(struct arena *arena, size_t bytes, struct error *err) {
    if (arena->used != 0 || arena->planning)
        return error_set(err, ERROR_INTERNAL, "the arena is in use and cannot grow");
    if (bytes <= arena->reserved)
        return true;
    if (bytes > SIZE_MAX / 2)
        return error_set(err, ERROR_NO_MEMORY, "%zu bytes of activations are too many", bytes);
    bytes = arena_block_bytes(bytes);
    struct available left;
    arena->memory->available(&left);
    if (left.bytes < bytes && bytes - left.bytes > arena->reserved)
        return error_set(err, ERROR_NO_MEMORY,
            "%zu MiB of activations are needed and %zu MiB are available (%s)", bytes >> 20,
            (left.bytes + arena->reserved) >> 20, left.why);
    /* Release the old block before the new one is allocated, so that never both exist. */
    arena->memory->release(MEMORY_ACTIVATIONS, arena->base, arena->reserved);
    arena->base = NULL;
    arena->reserved = 0;
    arena->generation++;
    void *base;
    if (!arena->memory->alloc(MEMORY_ACTIVATIONS, bytes, &base, err))
        return false;
    arena->base = base;
    arena->reserved = bytes;
    return true;
}

void *arena_alloc(struct arena *arena, size_t bytes) {
    if (bytes > SIZE_MAX / 4)
        return NULL;
    /* Take at least ALIGNMENT bytes, so that no two live allocations have the same address. */
    bytes = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
    if (arena->planning) {
        size_t offset = arena->planned;
        if (offset + bytes > SIZE_MAX / 4)
            return NULL;
        arena->planned += bytes;
        if (arena->planned > arena->peak)
            arena->peak = arena->planned;
        return (void *)(PLAN_BASE + offset);
    }
    if (bytes > arena->reserved - arena->used)
        return NULL;
    void *p = arena->base + arena->used;
    arena->used += bytes;
    return p;
}

size_t arena_mark(const struct arena *arena) {
    return arena->planning ? arena->planned : arena->used;
}

void arena_release(struct arena *arena, size_t mark) {
    if (arena->planning)
        arena->planned = mark;
    else
        arena->used = mark;
}

void arena_plan_begin(struct arena *arena) {
    arena->planning = true;
    arena->planned = 0;
    arena->peak = 0;
}

size_t arena_plan_end(struct arena *arena) {
    arena->planning = false;
    return arena->peak;
}

bool arena_is_planning(const struct arena *arena) {
    return arena->planning;
}

size_t arena_reserved_bytes(const struct arena *arena) {
    return arena->reserved;
}

unsigned arena_generation(const struct arena *arena) {
    return arena->generation;
}
