#include "tests/cuda-emulator/scheduler.h"

#include "tests/cuda-emulator/emulator.h"
#include "tests/cuda-emulator/memory.h"
#include "tests/cuda-emulator/overlap.h"
#include "tests/cuda-emulator/twins.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <vector>

#ifndef __x86_64__
#error "the switch between fibers is written for x86-64"
#endif

#if EMULATOR_ASAN
#include <sanitizer/common_interface_defs.h>
/* Instrumented code reads this at the start of each function. It is the option of this name. */
extern "C" int __asan_option_detect_stack_use_after_return;
static const size_t STACK_BYTES = 256 << 10;
#else
static const size_t STACK_BYTES = 64 << 10;
#endif
static const size_t STACK_GUARD = 4096;

/* A place at which to continue: a stack pointer, and what AddressSanitizer must know about the
 * stack. */
struct context {
    void *sp;
    void *fake_stack;
    const void *bottom;
    size_t size;
};

/* Fibers and their stacks are reused for the next block: a fiber that has finished waits in its
 * loop. */
struct fiber {
    struct context context;
    struct emulator_thread thread;
    bool started;
};

/* A warp operation at which some lanes of its mask have not arrived yet. */
struct operation {
    unsigned mask, arrived;
    int lane; /* the lane that arrived first; its operation counts */
};

struct warp {
    unsigned char ready[32]; /* lanes */
    int ready_count;
    int place;     /* in `busy`, or -1 */
    unsigned live; /* lanes that exist and have not exited */
    int operation_count;
    struct operation operations[32]; /* with disjoint masks */
};

struct emulator_thread *emulator_current;
struct emulator_shape emulator_launch_shape;
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

struct machine {
    std::vector<struct fiber *> fibers; /* by slot; this run uses only the first `threads` */
    std::vector<struct warp> warps;
    std::vector<int> busy;    /* warps with ready threads */
    std::vector<int> polling; /* slots */
    std::vector<std::function<void()>> later;
    struct emulator_block blocks[EMULATOR_MAX_CLUSTER];
    unsigned block_count;
    int threads, threads_per_block, warps_per_block, live;
    int warp_ahead; /* the warp that runs as long as it can, or -1 */
    bool keep_ahead;
    bool staged; /* the writes of the previous kernel are hidden */
    bool fake_stacks;
    struct context main;
    const std::function<void()> *kernel;
    const char *name;
    uint64_t random;
    uint64_t cluster_generation;
    int cluster_arrived;
};

/* Never destroyed: the fibers stay until the process ends. */
static struct machine &run = *new machine();

extern "C" void emulator_switch(void **from, void *to);
/* Saves the registers that the ABI requires a function to preserve, switches stacks, and returns on
 * the other stack. */
asm(".text\n"
    ".globl emulator_switch\n"
    ".type emulator_switch, @function\n"
    "emulator_switch:\n"
    "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp, (%rdi)\n"
    "    mov %rsi, %rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
    "    ret\n"
    ".size emulator_switch, . - emulator_switch\n");

unsigned emulator_random(unsigned n) {
    run.random ^= run.random << 13;
    run.random ^= run.random >> 7;
    run.random ^= run.random << 17;
    return (unsigned)(((run.random >> 32) * n) >> 32);
}

static void print_place(const struct emulator_thread *t) {
    fprintf(stderr, "block (%u,%u,%u) thread (%u,%u,%u)", t->block->index.x, t->block->index.y,
        t->block->index.z, t->index.x, t->index.y, t->index.z);
}

static void print_kernel(void) {
    fprintf(stderr, " [kernel %s, grid %ux%ux%u, block %ux%ux%u, seed %llu]\n",
        run.name ? run.name : "?", emulator_launch_shape.grid.x, emulator_launch_shape.grid.y,
        emulator_launch_shape.grid.z, emulator_launch_shape.block.x, emulator_launch_shape.block.y,
        emulator_launch_shape.block.z, (unsigned long long)emulator_seed());
}

