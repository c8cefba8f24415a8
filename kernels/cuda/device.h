/* Inside kernels/cuda/: the one device of this process, its stream, its memory and its errors.
 *
 * Every entry queues its kernels on cuda_stream() and returns; nothing here is called by anyone
 * above kernels/. Everything runs on one host thread at a time (the engine's), after cuda_open;
 * each public entry point of the memory and of the recorder makes the device current for its
 * thread.
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

/* Blocks of a cluster that every chip with clusters takes. */
#define CUDA_PORTABLE_CLUSTER 8

/* Scratch memory that all entries share. */
#define CUDA_WORKSPACE_BYTES ((size_t)64 << 20)

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_properties {
    int index;
    char name[64];
    int capability; /* 10 * major + minor: 75, 80, 90, ... */
    int code;       /* what the code that was loaded was written for, likewise: below capability for
                       a chip that this build has no own code for, which translates older PTX */
    int multiprocessors;
    bool no_overlap, no_clusters;  /* LATENTD_CUDA_OVERLAP=0, LATENTD_CUDA_CLUSTERS=0 */
    size_t shared_bytes_per_block; /* with the opt-in of cudaFuncSetAttribute */
    size_t l2_bytes;
    size_t memory_bytes;
    int driver_version, runtime_version; /* 1000 * major + 10 * minor */
    char bus_id[32];
};

/* Opens the device for the rest of the process. ERROR_NOT_FOUND without a driver or such a device,
 * ERROR_UNSUPPORTED for a chip this build has no code for, ERROR_INVALID for a switch in the
 * environment that is neither 0 nor 1. A second call is fine for the same index
 * and an error for another. */
bool cuda_open(int index, struct error *err) __attribute__((warn_unused_result));
/* Of the open device. */
const struct cuda_properties *cuda_get_properties(void);

/* True for cudaSuccess. Otherwise false and an error that says `what` was tried ("cudaMalloc of 3
 * MiB"): ERROR_NO_MEMORY if memory ran out, ERROR_DEVICE_LOST if the device is of no use to this
 * process any more, ERROR_DEVICE for the rest. A lost device stays lost: from then on every call
 * says so. Clears the runtime's own last error. */
bool cuda_ok(cudaError_t status, const char *what, struct error *err);

/* The engine's stream, on which every entry launches. NULL before cuda_open. */
cudaStream_t cuda_stream(void);

/* Called for every launch, in order: whether this kernel may start while the one before it is still
 * ending. `wanted`: the kernel is written for that. It never may with code for chips before sm_90,
 * which lack griddepcontrol, nor with LATENTD_CUDA_OVERLAP=0, nor directly after a kernel that was
 * not written for it: that one may have written memory which others read without waiting first, as
 * gemm_hopper reads weights. */
bool cuda_may_overlap(bool wanted);

/* Called where anything but a kernel is queued: the next kernel starts when that has ended. */
void cuda_forbid_overlap(void);

/* Scratch of the entries, CUDA_WORKSPACE_BYTES of device memory that nobody owns: whatever is
 * queued next may overwrite it. A kernel that starts before the one ahead of it has ended
 * (programmatic launch) must not touch it before griddepcontrol_wait(). NULL if more is asked for
 * than there is. */
void *cuda_workspace(size_t bytes);

/* Whether calls are being recorded and not run now: nothing may be measured or waited for. */
bool cuda_is_recording(void);

/* Makes the device current for the calling thread; every public entry into this folder that may
 * come from another thread than the last one did starts with it. */
bool cuda_enter(struct error *err);

/* Device memory for weights, and copies into it in the order of the stream; as in struct
 * device_memory. */
bool cuda_weights_alloc(size_t bytes, void **out, struct error *err)
    __attribute__((warn_unused_result));
void cuda_weights_release(void *block, size_t bytes);
bool cuda_upload(void *to, const void *from, size_t bytes, struct error *err)
    __attribute__((warn_unused_result));

/* The memory and the recorder that stand in the table. */
extern const struct device_memory cuda_memory;
extern const struct recorder cuda_recorder;

/* The chip's own counters (NVML), where the driver's library is there: per cent of the last moments
 * in which a kernel ran, and in which memory was moved; -1 and -1 otherwise. Any thread. */
void cuda_utilisation(const char *bus_id, int *percent, int *memory_percent);

#ifdef __cplusplus
}
#endif

#endif
