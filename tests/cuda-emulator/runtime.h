/* Inside the emulator: declarations that both halves of the runtime use. */
#ifndef TESTS_CUDA_EMULATOR_RUNTIME_H
#define TESTS_CUDA_EMULATOR_RUNTIME_H

#include "tests/cuda-emulator/emulator.h"

#include <mutex>

/* Held during every call. Kernels run on the thread that waits for them, one at a time. */
std::recursive_mutex &emulator_lock(void);

/* Counts a call of `name`. Returns the error that the call must fail with, or cudaSuccess. */
cudaError_t emulator_enter(const char *name);
/* Stores the error for cudaGetLastError and returns it. */
cudaError_t emulator_error(cudaError_t error);

#define EMULATOR_CALL(name)                                                                        \
    std::lock_guard<std::recursive_mutex> guard(emulator_lock());                                  \
    const cudaError_t injected = emulator_enter(name);                                             \
    if (injected != cudaSuccess)                                                                   \
    return injected

/* emulator_run_everything runs all queued work. emulator_wait_for_device does the same for API
 * calls, and fails while a stream is being captured. */
void emulator_run_everything(void);
cudaError_t emulator_wait_for_device(void);
/* Whether this thread is capturing a graph in a mode that forbids the calls CUDA names unsafe:
 * those that allocate or free memory, and those that query events. They might wait, or mean nothing
 * when the graph is launched. Such a call invalidates the capture. */
bool emulator_forbids_unsafe(void);

bool emulator_is_pinned(const void *pointer);
/* The most dynamic shared memory that one block may have, in bytes. */
int emulator_shared_limit(void);

#endif