void emulator_die(const char *format, ...) {
    va_list list;
    fflush(stdout);
    fprintf(stderr, "cuda-emulator: ");
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    if (emulator_current) {
        fprintf(stderr, ": ");
        print_place(emulator_current);
    }
    if (run.kernel)
        print_kernel();
    else
        fprintf(stderr, "\n");
    fflush(stderr);
    abort();
}

/* Prints every place where threads wait once, with the first thread that waits there. */
[[noreturn]] static void report_deadlock(void) {
    fflush(stdout);
    fprintf(stderr, "cuda-emulator: deadlock: no thread can go on\n");
    std::vector<bool> told(run.threads);
    for (int i = 0; i < run.threads; i++) {
        const struct emulator_thread *t = &run.fibers[i]->thread;
        if (told[i] || t->state == EMULATOR_EXITED)
            continue;
        int count = 0;
        for (int j = i; j < run.threads; j++) {
            const struct emulator_thread *u = &run.fibers[j]->thread;
            if (u->state == t->state && u->line == t->line && u->file == t->file) {
                told[j] = true;
                count++;
            }
        }
        fprintf(stderr, "    %d threads wait in %s at %s:%d, the first is ", count, t->waits_for,
            t->file ? t->file : "?", t->line);
        print_place(t);
        fprintf(stderr, "\n");
    }
    print_kernel();
    fflush(stderr);
    abort();
}

static void switch_context(struct context *from, struct context *to) {
#if EMULATOR_ASAN
    /* Without fake stacks (detect_stack_use_after_return=0) the sanitizer would use the stack's
     * address only to name it in a report. Telling it takes longer than the switch itself. */
    if (run.fake_stacks) {
        __sanitizer_start_switch_fiber(&from->fake_stack, to->bottom, to->size);
        emulator_switch(&from->sp, to->sp);
        __sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
        return;
    }
#endif
    emulator_switch(&from->sp, to->sp);
}

static struct context *context_of(struct emulator_thread *t) {
    return t ? &run.fibers[t->slot]->context : &run.main;
}

static void make_ready(struct emulator_thread *t) {
    const int index = t->slot / 32;
    struct warp *w = &run.warps[index];
    t->state = EMULATOR_READY;
    w->ready[w->ready_count++] = (unsigned char)t->lane;
    if (w->ready_count == 1) {
        w->place = (int)run.busy.size();
        run.busy.push_back(index);
    }
}

/* Chooses a ready thread. Usually it is one of the same warp, whose stacks are in the cache. */
static struct emulator_thread *take_ready(const struct emulator_thread *from) {
    int index = run.keep_ahead ? run.warp_ahead : from ? from->slot / 32 : -1;
    if (index < 0 || !run.warps[index].ready_count || (!run.keep_ahead && emulator_random(32) == 0))
        index = run.busy[emulator_random((unsigned)run.busy.size())];
    run.warp_ahead = index;
    struct warp *w = &run.warps[index];
    const unsigned i = emulator_random((unsigned)w->ready_count);
    const int lane = w->ready[i];
    w->ready[i] = w->ready[--w->ready_count];
    if (!w->ready_count) {
        const int last = run.busy.back();
        run.busy[w->place] = last;
        run.warps[last].place = w->place;
        run.busy.pop_back();
        w->place = -1;
    }
    return &run.fibers[index * 32 + lane]->thread;
}

static void do_one_later(void) {
    const unsigned i = emulator_random((unsigned)run.later.size());
    std::function<void()> work = std::move(run.later[i]);
    run.later[i] = std::move(run.later.back());
    run.later.pop_back();
    work();
}

static bool poll(void) {
    bool any = false;
    for (size_t i = 0; i < run.polling.size();) {
        struct emulator_thread *t = &run.fibers[run.polling[i]]->thread;
        if (t->condition(t->argument)) {
            make_ready(t);
            run.polling[i] = run.polling.back();
            run.polling.pop_back();
            any = true;
        } else {
            i++;
        }
    }
    return any;
}

bool emulator_is_staged(void) {
    return run.staged;
}

/* Ends the stage: the previous kernel's writes become visible. */
static void end_stage(void) {
    run.staged = false;
    emulator_writes_show();
    if (emulator_launch_shape.watched)
        emulator_writes_watch();
}

/* Switches from the current thread, whose state is already set, to another one. Returns when the
 * current thread is chosen again. */
