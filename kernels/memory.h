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
    /* Allocates at least `bytes` bytes, contents undefined. Fails with ERROR_NO_MEMORY if they are
     * refused; everything else stays usable. Never called between the steps of a picture. */
    bool (*alloc)(enum memory_pool pool, size_t bytes, void **out, struct error *err);
    /* Frees a block, or nothing if it is NULL. `bytes` is the number that was given to alloc.
     * Queued work may still use the block. */
    void (*release)(enum memory_pool pool, void *block, size_t bytes);

    /* Copies from host to device, in order with the queued work. `from` may change afterwards. */
    bool (*upload)(void *to, const void *from, size_t bytes, struct error *err);
    /* Waits, then returns the contents of device memory for the host to read, until the next view
     * or upload. NULL with an error if the device failed. */
    const void *(*view)(const void *from, size_t bytes, struct error *err);

    /* Waits for the work that was queued before the previous call of pace. Called once a step, it
     * lets the host run at most one step ahead of the device. */
    bool (*pace)(struct error *err);
    /* Waits for all queued work; reports errors of earlier work. */
    bool (*synchronize)(struct error *err);

    /* How much alloc could still give. May be slow. */
    void (*available)(struct available *out);
    /* Bytes in use by a pool of this process; only differences are meaningful. Always 0 for
     * activations in host memory. */
    size_t (*used)(enum memory_pool pool);

    /* Copies or zeroes within the device, in order with the queued work. The blocks do not
     * overlap. */
    bool (*copy)(void *to, const void *from, size_t bytes, struct error *err);
    bool (*zero)(void *to, size_t bytes, struct error *err);
};

/* Ordinary host memory. Activations use huge pages if the system grants them. */
extern const struct device_memory host_memory;

/* Does what memcpy does, with a few threads if the block is large. A single thread, which also
 * takes the page faults of a mapped file, would be slower than the link to a device. */
void memory_copy(void *to, const void *from, size_t bytes);

#endif
