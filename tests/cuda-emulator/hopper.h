/* Hopper's instructions, for the host branch of kernels/cuda/ptx_hopper.cuh. */
#ifndef TESTS_CUDA_EMULATOR_HOPPER_H
#define TESTS_CUDA_EMULATOR_HOPPER_H

#include "tests/cuda-emulator/twins.h"

#include <stdint.h>

struct CUtensorMap_st;

void emulator_mbarrier_init(uint64_t *barrier, unsigned count);
/* Arrives after announcing `bytes`. */
void emulator_mbarrier_arrive(uint64_t *barrier, unsigned bytes);
void emulator_mbarrier_arrive_cluster(uint64_t *barrier, unsigned rank);
void emulator_mbarrier_wait(uint64_t *barrier, unsigned parity, const char *file, int line);

/* The same place, 16 bytes, in block `rank` of the cluster. */
const void *emulator_cluster_address(const void *shared, unsigned rank);

/* The box arrives at some later moment, in all blocks of the mask (0: in this one). */
void emulator_tma_load(void *shared, const struct CUtensorMap_st *map, uint64_t *barrier,
    const int *at, int rank, uint16_t blocks);

/* Done as late as it may be: when a wait asks for it. Until then its operands must stay. */
void emulator_wgmma(
    float *sums, const void *a, const void *b, int n, bool add, enum emulator_element element);
/* a in registers, which are read as late, too; b column by column, 64 of them in a row of 128
 * bytes, the next 64 `next` bytes further. */
void emulator_wgmma_columns(float *sums, const uint32_t *a, const void *b, unsigned next, int n,
    enum emulator_element element);
void emulator_wgmma_commit(void);
void emulator_wgmma_wait(int pending);

#endif
