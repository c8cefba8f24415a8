/* Hopper's instructions, for the host branch of kernels/cuda/ptx_hopper.cuh. */
#ifndef TESTS_CUDA_EMULATOR_HOPPER_HOPPER_H
#define TESTS_CUDA_EMULATOR_HOPPER_HOPPER_H

#include "tests/cuda-emulator/twins.h"

#include <stdint.h>

struct CUtensorMap_st;

void emulator_mbarrier_init(uint64_t *barrier, unsigned count);
/* Before this fence, neither TMA nor another block may use the barriers that this thread has
 * initialized. */
void emulator_mbarrier_fence_init(void);
/* Tells the barrier to expect `bytes`, then arrives at it. */
void emulator_mbarrier_arrive(uint64_t *barrier, unsigned bytes);
void emulator_mbarrier_arrive_cluster(uint64_t *barrier, unsigned rank);
void emulator_mbarrier_wait(uint64_t *barrier, unsigned parity, const char *file, int line);

/* Returns the address of the same 16 bytes in block `rank` of the cluster. */
const void *emulator_cluster_address(const void *shared, unsigned rank);

/* Loads a box into shared memory at some later moment, in all blocks of the mask (0: only in this
 * one). */
void emulator_tma_load(void *shared, const struct CUtensorMap_st *map, uint64_t *barrier,
    const int *at, int rank, uint16_t blocks);

/* a and b are matrix descriptors. Since the thread last touched the sums, it must have called
 * wgmma_hold and then wgmma_fence. The first wgmma takes the sums away from the thread; after they
 * are complete, the next wgmma_hold returns them. All lanes of the group's four warps must make the
 * same calls. */
void emulator_wgmma(
    float *sums, uint64_t a, uint64_t b, int n, bool add, enum emulator_element element);
/* Like emulator_wgmma, but `a` is in registers, which must be held and fenced like the sums. `b` is
 * read column by column. */
void emulator_wgmma_columns(
    float *sums, const uint32_t *a, uint64_t b, int n, enum emulator_element element);
void emulator_wgmma_hold(const void *registers, int count);
void emulator_wgmma_fence(void);
void emulator_wgmma_commit(void);
void emulator_wgmma_wait(int pending);

/* setmaxnreg: raises (`take`) or lowers the register count to `count`. */
void emulator_registers(int count, bool take);

#endif
