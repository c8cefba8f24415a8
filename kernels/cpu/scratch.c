#include "kernels/cpu/scratch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct block {
    void *data;
    size_t bytes;
};

struct blocks {
    struct block inner, outer;
};

/* `lent`: the arena that scratch comes from, or NULL. `taken`: the blocks taken since it was
 * lent. */
static _Thread_local struct arena *lent;
static _Thread_local struct blocks taken;

static pthread_key_t own_key;
static bool has_key;

static void own_free(void *own) {
    free(((struct blocks *)own)->inner.data);
    free(((struct blocks *)own)->outer.data);
    free(own);
}

static void make_key(void) {
    has_key = pthread_key_create(&own_key, own_free) == 0;
}

/* Returns the thread's own blocks, or NULL if there is no memory for them. */
static struct blocks *own_blocks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_key);
    struct blocks *own = has_key ? pthread_getspecific(own_key) : NULL;
    if (own || !has_key)
        return own;
    own = calloc(1, sizeof(*own));
    if (own && pthread_setspecific(own_key, own) != 0) {
        free(own);
        own = NULL;
    }
    return own;
}

static void *take_own(struct block *block, size_t bytes, struct error *err) {
    if (block->bytes < bytes) {
        free(block->data);
        block->data = aligned_alloc(MEMORY_ALIGNMENT, bytes);
        block->bytes = block->data ? bytes : 0;
    }
    if (!block->data)
        error_set(err, ERROR_NO_MEMORY, "no memory for %zu bytes of scratch", bytes);
    return block->data;
}

static void *take_lent(struct block *block, size_t bytes, struct error *err) {
    if (block->bytes >= bytes)
        return block->data;
    block->data = arena_alloc(lent, bytes);
    block->bytes = block->data ? bytes : 0;
    if (!block->data)
        error_set(err, ERROR_NO_MEMORY,
            "%zu bytes of scratch do not fit in the %zu bytes of activations", bytes,
            arena_reserved_bytes(lent));
    return block->data;
}

void cpu_lend(struct arena *arena) {
    lent = arena;
    memset(&taken, 0, sizeof(taken));
}

bool cpu_plans(void) {
    return lent && arena_is_planning(lent);
}

static void *take(bool outer, size_t bytes, struct error *err) {
    bytes = bytes ? (bytes + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT
                  : MEMORY_ALIGNMENT;
    if (lent)
        return take_lent(outer ? &taken.outer : &taken.inner, bytes, err);
    struct blocks *own = own_blocks();
    if (own)
        return take_own(outer ? &own->outer : &own->inner, bytes, err);
    error_set(err, ERROR_NO_MEMORY, "no memory to keep scratch with");
    return NULL;
}

void *cpu_scratch(size_t bytes, struct error *err) {
    return take(false, bytes, err);
}

void *cpu_scratch_outer(size_t bytes, struct error *err) {
    return take(true, bytes, err);
}