static void run_another(void) {
    struct emulator_thread *from = emulator_current;
    for (;;) {
        if (!run.later.empty() && emulator_random(16) == 0)
            do_one_later();
        if (!run.polling.empty() && emulator_random(16) == 0)
            poll();
        if (!run.busy.empty())
            break;
        if (poll())
            continue;
        if (!run.later.empty()) {
            do_one_later();
            continue;
        }
        if (run.staged) {
            end_stage();
            continue;
        }
        if (run.live)
            report_deadlock();
        emulator_current = NULL;
        switch_context(context_of(from), &run.main);
        return;
    }
    struct emulator_thread *to = take_ready(from);
    emulator_current = to;
    threadIdx = to->index;
    blockIdx = to->block->index;
    if (to != from)
        switch_context(context_of(from), context_of(to));
}

void emulator_yield(void) {
    make_ready(emulator_current);
    run_another();
}

static void set_waiting(enum emulator_state state, const char *what, const char *file, int line) {
    struct emulator_thread *t = emulator_current;
    t->state = state;
    t->waits_for = what;
    t->file = file;
    t->line = line;
}

void emulator_wait_for(
    emulator_condition condition, void *argument, const char *what, const char *file, int line) {
    if (condition(argument))
        return;
    set_waiting(EMULATOR_POLLING, what, file, line);
    emulator_current->condition = condition;
    emulator_current->argument = argument;
    run.polling.push_back(emulator_current->slot);
    run_another();
}

void emulator_later(std::function<void()> work) {
    run.later.push_back(std::move(work));
}

/* ---- barriers of a block ---- */

static void release_if_complete(struct emulator_block *block, int id) {
    struct emulator_barrier *b = &block->barriers[id];
    const int expected = b->expected < 0 ? block->live : b->expected;
    if (!b->arrived || b->arrived < expected)
        return;
    const int first = (int)block->rank * run.warps_per_block * 32;
    for (int i = first; i < first + run.warps_per_block * 32 && i < run.threads; i++) {
        struct emulator_thread *t = &run.fibers[i]->thread;
        if (t->state == EMULATOR_AT_BARRIER && t->barrier == id)
            make_ready(t);
    }
    b->result = b->count;
    b->count = b->arrived = 0;
    b->generation++;
}

static void arrive(int id, int threads, const char *what, const char *file, int line) {
    struct emulator_block *block = emulator_current->block;
    if (id < 0 || id >= EMULATOR_NAMED_BARRIERS)
        emulator_die("%s of barrier %d, there are %d", what, id, EMULATOR_NAMED_BARRIERS);
    if (threads >= 0 && (threads % 32 || threads == 0))
        emulator_die("%s for %d threads, not whole warps", what, threads);
    struct emulator_barrier *b = &block->barriers[id];
    if (b->arrived && b->expected != threads)
        emulator_die("%s: barrier %d is for %d threads and for %d", what, id, b->expected, threads);
    /* A named barrier may join different places in the source; __syncthreads must be at the same
     * place for all threads. */
    if (b->arrived && threads < 0 &&
        (b->line != line || (b->file != file && strcmp(b->file, file))))
        emulator_die("divergent barrier: %s at %s:%d, but other threads wait at %s:%d", what, file,
            line, b->file, b->line);
    b->expected = threads;
    b->file = file;
    b->line = line;
    b->arrived++;
}

void emulator_block_arrive(int id, int threads, const char *what, const char *file, int line) {
    arrive(id, threads, what, file, line);
    release_if_complete(emulator_current->block, id);
}

void emulator_block_barrier(int id, int threads, const char *what, const char *file, int line) {
    arrive(id, threads, what, file, line);
    set_waiting(EMULATOR_AT_BARRIER, what, file, line);
    emulator_current->barrier = id;
    emulator_current->parted = false;
    release_if_complete(emulator_current->block, id);
    run_another();
}

int emulator_block_count(int value, const char *what, const char *file, int line) {
    struct emulator_barrier *b = &emulator_current->block->barriers[0];
    b->count += value;
    emulator_block_barrier(0, -1, what, file, line);
    /* The next barrier cannot complete before this thread arrives at it, so the result is still
     * valid. */
    return b->result;
}

