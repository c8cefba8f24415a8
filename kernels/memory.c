#include "kernels/memory.h"

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define COPY_THREADS 4
#define COPY_PIECE_BYTES ((size_t)256 << 10) /* takes far longer to copy than waking a thread */

void memory_copy(void *to, const void *from, size_t bytes) {
    const int64_t pieces = (int64_t)((bytes + COPY_PIECE_BYTES - 1) / COPY_PIECE_BYTES);
    /* Only COPY_THREADS threads of the team get work, one run of pieces each. Making a smaller team
     * for this would end the team's other threads. */
    const int64_t run = (pieces + COPY_THREADS - 1) / COPY_THREADS;
    if (pieces < 2) {
        memcpy(to, from, bytes);
        return;
    }
#pragma omp parallel for schedule(static, run)
    for (int64_t i = 0; i < pieces; i++) {
        const size_t at = (size_t)i * COPY_PIECE_BYTES, left = bytes - at;
        memcpy((char *)to + at, (const char *)from + at,
            left < COPY_PIECE_BYTES ? left : COPY_PIECE_BYTES);
    }
}

static bool host_alloc(enum memory_pool pool, size_t bytes, void **out, struct error *err) {
    *out = NULL;
    if (bytes > SIZE_MAX / 2)
        return error_set(err, ERROR_NO_MEMORY, "%zu bytes are too many", bytes);
    if (pool == MEMORY_WEIGHTS) {
        *out = aligned_alloc(
            MEMORY_ALIGNMENT, (bytes + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT);
        return *out || error_set(err, ERROR_NO_MEMORY, "the system refused %zu bytes", bytes);
    }
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return error_set(
            err, ERROR_NO_MEMORY, "the system refused %zu MiB for activations", bytes >> 20);
    /* Huge pages mean fewer page faults in the first step. If the system refuses them, nothing is
     * lost. */
    (void)madvise(block, bytes, MADV_HUGEPAGE);
    *out = block;
    return true;
}

static void host_release(enum memory_pool pool, void *block, size_t bytes) {
    if (pool == MEMORY_WEIGHTS)
        free(block);
    else if (block)
        munmap(block, bytes);
}

static bool host_upload(void *to, const void *from, size_t bytes, struct error *err) {
    (void)err;
    memcpy(to, from, bytes);
    return true;
}

static const void *host_view(const void *from, size_t bytes, struct error *err) {
    (void)bytes;
    (void)err;
    return from;
}

static bool nothing_to_wait_for(struct error *err) {
    (void)err;
    return true;
}

static void host_available(struct available *out) {
    available_read("", out);
}

/* Returns the bytes on the heap, whichever code allocated them. Weights are on the heap.
 * Activations are not, so they are not counted. */
static size_t host_used(enum memory_pool pool) {
    if (pool != MEMORY_WEIGHTS)
        return 0;
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static bool host_copy(void *to, const void *from, size_t bytes, struct error *err) {
    (void)err;
    memory_copy(to, from, bytes);
    return true;
}

static bool host_zero(void *to, size_t bytes, struct error *err) {
    (void)err;
    memset(to, 0, bytes);
    return true;
}

const struct device_memory host_memory = {
    .alloc = host_alloc,
    .release = host_release,
    .upload = host_upload,
    .view = host_view,
    .pace = nothing_to_wait_for,
    .synchronize = nothing_to_wait_for,
    .available = host_available,
    .used = host_used,
    .copy = host_copy,
    .zero = host_zero,
};
