/* Steers the emulator from tests. C and C++.
 *
 * Environment, read once: CUDA_EMULATOR_SEED (a number; random and printed if unset and a fault is
 * found), CUDA_EMULATOR_CAPABILITY (75, 80, 86, 89, 90; 90 if unset, 0 for "no device"),
 * CUDA_EMULATOR_MEMORY (bytes of device memory), CUDA_EMULATOR_SYNC=1 (streams run at once),
 * CUDA_EMULATOR_LARGEST_CLUSTER (blocks that the chip has room for; 16 if unset),
 * CUDA_EMULATOR_FAIL (NAME,NTH,ERROR or NAME,NTH,ERROR,sticky: calls emulator_fail),
 * CUDA_EMULATOR_PLANT (KIND,NAME,N or KIND,NAME,N,tuned: every Nth kernel whose name begins with
 * NAME hangs ("hang") or writes wrong numbers ("wrong"); tuned: only in a process that uses the
 * tuner's choices and is not tuning).
 */
#ifndef TESTS_CUDA_EMULATOR_EMULATOR_H
#define TESTS_CUDA_EMULATOR_EMULATOR_H

#include "tests/cuda-emulator/cuda_runtime.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Seeds the random order of threads, blocks and streams from now on. */
void emulator_set_seed(uint64_t seed);
uint64_t emulator_seed(void);

/* The emulated device's compute capability times ten; 0: there is no device. */
void emulator_set_capability(int capability);
int emulator_capability(void);
/* The compute capability that the kernels are compiled for, if it is lower than the device's own,
 * as if the driver had translated older PTX. 0: the device's own. */
void emulator_set_code(int capability);
int emulator_code(void);

/* The number of multiprocessors that the device reports; 4 by default. */
void emulator_set_multiprocessors(int count);
/* The number of blocks in the largest cluster that the chip has room for; 16 by default. On a real
 * chip it may be less, because parts are switched off. A kernel must opt in to clusters of more
 * than 8 blocks. */
void emulator_set_largest_cluster(int blocks);
int emulator_largest_cluster(void);

/* Device memory in bytes: allocations beyond it fail. */
void emulator_set_memory(size_t bytes);
/* The bytes allocated on the device now, and the number of allocations. */
size_t emulator_memory_used(void);
size_t emulator_allocations(void);

/* Makes the `nth` call of the runtime function `name` fail with `error`, counted from now; 1 is the
 * next call. If `name` is NULL, calls of all fallible functions are counted. After a sticky error
 * every later call returns it too, until cudaDeviceReset. */
void emulator_fail(const char *name, int nth, cudaError_t error, bool sticky);
void emulator_fail_nothing(void);
/* The number of fallible calls so far. */
long emulator_calls(void);

/* The number of kernels that have run. */
long emulator_kernels_run(void);

#ifdef __cplusplus
}
#endif

#endif