/* ---- the barrier of a cluster: arrive and wait apart ---- */

static void release_cluster(void) {
    if (!run.cluster_arrived || run.cluster_arrived < run.live)
        return;
    run.cluster_arrived = 0;
    run.cluster_generation++;
    for (int i = 0; i < run.threads; i++) {
        struct emulator_thread *t = &run.fibers[i]->thread;
        if (t->state == EMULATOR_AT_CLUSTER_BARRIER && t->cluster_phase <= run.cluster_generation)
            make_ready(t);
    }
}

void emulator_cluster_arrive(void) {
    struct emulator_thread *t = emulator_current;
    if (t->cluster_phase > run.cluster_generation)
        emulator_die("cluster_arrive twice without cluster_wait");
    t->cluster_phase = run.cluster_generation + 1;
    run.cluster_arrived++;
    release_cluster();
}

void emulator_cluster_wait(const char *file, int line) {
    struct emulator_thread *t = emulator_current;
    if (t->cluster_phase <= run.cluster_generation)
        return;
    set_waiting(EMULATOR_AT_CLUSTER_BARRIER, "cluster_wait", file, line);
    run_another();
}

struct emulator_block *emulator_cluster_block(unsigned rank) {
    return rank < run.block_count ? &run.blocks[rank] : NULL;
}

unsigned emulator_cluster_blocks(void) {
    return run.block_count;
}

bool emulator_cluster_has_met(void) {
    return run.cluster_generation > 0;
}

/* ---- warps ---- */

unsigned emulator_live_lanes(void) {
    return run.warps[emulator_current->slot / 32].live;
}

[[noreturn]] static void die_of_mixed_lanes(const struct emulator_thread *other) {
    const struct emulator_thread *me = emulator_current;
    emulator_die("lanes of one warp in different operations: lane %d in %s mask %08x at %s:%d, "
                 "lane %d in %s mask %08x at %s:%d",
        me->lane, me->waits_for, me->mask, me->file, me->line, other->lane, other->waits_for,
        other->mask, other->file, other->line);
}

/* Finds the operation that the current thread takes part in, or adds one, and records its
 * arrival. */
static struct operation *join_operation(struct warp *w) {
    const struct emulator_thread *me = emulator_current;
    const unsigned mine = 1u << me->lane;
    for (int i = 0; i < w->operation_count; i++) {
        struct operation *o = &w->operations[i];
        const struct emulator_thread *first = &run.fibers[me->slot - me->lane + o->lane]->thread;
        const bool same = o->mask == me->mask && first->function == me->function &&
                          first->line == me->line &&
                          (first->file == me->file || !strcmp(first->file, me->file));
        if (same) {
            o->arrived |= mine;
            return o;
        }
        /* This lane and another one wait for each other in different operations, so both would wait
         * for ever. */
        if (o->mask & mine && o->arrived & me->mask)
            die_of_mixed_lanes(first);
    }
    struct operation *o = &w->operations[w->operation_count++];
    *o = { me->mask, mine, me->lane };
    return o;
}

void emulator_warp(emulator_warp_function function, const char *what, unsigned mask, void *argument,
    const char *file, int line) {
    struct emulator_thread *me = emulator_current;
    struct warp *w = &run.warps[me->slot / 32];
    const int first = me->slot - me->lane;
    if (!(mask >> me->lane & 1))
        emulator_die("%s at %s:%d: mask %08x does not name lane %d itself", what, file, line, mask,
            me->lane);
    if (mask & ~w->live)
        emulator_die("%s at %s:%d names lane %d, which has exited or does not exist", what, file,
            line, __builtin_ctz(mask & ~w->live));
    set_waiting(EMULATOR_IN_WARP_OPERATION, what, file, line);
    me->mask = mask;
    me->function = function;
    me->argument = argument;
    struct operation *o = join_operation(w);
    if (o->arrived == mask) {
        void *arguments[32];
        *o = w->operations[--w->operation_count];
        for (unsigned left = mask; left; left &= left - 1) {
            const int i = __builtin_ctz(left);
            arguments[i] = run.fibers[first + i]->thread.argument;
        }
        if (function)
            function(arguments, mask);
        for (unsigned left = mask; left; left &= left - 1) {
            struct emulator_thread *t = &run.fibers[first + __builtin_ctz(left)]->thread;
            t->parted = t->parted && mask != 0xffffffffu;
            make_ready(t);
        }
    }
    run_another();
}

