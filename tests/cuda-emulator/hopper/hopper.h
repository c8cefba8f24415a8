/* Hopper's instructions, for the host branch of kernels/cuda/ptx_hopper.cuh. */
#ifndef TESTS_CUDA_EMULATOR_HOPPER_HOPPER_H
#define TESTS_CUDA_EMULATOR_HOPPER_HOPPER_H

#include "tests/cuda-emulator/twins.h"

#include <stdint.h>

struct CUtensorMap_st;

void emulator_mbarrier_init(uint64_t *barrier, unsigned count);
/* Until then neither TMA nor another block may use what this thread has made. */
void emulator_mbarrier_fence_init(void);
/* Arrives after announcing `bytes`. */
void emulator_mbarrier_arrive(uint64_t *barrier, unsigned bytes);
void emulator_mbarrier_arrive_cluster(uint64_t *barrier, unsigned rank);
void emulator_mbarrier_wait(uint64_t *barrier, unsigned parity, const char *file, int line);

/* The same place, 16 bytes, in block `rank` of the cluster. */
const void *emulator_cluster_address(const void *shared, unsigned rank);

/* The box arrives at some later moment, in all blocks of the mask (0: in this one). */
void emulator_tma_load(void *shared, const struct CUtensorMap_st *map, uint64_t *barrier,
    const int *at, int rank, uint16_t blocks);

/* a and b are matrix descriptors. The sums leave the thread's hands at the first one, which demands
 * that wgmma_hold and, behind that, wgmma_fence were called since they were last touched, and come
 * back, if they are done, with the next wgmma_hold. All lanes of all four warps of a group do the
 * same. */
void emulator_wgmma(
    float *sums, uint64_t a, uint64_t b, int n, bool add, enum emulator_element element);
/* a in registers, held and fenced as the sums; b is read column by column. */
void emulator_wgmma_columns(
    float *sums, const uint32_t *a, uint64_t b, int n, enum emulator_element element);
void emulator_wgmma_hold(const void *registers, int count);
void emulator_wgmma_fence(void);
void emulator_wgmma_commit(void);
void emulator_wgmma_wait(int pending);

/* setmaxnreg: to `count` registers from here on, more (`take`) or fewer. */
void emulator_registers(int count, bool take);

#endif
