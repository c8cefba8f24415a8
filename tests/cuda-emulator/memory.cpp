#include "tests/cuda-emulator/memory.h"

#include "tests/cuda-emulator/emulator.h"
#include "tests/cuda-emulator/scheduler.h"

#include <map>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

/* The device's address space. Every allocation ends at most 255 bytes before a page that cannot be
 * accessed; the rest of its last page holds guard bytes. Freed addresses are used again only when
 * the end of the space was reached. */
static const size_t SPACE = (size_t)64 << 30;
static const size_t PAGE = 4096;
static const unsigned char GUARD = 0xfe;
/* How many bytes at each end of freed memory are marked for AddressSanitizer. */
static const size_t SHADOWED = (size_t)1 << 16;

struct allocation {
    unsigned char *data;
    size_t bytes, pages; /* pages: size of its pages in bytes, from the map's key on */
};

static struct {
    unsigned char *base;
    size_t next; /* where to look for the next place */
    size_t used, total;
    std::map<unsigned char *, struct allocation> blocks; /* by address of the first page */
    const struct allocation *recent;                     /* the allocation found last, or NULL */
} device;

static size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

#if !EMULATOR_ASAN
static void report_access(int, siginfo_t *info, void *) {
    unsigned char *at = (unsigned char *)info->si_addr;
    signal(SIGSEGV, SIG_DFL);
    if (!emulator_in_device_space(at))
        emulator_die("access to %p, which is no device memory", (void *)at);
    auto after = device.blocks.upper_bound(at);
    if (after != device.blocks.begin()) {
        const struct allocation &a = std::prev(after)->second;
        if (at < a.data + a.bytes + (1 << 20))
            emulator_die("out of bounds: access %zu bytes past an allocation of %zu bytes",
                (size_t)(at - a.data) - a.bytes, a.bytes);
    }
    emulator_die("out of bounds: access to %p, which is not allocated", (void *)at);
}

static void catch_faults(void) {
    static unsigned char stack[65536];
    struct sigaction action = {};
    stack_t other = {};
    other.ss_sp = stack;
    other.ss_size = sizeof(stack);
    sigaltstack(&other, NULL);
    action.sa_sigaction = report_access;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, NULL);
}
#endif

