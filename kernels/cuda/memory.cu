/* The device's memory: a pool of large blocks for weights and plain blocks for arenas. All copies
 * go through pinned host memory, so that they do not wait for page faults. */
#include "kernels/cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Size of a block of the weights pool. A larger request gets a block of its own. */
#define BLOCK_BYTES ((size_t)64 << 20)
/* The pinned ring for uploads: the host fills one slot while the others are being copied. */
#define SLOTS 4
#define SLOT_BYTES ((size_t)4 << 20)
/* Device memory that plans must leave free. The driver takes it later, for graphs, for the code of
 * kernels at their first launch, and for their local memory. */
#define SPARE_BYTES ((size_t)256 << 20)

struct block {
    struct block *next;
    char *base; /* owned, device */
    size_t bytes, used;
    int live; /* pieces handed out and not yet released */
};

static struct {
    struct block *blocks;                  /* owned; the newest first */
    size_t weight_bytes, activation_bytes; /* read by other threads */

    char *ring; /* owned, pinned: SLOTS * SLOT_BYTES */
    cudaEvent_t ring_done[SLOTS];
    int ring_next;

    void *view; /* owned, pinned */
    size_t view_bytes;

    cudaEvent_t paces[2];
    bool paced[2];
    int pace_next;
} memory;

static void count(size_t *total, size_t bytes, bool more) {
    if (more)
        __atomic_fetch_add(total, bytes, __ATOMIC_RELAXED);
    else
        __atomic_fetch_sub(total, bytes, __ATOMIC_RELAXED);
}

static bool device_alloc(size_t bytes, void **out, struct error *err) {
    char what[64];
    snprintf(what, sizeof(what), "cudaMalloc of %zu MiB", (bytes + (1 << 20) - 1) >> 20);
    *out = NULL;
    return cuda_ok(cudaMalloc(out, bytes), what, err);
}

/* Frees device memory. Memory of a lost device is not freed; it is released when the process
 * ends. */
static void device_free(void *block) {
    if (cuda_enter(NULL))
        (void)cudaFree(block); /* waits for queued work */
}

/* Allocates page-locked host memory. The system limits it separately from other memory. */
static bool host_alloc(size_t bytes, const char *what, void **out, struct error *err) {
    *out = NULL;
    const cudaError_t status = cudaHostAlloc(out, bytes, cudaHostAllocDefault);
    if (status != cudaErrorMemoryAllocation)
        return cuda_ok(status, what, err);
    (void)cudaGetLastError();
    return error_set(err, ERROR_NO_MEMORY,
        "%s: the system gives no %zu MiB of page-locked host memory (its own, not the GPU's)", what,
        (bytes + (1 << 20) - 1) >> 20);
}

/* --- weights --- */

