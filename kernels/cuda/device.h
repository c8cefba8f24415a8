/* Inside kernels/cuda/: the one device of this process, its stream, its memory and its errors.
 *
 * Every entry queues its kernels on cuda_stream() and returns. Nothing above kernels/ calls these
 * functions. Everything runs on one host thread at a time (the engine's), after cuda_open. Each
 * public entry point of the memory and of the recorder makes the device current for its thread.
 */
#ifndef KERNELS_CUDA_DEVICE_H
#define KERNELS_CUDA_DEVICE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/backward.h"

#ifdef __cplusplus
}
#endif

#include <cuda_runtime.h>

/* The largest cluster, in blocks, that every chip with clusters supports. */
#define CUDA_PORTABLE_CLUSTER 8

/* Size of the scratch memory that all entries share, unless LATENTD_CUDA_WORKSPACE_KIB makes it
 * smaller. */
#define CUDA_WORKSPACE_BYTES ((size_t)64 << 20)
#define CUDA_WORKSPACE_KIB_MIN 64 /* some entries use up to this much without checking the size */

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_properties {
    int index;
    char name[64];
    int capability; /* 10 * major + minor: 75, 80, 90, ... */
    int code;       /* of the loaded code; lower than capability if translated from older PTX */
    int multiprocessors;
    bool no_overlap, no_clusters;  /* LATENTD_CUDA_OVERLAP=0, LATENTD_CUDA_CLUSTERS=0 */
    size_t workspace_bytes;        /* LATENTD_CUDA_WORKSPACE_KIB */
    size_t shared_bytes_per_block; /* with cudaFuncSetAttribute's opt-in */
    size_t l2_bytes;
    size_t memory_bytes;
    int driver_version, runtime_version; /* 1000 * major + 10 * minor */
    char bus_id[32];
};

/* Opens the device for the rest of the process. Returns ERROR_NOT_FOUND if there is no driver or no
 * such device, ERROR_UNSUPPORTED if this build has no code for the chip, and ERROR_INVALID if a
 * switch in the environment is neither 0 nor 1. A second call succeeds for the same index and fails
 * for another. */
bool cuda_open(int index, struct error *err) __attribute__((warn_unused_result));
/* The properties of the open device. */
const struct cuda_properties *cuda_get_properties(void);

/* Returns true for cudaSuccess. Otherwise returns false with an error that says what was tried
 * (`what`: "cudaMalloc of 3 MiB"): ERROR_NO_MEMORY if memory ran out, ERROR_DEVICE_LOST if this
 * process can no longer use the device, ERROR_DEVICE for the rest. A lost device stays lost: from
 * then on every call returns that error. Clears the runtime's own last error. */
bool cuda_ok(cudaError_t status, const char *what, struct error *err);

/* The engine's stream, on which every entry launches. NULL before cuda_open. */
cudaStream_t cuda_stream(void);

/* Returns whether this kernel may start while the one before it is still ending. Called for every
 * launch, in order. `wanted`: the kernel is written for overlapping. The answer is false with code
 * for chips before sm_90, which lack griddepcontrol, and with LATENTD_CUDA_OVERLAP=0. It is also
 * false directly after a kernel that is not written for overlapping: that kernel may have written
 * memory that others read without waiting first, as gemm_hopper reads weights. */
bool cuda_may_overlap(bool wanted);

/* Makes the next kernel start only after everything queued before it has ended. Call it whenever
 * something other than a kernel is queued. */
void cuda_forbid_overlap(void);

/* Returns the scratch memory that all entries share, cuda_workspace_bytes() of device memory.
 * Whatever is queued next may overwrite it. A kernel that starts before the previous one has ended
 * (programmatic launch) must not touch it before griddepcontrol_wait(). NULL if `bytes` is larger
 * than the scratch memory. */
void *cuda_workspace(size_t bytes);
/* Returns the size of the scratch memory; before cuda_open, CUDA_WORKSPACE_BYTES. */
size_t cuda_workspace_bytes(void);

/* Whether calls are being recorded instead of run. If so, nothing may be measured or waited for. */
bool cuda_is_recording(void);

/* Makes the device current for the calling thread. Every public entry into this folder that any
 * thread may call begins with it. */
bool cuda_enter(struct error *err);

/* Allocates device memory for weights, and copies into it in the order of the stream, as struct
 * device_memory does. */
bool cuda_weights_alloc(size_t bytes, void **out, struct error *err)
    __attribute__((warn_unused_result));
void cuda_weights_release(void *block, size_t bytes);
bool cuda_upload(void *to, const void *from, size_t bytes, struct error *err)
    __attribute__((warn_unused_result));

/* The memory and the recorder of the table. */
extern const struct device_memory cuda_memory;
extern const struct recorder cuda_recorder;

/* Reads the chip's own counters (NVML), if the driver's library is present. *percent: the share of
 * the recent past in which a kernel was running. *memory_percent: the share in which memory was
 * read or written. Both are -1 if unknown. Any thread. */
void cuda_utilisation(const char *bus_id, int *percent, int *memory_percent);

#ifdef __cplusplus
}
#endif

#endif
