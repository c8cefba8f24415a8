/* Steers the emulator from tests. C and C++.
 *
 * Environment, read once: CUDA_EMULATOR_SEED (a number; random and printed if unset and a fault is
 * found), CUDA_EMULATOR_CAPABILITY (75, 80, 86, 89, 90; 90 if unset, 0 for "no device"),
 * CUDA_EMULATOR_MEMORY (bytes of device memory), CUDA_EMULATOR_SYNC=1 (streams run at once),
 * CUDA_EMULATOR_LARGEST_CLUSTER (blocks that the chip has room for; 16 if unset),
 * CUDA_EMULATOR_FAIL (NAME,NTH,ERROR or NAME,NTH,ERROR,sticky: a fault as by emulator_fail),
 * CUDA_EMULATOR_PLANT (KIND,NAME,N or KIND,NAME,N,tuned: every Nth kernel whose name begins so
 * hangs
 * ("hang") or leaves wrong numbers ("wrong"); tuned: only in a process that has the tuner's choices
 * and does not tune).
 */
#ifndef TESTS_CUDA_EMULATOR_EMULATOR_H
#define TESTS_CUDA_EMULATOR_EMULATOR_H

#include "tests/cuda-emulator/cuda_runtime.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The order of threads, blocks and streams from here on. */
void emulator_set_seed(uint64_t seed);
uint64_t emulator_seed(void);

/* Compute capability times ten of the device that is played; 0: there is none. */
void emulator_set_capability(int capability);
int emulator_capability(void);
/* What the kernels are played to be compiled for, below the device's own capability: older PTX that
 * the driver translated. 0: for the device itself. */
void emulator_set_code(int capability);
int emulator_code(void);

/* Multiprocessors that the device says it has; 4 at first. */
void emulator_set_multiprocessors(int count);
/* Blocks of the largest cluster that its chip has room for, 16 unless told: a part of it may be
 * switched off. Of more than 8 a kernel has to say that it wants them. */
void emulator_set_largest_cluster(int blocks);
int emulator_largest_cluster(void);

/* Device memory in bytes: allocations beyond it fail. */
void emulator_set_memory(size_t bytes);
/* Bytes, and blocks, that are allocated on the device now. */
size_t emulator_memory_used(void);
size_t emulator_allocations(void);

/* The `nth` call from now (1 is the next) of the runtime's function `name` (NULL: of any fallible
 * one) fails with `error`. A sticky error is returned by every later call too, until
 * cudaDeviceReset. */
void emulator_fail(const char *name, int nth, cudaError_t error, bool sticky);
void emulator_fail_nothing(void);
/* Fallible calls so far. */
long emulator_calls(void);

/* Kernels that have run. */
long emulator_kernels_run(void);

#ifdef __cplusplus
}
#endif

#endif