static size_t rounded(size_t bytes) {
    return bytes ? (bytes + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT
                 : MEMORY_ALIGNMENT;
}

bool cuda_weights_alloc(size_t bytes, void **out, struct error *err) {
    *out = NULL;
    if (!cuda_enter(err))
        return false;
    if (bytes > SIZE_MAX / 2)
        return error_set(err, ERROR_NO_MEMORY, "%zu bytes are too many", bytes);
    bytes = rounded(bytes);
    struct block *b = memory.blocks;
    while (b && b->bytes - b->used < bytes)
        b = b->next;
    if (!b) {
        void *base = NULL;
        b = (struct block *)calloc(1, sizeof(*b));
        if (!b)
            return error_set(err, ERROR_NO_MEMORY, "no memory for a block of weights");
        b->bytes = bytes > BLOCK_BYTES / 2 ? bytes : BLOCK_BYTES;
        if (!device_alloc(b->bytes, &base, err)) {
            free(b);
            return false;
        }
        b->base = (char *)base;
        b->next = memory.blocks;
        memory.blocks = b;
    }
    *out = b->base + b->used;
    b->used += bytes;
    b->live++;
    count(&memory.weight_bytes, bytes, true);
    return true;
}

/* A block is returned to the device when its last piece is released. */
void cuda_weights_release(void *piece, size_t bytes) {
    if (!piece)
        return;
    for (struct block **link = &memory.blocks; *link; link = &(*link)->next) {
        struct block *b = *link;
        if ((char *)piece < b->base || (char *)piece >= b->base + b->bytes)
            continue;
        count(&memory.weight_bytes, rounded(bytes), false);
        if (--b->live == 0) {
            *link = b->next;
            device_free(b->base);
            free(b);
        }
        return;
    }
}

/* --- either pool --- */

static bool pool_alloc(enum memory_pool pool, size_t bytes, void **out, struct error *err) {
    if (pool == MEMORY_WEIGHTS)
        return cuda_weights_alloc(bytes, out, err);
    *out = NULL;
    if (!cuda_enter(err) || !device_alloc(bytes, out, err))
        return false;
    count(&memory.activation_bytes, bytes, true);
    return true;
}

static void pool_release(enum memory_pool pool, void *block, size_t bytes) {
    if (pool == MEMORY_WEIGHTS) {
        cuda_weights_release(block, bytes);
    } else if (block) {
        device_free(block);
        count(&memory.activation_bytes, bytes, false);
    }
}

static size_t pool_used(enum memory_pool pool) {
    return __atomic_load_n(
        pool == MEMORY_WEIGHTS ? &memory.weight_bytes : &memory.activation_bytes, __ATOMIC_RELAXED);
}

static void pool_available(struct available *out) {
    size_t free_bytes = 0, total = 0;
    out->bytes = SIZE_MAX;
    out->why[0] = 0;
    if (!cuda_enter(NULL) || cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) {
        (void)cudaGetLastError();
        return;
    }
    out->bytes = free_bytes > SPARE_BYTES ? free_bytes - SPARE_BYTES : 0;
    snprintf(out->why, sizeof(out->why),
        "the device has %zu MiB free, the driver needs %zu of them", free_bytes >> 20,
        SPARE_BYTES >> 20);
}

/* --- copies --- */

static bool ring_open(struct error *err) {
    if (memory.ring)
        return true;
    for (int i = 0; i < SLOTS; i++)
        if (!memory.ring_done[i] &&
            !cuda_ok(cudaEventCreateWithFlags(&memory.ring_done[i], cudaEventDisableTiming),
                "making an event", err))
            return false;
    void *ring = NULL;
    if (!host_alloc(SLOTS * SLOT_BYTES, "copying to the GPU", &ring, err))
        return false;
    memory.ring = (char *)ring;
    return true;
}

static bool not_while_recording(const char *what, struct error *err) {
    return !cuda_is_recording() ||
           error_set(err, ERROR_INTERNAL, "%s while operations are being recorded", what);
}

bool cuda_upload(void *to, const void *from, size_t bytes, struct error *err) {
    if (!cuda_enter(err) || !not_while_recording("an upload", err) || !ring_open(err))
        return false;
    cuda_forbid_overlap();
    for (size_t done = 0; done < bytes;) {
        size_t piece = bytes - done < SLOT_BYTES ? bytes - done : SLOT_BYTES;
        int slot = memory.ring_next;
        char *pinned = memory.ring + (size_t)slot * SLOT_BYTES;
        /* Wait for the last copy from this slot. An event that was never recorded counts as
         * done. */
        if (!cuda_ok(cudaEventSynchronize(memory.ring_done[slot]), "waiting for a copy", err))
            return false;
        memory_copy(pinned, (const char *)from + done, piece);
        if (!cuda_ok(cudaMemcpyAsync(
                         (char *)to + done, pinned, piece, cudaMemcpyHostToDevice, cuda_stream()),
                "a copy to the GPU", err) ||
            !cuda_ok(
                cudaEventRecord(memory.ring_done[slot], cuda_stream()), "recording an event", err))
            return false;
        memory.ring_next = (slot + 1) % SLOTS;
        done += piece;
    }
    return true;
}

static bool view_reserve(size_t bytes, struct error *err) {
    if (bytes <= memory.view_bytes)
        return true;
    if (memory.view)
        (void)cudaFreeHost(memory.view);
    memory.view = NULL;
    memory.view_bytes = 0;
    if (!host_alloc(bytes, "reading back from the GPU", &memory.view, err))
        return false;
    memory.view_bytes = bytes;
    return true;
}

static bool memory_synchronize(struct error *err) {
    return cuda_enter(err) && not_while_recording("waiting", err) &&
           cuda_ok(cudaStreamSynchronize(cuda_stream()), "waiting for the GPU", err);
}

static const void *memory_view(const void *from, size_t bytes, struct error *err) {
    cuda_forbid_overlap();
    if (!cuda_enter(err) || !not_while_recording("reading back", err) ||
        !view_reserve(bytes, err) ||
        !cuda_ok(cudaMemcpyAsync(memory.view, from, bytes, cudaMemcpyDeviceToHost, cuda_stream()),
            "a copy from the GPU", err) ||
        !memory_synchronize(err))
        return NULL;
    return memory.view;
}

static bool memory_pace(struct error *err) {
    if (!cuda_enter(err) || !not_while_recording("waiting", err))
        return false;
    int now = memory.pace_next, before = 1 - now;
    if (!memory.paces[now] &&
        !cuda_ok(cudaEventCreateWithFlags(&memory.paces[now], cudaEventDisableTiming),
            "making an event", err))
        return false;
    if (!cuda_ok(cudaEventRecord(memory.paces[now], cuda_stream()), "recording an event", err) ||
        (memory.paced[before] &&
            !cuda_ok(cudaEventSynchronize(memory.paces[before]), "waiting for a step", err)))
        return false;
    memory.paced[now] = true;
    memory.pace_next = before;
    return true;
}

static bool memory_copy_within(void *to, const void *from, size_t bytes, struct error *err) {
    cuda_forbid_overlap();
    return cuda_enter(err) &&
           cuda_ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream()),
               "a copy on the GPU", err);
}

static bool memory_zero(void *to, size_t bytes, struct error *err) {
    cuda_forbid_overlap();
    return cuda_enter(err) &&
           cuda_ok(cudaMemsetAsync(to, 0, bytes, cuda_stream()), "clearing memory of the GPU", err);
}

const struct device_memory cuda_memory = {
    pool_alloc,
    pool_release,
    cuda_upload,
    memory_view,
    memory_pace,
    memory_synchronize,
    pool_available,
    pool_used,
    memory_copy_within,
    memory_zero,
};
