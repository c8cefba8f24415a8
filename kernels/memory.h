/* The memory of a device as the host sees it: two pools, copies in and out, and waiting.
 *
 * A table (kernels/kernels.h) names the memory that its entries read and write. On the CPU that is
 * ordinary memory, every operation is done when its call returns, and waiting costs nothing. On an
 * accelerator calls only queue work, in order; what the host reads has to be fetched with `view`.
 *
 * One thread at a time, but for `available` and `used`, which any thread may call.
 */
#ifndef KERNELS_MEMORY_H
#define KERNELS_MEMORY_H

#include "kernels/available.h"

enum memory_pool {
    MEMORY_WEIGHTS,     /* many blocks of any size, loaded once */
    MEMORY_ACTIVATIONS, /* few large blocks: arenas */
};

/* What every block is aligned to: the widest that any kernel loads at once, and more. */
#define MEMORY_ALIGNMENT 256u

struct device_memory {
    /* At least `bytes` bytes; contents undefined. ERROR_NO_MEMORY if that is refused, and nothing
     * else is worse for it. Never between the steps of a picture. */
    bool (*alloc)(enum memory_pool pool, size_t bytes, void **out, struct error *err);
    /* `bytes` as given to alloc. NULL is fine. Work that is queued may still use the block. */
    void (*release)(enum memory_pool pool, void *block, size_t bytes);

    /* Host to device, in order with the work that is queued. `from` may change afterwards. */
    bool (*upload)(void *to, const void *from, size_t bytes, struct error *err);
    /* Waits, and returns device memory as the host can read it, until the next call of view or
     * upload; NULL and an error if the device failed. */
    const void *(*view)(const void *from, size_t bytes, struct error *err);

    /* Waits until the work is done that was queued before the last call of pace. Called once a
     * step, it lets the host run one step ahead of the device and no further. */
    bool (*pace)(struct error *err);
    /* Waits until all that was queued is done; errors of earlier work come out here. */
    bool (*synchronize)(struct error *err);

    /* What alloc could still give. May be slow. */
    void (*available)(struct available *out);
    /* Bytes in use by a pool of this process, for differences. */
    size_t (*used)(enum memory_pool pool);

    /* Within the device, in order with the work that is queued; the blocks do not overlap. */
    bool (*copy)(void *to, const void *from, size_t bytes, struct error *err);
    bool (*zero)(void *to, size_t bytes, struct error *err);
};

/* Ordinary memory. Activations lie in huge pages where the system gives them. */
extern const struct device_memory host_memory;

/* memcpy by a few threads if it is large: one alone, which also meets the page faults of a mapped
 * file, does not keep a link to a device busy. */
void memory_copy(void *to, const void *from, size_t bytes);

#endif
