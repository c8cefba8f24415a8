/* The memory of a device as the host sees it: two pools, copies in and out, and waiting.
 *
 * A table (kernels/kernels.h) names the memory that its entries read and write. On the CPU that is
 * ordinary memory, every operation is finished when its call returns, and waiting costs nothing. On
 * an accelerator calls only queue work, in order, and the host fetches results with `view`.
 *
 * One thread at a time, except `available` and `used`, which any thread may call.
 */
#ifndef KERNELS_MEMORY_H
#define KERNELS_MEMORY_H

#include "kernels/available.h"

enum memory_pool {
    MEMORY_WEIGHTS,     /* many blocks of any size, loaded once */
    MEMORY_ACTIVATIONS, /* few large blocks: arenas */
};

/* The alignment of every block: at least the widest load of any kernel. */
#define MEMORY_ALIGNMENT 256u

struct device_memory {
    /* Allocates at least `bytes` bytes, contents undefined. ERROR_NO_MEMORY if that is refused;
     * everything else stays usable. Never called between the steps of a picture. */
    bool (*alloc)(enum memory_pool pool, size_t bytes, void **out, struct error *err);
    /* Frees a block. `bytes` as given to alloc; the block may be NULL. Queued work may still use
     * it. */
    void (*release)(enum memory_pool pool, void *block, size_t bytes);

    /* Copies from host to device, in order with the queued work. `from` may change afterwards. */
    bool (*upload)(void *to, const void *from, size_t bytes, struct error *err);
    /* Waits, and returns device memory as the host can read it until the next view or upload. NULL
     * with an error if the device failed. */
    const void *(*view)(const void *from, size_t bytes, struct error *err);

    /* Waits for the work that was queued before the last call of pace. Called once a step, it lets
     * the host run at most one step ahead of the device. */
    bool (*pace)(struct error *err);
    /* Waits for all queued work; reports errors of earlier work. */
    bool (*synchronize)(struct error *err);

    /* How much alloc could still give. May be slow. */
    void (*available)(struct available *out);
    /* Bytes in use by a pool of this process; only differences are meaningful. The host counts no
     * activations: 0. */
    size_t (*used)(enum memory_pool pool);

    /* Copies or zeroes within the device, in order with the queued work. The blocks do not
     * overlap. */
    bool (*copy)(void *to, const void *from, size_t bytes, struct error *err);
    bool (*zero)(void *to, size_t bytes, struct error *err);
};

/* Ordinary memory. Activations use huge pages where the system grants them. */
extern const struct device_memory host_memory;

/* memcpy, by a few threads if the block is large. One thread alone, which also takes the page
 * faults of a mapped file, does not keep a link to a device busy. */
void memory_copy(void *to, const void *from, size_t bytes);

#endif