/* ---- the life of a fiber ---- */

/* At the end of a block, no barrier may have arrivals that no thread waits for. */
static void barriers_leave(const struct emulator_block *block) {
    for (int id = 1; id < EMULATOR_NAMED_BARRIERS; id++) {
        const struct emulator_barrier *b = &block->barriers[id];
        if (b->arrived)
            emulator_die("exit with %d threads arrived at barrier %d, for which nobody waits, at "
                         "%s:%d",
                b->arrived, id, b->file, b->line);
    }
}

static void leave(struct emulator_thread *t) {
    t->state = EMULATOR_EXITED;
    t->block->live--;
    run.live--;
    if (t->cluster_phase > run.cluster_generation) /* a thread that has exited counts as arrived */
        run.cluster_arrived--;
    emulator_copies_exit(t);
    struct warp *w = &run.warps[t->slot / 32];
    w->live &= ~(1u << t->lane);
    for (int i = 0; i < w->operation_count; i++)
        if (w->operations[i].mask >> t->lane & 1) {
            const struct emulator_thread *other =
                &run.fibers[t->slot - t->lane + w->operations[i].lane]->thread;
            emulator_die("lane %d exits while lane %d waits for it in %s at %s:%d", t->lane,
                other->lane, other->waits_for, other->file, other->line);
        }
    if (t->block->barriers[0].arrived)
        release_if_complete(t->block, 0);
    release_cluster();
    if (!t->block->live) {
        barriers_leave(t->block);
        emulator_shared_leave(t->block->rank);
    }
}

static void fiber_main(void) {
#if EMULATOR_ASAN
    if (run.fake_stacks)
        __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
    for (;;) {
        (*run.kernel)();
        leave(emulator_current);
        run_another();
    }
}

static struct fiber *create_fiber(int slot) {
    struct fiber *f = (struct fiber *)calloc(1, sizeof(*f));
    unsigned char *stack = (unsigned char *)mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!f || stack == MAP_FAILED || mprotect(stack, STACK_GUARD, PROT_NONE))
        emulator_die("no memory for the stack of thread %d", slot);
    f->context.bottom = stack + STACK_GUARD;
    f->context.size = STACK_BYTES - STACK_GUARD;
    /* If all stacks began at the same offset in their pages, they would share few cache sets. */
    void **top = (void **)(stack + STACK_BYTES - (slot % 64) * 64 - 64);
    *--top = NULL; /* the ABI requires rsp + 8 to be a multiple of 16 at a function's entry */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    f->context.sp = top;
    f->thread.slot = slot;
    f->thread.lane = slot % 32;
    f->thread.copies = emulator_copies_create();
    f->thread.products = emulator_products_create();
    return f;
}

/* ---- grids ---- */

static void prepare_block(unsigned rank, uint3 index) {
    struct emulator_block *b = &run.blocks[rank];
    const dim3 shape = emulator_launch_shape.block;
    memset(b, 0, sizeof(*b));
    b->index = index;
    b->rank = rank;
    b->live = run.threads_per_block;
    b->shared = emulator_shared_enter(rank, emulator_launch_shape.shared_bytes);
    emulator_products_begin(rank);
    for (int i = 0; i < run.warps_per_block * 32; i++) {
        struct emulator_thread *t = &run.fibers[(int)rank * run.warps_per_block * 32 + i]->thread;
        t->block = b;
        t->index.x = (unsigned)i % shape.x;
        t->index.y = (unsigned)i / shape.x % shape.y;
        t->index.z = (unsigned)i / (shape.x * shape.y);
        t->cluster_phase = 0;
        t->parted = false;
        if (i < run.threads_per_block) {
            run.warps[t->slot / 32].live |= 1u << t->lane;
            make_ready(t);
        } else {
            t->state = EMULATOR_EXITED;
        }
    }
}

