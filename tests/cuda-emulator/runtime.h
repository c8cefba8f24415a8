/* Inside the emulator: what the two halves of the runtime share. */
#ifndef TESTS_CUDA_EMULATOR_RUNTIME_H
#define TESTS_CUDA_EMULATOR_RUNTIME_H

#include "tests/cuda-emulator/emulator.h"

#include <mutex>

/* Held during every call: kernels run on the thread that waits for them, one at a time. */
std::recursive_mutex &emulator_lock(void);

/* Counts a call of `name`; what it must fail with, or cudaSuccess. */
cudaError_t emulator_enter(const char *name);
/* Remembers the error for cudaGetLastError, and returns it. */
cudaError_t emulator_error(cudaError_t error);

#define EMULATOR_CALL(name)                                                                        \
    std::lock_guard<std::recursive_mutex> guard(emulator_lock());                                  \
    const cudaError_t injected = emulator_enter(name);                                             \
    if (injected != cudaSuccess)                                                                   \
    return injected

/* Runs all that is queued; the variant for calls fails while something is captured. */
void emulator_run_everything(void);
cudaError_t emulator_wait_for_device(void);
/* Whether this thread captures in a mode that forbids calls which CUDA names unsafe, because they
 * might wait, or mean nothing when the graph is launched: those that give and take memory, and that
 * ask events. Such a call spoils the capture. */
bool emulator_forbids_unsafe(void);

bool emulator_is_pinned(const void *pointer);
/* Dynamic shared memory that one block may have, in bytes. */
int emulator_shared_limit(void);

#endif