static bool open_space(void) {
    if (device.base)
        return true;
    if (!device.total) {
        const char *text = getenv("CUDA_EMULATOR_MEMORY");
        device.total = text ? (size_t)strtoull(text, NULL, 0) : (size_t)16 << 30;
    }
    void *base = mmap(NULL, SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return false;
    device.base = (unsigned char *)base;
#if !EMULATOR_ASAN
    catch_faults();
#endif
    return true;
}

/* Finds free space of `pages` bytes, from device.next on and then from the start. Returns NULL if
 * there is none. */
static unsigned char *find_place(size_t pages) {
    for (int turn = 0; turn < 2; turn++) {
        unsigned char *at = device.base + (turn ? 0 : device.next);
        auto next = device.blocks.lower_bound(at);
        for (; at + pages + 2 * PAGE <= device.base + SPACE; ++next) {
            if (next == device.blocks.end() || next->first >= at + pages + 2 * PAGE)
                return at + PAGE;
            at = next->first + next->second.pages;
        }
    }
    return NULL;
}

/* Maps memory full of poison. Pages that were never written share the pages of one file: most of a
 * large block is never touched, and filling it would take most of the time of a test with many
 * allocations. */
static bool map_poison(unsigned char *first, size_t pages) {
    static const size_t FILE_BYTES = (size_t)4 << 20;
    static int file = -1;
    if (file < 0) {
        file = memfd_create("cuda-emulator-poison", MFD_CLOEXEC);
        void *all = file < 0 || ftruncate(file, (off_t)FILE_BYTES)
                        ? MAP_FAILED
                        : mmap(NULL, FILE_BYTES, PROT_WRITE, MAP_SHARED, file, 0);
        if (all == MAP_FAILED)
            emulator_die("no file of %zu bytes in memory", FILE_BYTES);
        memset(all, EMULATOR_POISON, FILE_BYTES);
        munmap(all, FILE_BYTES);
    }
    for (size_t done = 0; done < pages; done += FILE_BYTES) {
        const size_t part = pages - done < FILE_BYTES ? pages - done : FILE_BYTES;
        if (mmap(first + done, part, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED)
            return false;
    }
    return true;
}

void *emulator_device_alloc(size_t bytes) {
    const size_t pages = round_up(bytes ? bytes : 1, PAGE);
    if (!open_space() || bytes > device.total - device.used)
        return NULL;
    unsigned char *first = find_place(pages);
    if (!first || !map_poison(first, pages))
        return NULL;
    struct allocation a = { first + (pages - bytes) / 256 * 256, bytes, pages };
    device.next = (size_t)(first + pages - device.base);
    ASAN_UNPOISON_MEMORY_REGION(first, pages);
    memset(first, GUARD, (size_t)(a.data - first));
    memset(a.data + bytes, GUARD, (size_t)(first + pages - (a.data + bytes)));
    ASAN_POISON_MEMORY_REGION(first - PAGE, (size_t)(a.data - first) + PAGE);
    ASAN_POISON_MEMORY_REGION(a.data + bytes, (size_t)(first + pages - (a.data + bytes)) + PAGE);
    device.used += bytes;
    device.blocks[first] = a;
    return a.data;
}

static void check_guards(unsigned char *first, const struct allocation &a, const char *after) {
    ASAN_UNPOISON_MEMORY_REGION(first, a.pages);
    for (unsigned char *p = first; p < first + a.pages; p++) {
        if (p == a.data)
            p += a.bytes;
        if (p < first + a.pages && *p != GUARD)
            emulator_die("out of bounds: %s wrote %td bytes %s an allocation of %zu bytes", after,
                p < a.data ? a.data - p : p - a.data - (ptrdiff_t)a.bytes,
                p < a.data ? "before" : "past", a.bytes);
    }
    ASAN_POISON_MEMORY_REGION(first, (size_t)(a.data - first));
    ASAN_POISON_MEMORY_REGION(a.data + a.bytes, (size_t)(first + a.pages - (a.data + a.bytes)));
}

void emulator_device_check(const char *after) {
#if EMULATOR_ASAN
    (void)after; /* the sanitizer has already reported the access */
#else
    for (auto &block : device.blocks)
        check_guards(block.first, block.second, after);
#endif
}

/* Returns the allocation that contains the byte, or NULL. Tries the allocation found last first. */
static const struct allocation *find(const void *pointer) {
    unsigned char *p = (unsigned char *)pointer;
    const struct allocation *recent = device.recent;
    if (recent && p >= recent->data && p < recent->data + recent->bytes)
        return recent;
    auto after = device.blocks.upper_bound(p);
    if (after == device.blocks.begin())
        return NULL;
    const struct allocation *a = &std::prev(after)->second;
    if (p < a->data || p > a->data + a->bytes)
        return NULL;
    device.recent = a;
    return a;
}

bool emulator_device_free(void *pointer) {
    const struct allocation *a = find(pointer);
    if (!a || a->data != pointer)
        return false;
    unsigned char *first = (unsigned char *)((uintptr_t)a->data / PAGE * PAGE);
    while (!device.blocks.count(first))
        first -= PAGE;
    check_guards(first, *a, "somebody");
    device.used -= a->bytes;
    mmap(
        first, a->pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    /* AddressSanitizer describes accesses near the ends; the pages in between cannot be accessed
     * anyway. */
    const size_t end = a->pages < SHADOWED ? a->pages : SHADOWED;
    ASAN_POISON_MEMORY_REGION(first, end);
    ASAN_POISON_MEMORY_REGION(first + a->pages - end, end);
    device.blocks.erase(first);
    device.recent = NULL;
    return true;
}

bool emulator_is_device(const void *pointer, size_t bytes) {
    const struct allocation *a = find(pointer);
    return a && bytes <= (size_t)(a->data + a->bytes - (unsigned char *)pointer);
}

bool emulator_in_device_space(const void *pointer) {
    const unsigned char *p = (const unsigned char *)pointer;
    return device.base && p >= device.base && p < device.base + SPACE;
}

bool emulator_device_pages(const void *pointer, unsigned char **first, size_t *bytes) {
    unsigned char *p = (unsigned char *)pointer;
    auto after = device.blocks.upper_bound(p);
    if (after == device.blocks.begin())
        return false;
    --after;
    *first = after->first;
    *bytes = after->second.pages;
    return p < *first + *bytes;
}

void emulator_device_protect(int protection) {
    for (auto &block : device.blocks)
        mprotect(block.first, block.second.pages, protection);
}

size_t emulator_device_total(void) {
    (void)open_space();
    return device.total;
}

size_t emulator_device_free_bytes(void) {
    return emulator_device_total() - device.used;
}

void emulator_device_reset(void) {
    while (!device.blocks.empty())
        emulator_device_free(device.blocks.begin()->second.data);
}

void emulator_set_memory(size_t bytes) {
    device.total = bytes;
}

size_t emulator_memory_used(void) {
    return device.used;
}

size_t emulator_allocations(void) {
    return device.blocks.size();
}

/* ---- shared memory ---- */

static const size_t SHARED_GUARD = 1024;

static struct {
    unsigned char *memory; /* guard bytes, the memory, guard bytes */
    size_t bytes;
} shared[EMULATOR_MAX_CLUSTER];

unsigned char *emulator_shared_enter(unsigned rank, size_t bytes) {
    const size_t all = bytes + 2 * SHARED_GUARD;
    if (!shared[rank].memory || shared[rank].bytes != bytes) {
        if (shared[rank].memory)
            ASAN_UNPOISON_MEMORY_REGION(shared[rank].memory, shared[rank].bytes + 2 * SHARED_GUARD);
        free(shared[rank].memory);
        if (posix_memalign((void **)&shared[rank].memory, 1024, all))
            emulator_die("no memory for %zu bytes of shared memory", bytes);
        shared[rank].bytes = bytes;
        memset(shared[rank].memory, GUARD, all);
    }
    unsigned char *data = shared[rank].memory + SHARED_GUARD;
    ASAN_POISON_MEMORY_REGION(shared[rank].memory, all);
    ASAN_UNPOISON_MEMORY_REGION(data, bytes);
    memset(data, EMULATOR_POISON, bytes);
    return data;
}

/* From here on, a read by another block of the cluster would read the memory of a block that has
 * exited, so it is poisoned. */
void emulator_shared_leave(unsigned rank) {
    unsigned char *data = shared[rank].memory + SHARED_GUARD;
    memset(data, EMULATOR_POISON, shared[rank].bytes);
    ASAN_POISON_MEMORY_REGION(data, shared[rank].bytes);
}

const char *emulator_shared_check(unsigned rank) {
#if !EMULATOR_ASAN
    const unsigned char *memory = shared[rank].memory;
    for (size_t i = 0; i < SHARED_GUARD; i++) {
        if (memory[i] != GUARD)
            return "out of bounds: write before the";
        if (memory[SHARED_GUARD + shared[rank].bytes + i] != GUARD)
            return "out of bounds: write past the";
    }
#else
    (void)rank;
#endif
    return NULL;
}

size_t emulator_shared_bytes(void) {
    return emulator_launch_shape.shared_bytes;
}
