#include "tests/cuda-emulator/overlap.h"

#include "tests/cuda-emulator/memory.h"
#include "tests/cuda-emulator/scheduler.h"

#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

static const size_t PAGE = 4096, TOGETHER = 16 * PAGE; /* bytes that are saved at a time */
static const size_t POOL = (size_t)4 << 30;            /* address space, not memory */

struct page {
    unsigned char *at;
    unsigned char *before; /* contents before the first kernel ran */
    unsigned char *after;
};

static struct {
    bool watching, hiding, open;
    unsigned char *pool;
    size_t used;
    struct page *pages; /* in memory of its own */
    size_t count;
    struct sigaction previous;
} writes;

/* Used instead of memcpy: a sanitizer's memcpy would check the guards around allocations, which lie
 * in these pages. */
static void copy(void *to, const void *from, size_t bytes) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes)::"memory");
}

static unsigned char *reserve(size_t bytes) {
    void *p = mmap(
        NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        emulator_die("no address space to keep what a kernel writes");
    return (unsigned char *)p;
}

/* Saves the pages around `at` and makes them writable. */
static void keep(unsigned char *at, unsigned char *first, size_t bytes) {
    const size_t from = (size_t)(at - first) / TOGETHER * TOGETHER;
    const size_t end = from + TOGETHER < bytes ? from + TOGETHER : bytes;
    for (size_t i = from; i < end; i += PAGE) {
        if (writes.used + 2 * PAGE > POOL)
            emulator_die("a kernel writes more than the emulator can keep");
        struct page *p = &writes.pages[writes.count++];
        p->at = first + i;
        p->before = writes.pool + writes.used;
        p->after = p->before + PAGE;
        writes.used += 2 * PAGE;
        copy(p->before, p->at, PAGE);
    }
    mprotect(first + from, end - from, PROT_READ | PROT_WRITE);
}

static void on_fault(int, siginfo_t *info, void *) {
    unsigned char *at = (unsigned char *)info->si_addr, *first;
    size_t bytes;
    const bool device = emulator_in_device_space(at) && emulator_device_pages(at, &first, &bytes);
    if (device && writes.watching)
        return keep(at, first, bytes);
    if (device && writes.hiding)
        emulator_die("device memory is written before griddepcontrol_wait");
    sigaction(SIGSEGV, &writes.previous, NULL); /* the earlier handler sees the fault again */
}

static void open_pools(void) {
    if (writes.open)
        return;
    writes.open = true;
    writes.pool = reserve(POOL);
    writes.pages = (struct page *)reserve(POOL / PAGE * sizeof(struct page));
}

static void catch_faults(void) {
    struct sigaction action = {};
    open_pools();
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &writes.previous);
}

void emulator_writes_watch(void) {
    emulator_writes_forget();
    catch_faults();
    writes.watching = true;
    emulator_device_protect(PROT_READ);
}

void emulator_writes_end(void) {
    if (!writes.watching)
        return;
    writes.watching = false;
    emulator_device_protect(PROT_READ | PROT_WRITE);
    sigaction(SIGSEGV, &writes.previous, NULL);
}

void emulator_writes_forget(void) {
    if (writes.used)
        madvise(writes.pool, writes.used, MADV_DONTNEED);
    writes.used = writes.count = 0;
}

void emulator_writes_hide(void) {
    for (size_t i = 0; i < writes.count; i++) {
        const struct page *p = &writes.pages[i];
        copy(p->after, p->at, PAGE);
        for (size_t word = 0; word < PAGE / 4; word++)
            if (((uint32_t *)p->before)[word] != ((uint32_t *)p->after)[word])
                ((uint32_t *)p->at)[word] = 0xffffffffu;
    }
    catch_faults();
    writes.hiding = true;
    emulator_device_protect(PROT_READ);
}

void emulator_writes_show(void) {
    writes.hiding = false;
    emulator_device_protect(PROT_READ | PROT_WRITE);
    sigaction(SIGSEGV, &writes.previous, NULL);
    for (size_t i = 0; i < writes.count; i++)
        copy(writes.pages[i].at, writes.pages[i].after, PAGE);
}