static void run_cluster(uint3 first, bool staged) {
    const dim3 c = emulator_launch_shape.cluster;
    run.staged = staged;
    if (staged)
        emulator_writes_hide();
    run.cluster_generation = 0;
    run.cluster_arrived = 0;
    run.warp_ahead = -1;
    run.keep_ahead = emulator_random(2) == 0;
    run.live = (int)run.block_count * run.threads_per_block;
    for (unsigned rank = 0; rank < run.block_count; rank++) {
        uint3 index = { first.x + rank % c.x, first.y + rank / c.x % c.y,
            first.z + rank / (c.x * c.y) };
        prepare_block(rank, index);
    }
    run_another();
    for (unsigned rank = 0; rank < run.block_count; rank++) {
        if (emulator_launch_shape.programmatic && !run.blocks[rank].waited_for_grid)
            emulator_die("launched to overlap the kernel before it, but block (%u,%u,%u) never "
                         "called griddepcontrol_wait",
                run.blocks[rank].index.x, run.blocks[rank].index.y, run.blocks[rank].index.z);
        emulator_products_end(rank);
        const char *fault = emulator_shared_check(rank);
        if (fault)
            emulator_die("%s dynamic shared memory of block (%u,%u,%u)", fault,
                run.blocks[rank].index.x, run.blocks[rank].index.y, run.blocks[rank].index.z);
    }
}

/* Finds the stack of the host thread that launches. Only the sanitizer needs it. */
static void find_main_stack(void) {
#if EMULATOR_ASAN
    static thread_local const void *bottom;
    static thread_local size_t size;
    if (!bottom) {
        pthread_attr_t attributes;
        void *address;
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, &address, &size);
        pthread_attr_destroy(&attributes);
        bottom = address;
    }
    run.main.bottom = bottom;
    run.main.size = size;
    run.fake_stacks = __asan_option_detect_stack_use_after_return != 0;
#endif
}

static uint64_t common_factor(uint64_t a, uint64_t b) {
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void emulator_run(
    const struct emulator_shape *shape, const char *name, const std::function<void()> &kernel) {
    static uint64_t launches;
    if (emulator_current)
        emulator_die("a kernel launches a kernel");
    emulator_launch_shape = *shape;
    emulator_launch_shape.code = emulator_code();
    blockDim = shape->block;
    gridDim = shape->grid;
    run.kernel = &kernel;
    run.name = name;
    run.random = (emulator_seed() + ++launches) * 0x9e3779b97f4a7c15u | 1;
    run.threads_per_block = (int)(shape->block.x * shape->block.y * shape->block.z);
    run.warps_per_block = (run.threads_per_block + 31) / 32;
    run.block_count = shape->cluster.x * shape->cluster.y * shape->cluster.z;
    run.threads = (int)run.block_count * run.warps_per_block * 32;
    while ((int)run.fibers.size() < run.threads)
        run.fibers.push_back(create_fiber((int)run.fibers.size()));
    run.warps.resize(run.threads / 32);
    for (struct warp &w : run.warps) {
        w.place = -1;
        w.live = 0;
        w.ready_count = w.operation_count = 0;
    }
    find_main_stack();

    /* Clusters run in random order: the walk's step has no common factor with their number. */
    const dim3 c = shape->cluster;
    const uint64_t nx = shape->grid.x / c.x, ny = shape->grid.y / c.y, nz = shape->grid.z / c.z;
    const uint64_t count = nx * ny * nz;
    uint64_t step = 1 + emulator_random((unsigned)count), at = emulator_random((unsigned)count);
    if (shape->watched && !shape->staged)
        emulator_writes_watch();
    while (common_factor(step, count) != 1)
        step++;
    for (uint64_t i = 0; i < count; i++, at = (at + step) % count) {
        uint3 first = { (unsigned)(at % nx) * c.x, (unsigned)(at / nx % ny) * c.y,
            (unsigned)(at / (nx * ny)) * c.z };
        run_cluster(first, shape->staged && i == 0);
    }
    emulator_writes_end();
    emulator_device_check(name ? name : "a kernel");
    run.kernel = NULL;
}
