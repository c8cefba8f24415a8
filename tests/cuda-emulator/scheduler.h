/* Runs a kernel: one fiber per CUDA thread, all blocks of one cluster at a time, in seeded random
 * order.
 *
 * A fiber runs until it waits (barrier, warp operation, mbarrier, copy), then another ready one is
 * chosen at random; in some blocks, one warp runs as far ahead of the others as it can. Any fault
 * ends the process with one message on stderr that names the kernel, block, thread and source line.
 */
#ifndef TESTS_CUDA_EMULATOR_SCHEDULER_H
#define TESTS_CUDA_EMULATOR_SCHEDULER_H

#include "tests/cuda-emulator/vector_types.h"

#include <functional>
#include <stddef.h>
#include <stdint.h>

#define EMULATOR_NAMED_BARRIERS 16
#define EMULATOR_MAX_THREADS 1024
#define EMULATOR_MAX_CLUSTER 16

struct emulator_thread;
struct emulator_copies;   /* one thread's cp.async, in twins.cpp */
struct emulator_products; /* one thread's wgmma, in wgmma.cpp */

/* One hardware barrier of a block. */
struct emulator_barrier {
    int expected, arrived; /* expected -1: every thread that has not exited */
    int count, result;     /* sum of the predicates */
    uint64_t generation;
    const char *file;
    int line;
};

struct emulator_block {
    uint3 index;
    unsigned rank;         /* the block's number in its cluster */
    unsigned char *shared; /* dynamic shared memory, exactly as large as asked for */
    int live;              /* threads that have not exited */
    bool waited_for_grid;  /* some thread called griddepcontrol_wait */
    struct emulator_barrier barriers[EMULATOR_NAMED_BARRIERS];
};

enum emulator_state {
    EMULATOR_READY,
    EMULATOR_IN_WARP_OPERATION,
    EMULATOR_AT_BARRIER,
    EMULATOR_AT_CLUSTER_BARRIER,
    EMULATOR_POLLING,
    EMULATOR_EXITED,
};

typedef void (*emulator_warp_function)(void **lanes, unsigned mask);
typedef bool (*emulator_condition)(void *argument);

struct emulator_thread {
    uint3 index;
    struct emulator_block *block;
    int slot; /* in the table of resident threads; its warp is slots [slot - lane, ...) */
    int lane;
    enum emulator_state state;
    /* What the thread waits for, and the source line. */
    const char *waits_for, *file;
    int line;
    unsigned mask;
    emulator_warp_function function;
    void *argument; /* of the warp operation or of the condition */
    emulator_condition condition;
    int barrier;
    uint64_t cluster_phase; /* arrivals at the cluster's barrier */
    struct emulator_copies *copies;
    struct emulator_products *products;
    bool parted; /* waited for an mbarrier, not for its warp since */
};

struct emulator_shape {
    dim3 grid, block, cluster;
    size_t shared_bytes;
    bool programmatic; /* launched with programmatic stream serialization */
    bool staged;       /* a cluster first runs without the previous kernel's results */
    bool watched;      /* the next kernel will be staged */
    int code;          /* the emulator_code() of this launch; emulator_run sets it */
};

extern struct emulator_thread *emulator_current; /* NULL outside of a kernel */
extern struct emulator_shape emulator_launch_shape;

/* Runs all blocks of a grid. `name` may be NULL. */
void emulator_run(
    const struct emulator_shape *shape, const char *name, const std::function<void()> &kernel);

/* Prints the message and the current thread's place, and aborts. */
[[noreturn]] void emulator_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Waits at barrier `id` of the block until `threads` threads (-1: all live ones) have arrived.
 * emulator_block_arrive arrives without waiting. */
void emulator_block_barrier(int id, int threads, const char *what, const char *file, int line);
void emulator_block_arrive(int id, int threads, const char *what, const char *file, int line);
/* Waits at barrier 0. Returns the sum of the values that the threads gave. */
int emulator_block_count(int value, const char *what, const char *file, int line);

/* Waits for all lanes of the mask, then calls `function` once with each lane's argument. */
void emulator_warp(emulator_warp_function function, const char *what, unsigned mask, void *argument,
    const char *file, int line);
unsigned emulator_live_lanes(void);

/* Whether the code runs as if the previous kernel had not run yet. */
bool emulator_is_staged(void);

void emulator_yield(void);
/* Waits until the condition holds. The condition is tested again whenever no other thread can
 * run. */
void emulator_wait_for(
    emulator_condition condition, void *argument, const char *what, const char *file, int line);

/* Queues work that the hardware does by itself (bulk copies, tensor products). It runs at a random
 * later moment. */
void emulator_later(std::function<void()> work);

void emulator_cluster_arrive(void);
void emulator_cluster_wait(const char *file, int line);
/* Returns block `rank` of the running cluster; NULL if there is none. */
struct emulator_block *emulator_cluster_block(unsigned rank);
unsigned emulator_cluster_blocks(void);
/* Whether all threads of the cluster have passed a cluster barrier, which means that all its blocks
 * have started. */
bool emulator_cluster_has_met(void);

/* Returns a number that is uniform in [0, n), from the launch's seed. */
unsigned emulator_random(unsigned n);

#endif
