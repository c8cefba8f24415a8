/* The emulated device, its memory and its errors. */
#include "tests/cuda-emulator/memory.h"
#include "tests/cuda-emulator/runtime.h"

#include <map>
#include <random>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    bool ready; /* the environment was read */
    uint64_t seed;
    int capability, code, largest_cluster;
    long calls;
    cudaError_t last, sticky;
    /* the injected fault */
    const char *fail_name;
    int fail_in;
    cudaError_t fail_error;
    bool fail_sticky;
} state;

static std::map<const char *, size_t> pinned;

/* Injects the fault of CUDA_EMULATOR_FAIL: "NAME,NTH,ERROR" with an optional ",sticky", the
 * arguments of emulator_fail. */
static void plant_fault(const char *text) {
    static char name[64];
    int nth = 0, error = 0;
    char sticky[8] = "";
    if (sscanf(text, "%63[^,],%d,%d,%7s", name, &nth, &error, sticky) >= 3)
        emulator_fail(name, nth, (cudaError_t)error, strcmp(sticky, "sticky") == 0);
}

static void read_environment(void) {
    if (state.ready)
        return;
    const char *seed = getenv("CUDA_EMULATOR_SEED");
    const char *capability = getenv("CUDA_EMULATOR_CAPABILITY");
    const char *largest_cluster = getenv("CUDA_EMULATOR_LARGEST_CLUSTER");
    state.ready = true;
    state.seed = seed ? strtoull(seed, NULL, 0) : std::random_device()();
    state.capability = capability ? atoi(capability) : 90;
    state.largest_cluster = largest_cluster ? atoi(largest_cluster) : 16;
    if (getenv("CUDA_EMULATOR_FAIL"))
        plant_fault(getenv("CUDA_EMULATOR_FAIL"));
}

void emulator_set_largest_cluster(int blocks) {
    read_environment();
    state.largest_cluster = blocks;
}

int emulator_largest_cluster(void) {
    read_environment();
    return state.largest_cluster;
}

uint64_t emulator_seed(void) {
    read_environment();
    return state.seed;
}

void emulator_set_seed(uint64_t seed) {
    read_environment();
    state.seed = seed;
}

int emulator_capability(void) {
    read_environment();
    return state.capability;
}

void emulator_set_capability(int capability) {
    read_environment();
    state.capability = capability;
}

void emulator_set_code(int capability) {
    state.code = capability;
}

int emulator_code(void) {
    return state.code ? state.code : emulator_capability();
}

/* ---- errors ---- */

cudaError_t emulator_error(cudaError_t error) {
    if (error != cudaSuccess)
        state.last = error;
    return error;
}

cudaError_t emulator_enter(const char *name) {
    state.calls++;
    if (state.sticky != cudaSuccess)
        return emulator_error(state.sticky);
    if (!emulator_capability())
        return emulator_error(cudaErrorNoDevice);
    if (state.fail_in && (!state.fail_name || !strcmp(state.fail_name, name)) && !--state.fail_in) {
        if (state.fail_sticky)
            state.sticky = state.fail_error;
        return emulator_error(state.fail_error);
    }
    return cudaSuccess;
}

void emulator_fail(const char *name, int nth, cudaError_t error, bool sticky) {
    state.fail_name = name;
    state.fail_in = nth;
    state.fail_error = error;
    state.fail_sticky = sticky;
}

void emulator_fail_nothing(void) {
    state.fail_in = 0;
    state.sticky = state.last = cudaSuccess;
}

long emulator_calls(void) {
    return state.calls;
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t error = state.last;
    state.last = state.sticky;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    return state.last;
}

#define EMULATOR_ERRORS(X)                                                                         \
    X(cudaSuccess, "no error")                                                                     \
    X(cudaErrorInvalidValue, "invalid argument")                                                   \
    X(cudaErrorMemoryAllocation, "out of memory")                                                  \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument")                             \
    X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version") \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                     \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                                            \
    X(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device") \
    X(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")                            \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                   \
    X(cudaErrorNotReady, "device not ready")                                                       \
    X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                         \
    X(cudaErrorLaunchTimeout, "the launch timed out and was terminated")                           \
    X(cudaErrorLaunchFailure, "unspecified launch failure")                                        \
    X(cudaErrorNotSupported, "operation not supported")                                            \
    X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")       \
    X(cudaErrorStreamCaptureInvalidated,                                                           \
        "operation failed due to a previous error during capture")                                 \
    X(cudaErrorGraphExecUpdateFailure, "the graph update was not performed")                       \
    X(cudaErrorInvalidClusterSize, "invalid cluster size")                                         \
    X(cudaErrorUnknown, "unknown error")

const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define EMULATOR_NAME(name, text)                                                                  \
    case name:                                                                                     \
        return #name;
        EMULATOR_ERRORS(EMULATOR_NAME)
    default:
        return "another CUDA error";
    }
}

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
#define EMULATOR_TEXT(name, text)                                                                  \
    case name:                                                                                     \
        return text;
        EMULATOR_ERRORS(EMULATOR_TEXT)
    default:
        return "another CUDA error";
    }
}

/* ---- the device ---- */

int emulator_shared_limit(void) {
    const int capability = emulator_capability();
    if (capability >= 90 && capability < 120)
        return 227 << 10;
    if (capability == 80 || capability == 87)
        return 163 << 10;
    return capability >= 80 ? 99 << 10 : 64 << 10;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = emulator_capability() ? CUDART_VERSION : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 0;
    EMULATOR_CALL("cudaGetDeviceCount");
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    EMULATOR_CALL("cudaSetDevice");
    return emulator_error(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int *device) {
    EMULATOR_CALL("cudaGetDevice");
    *device = 0;
    return cudaSuccess;
}

static int multiprocessors = 4;

void emulator_set_multiprocessors(int count) {
    multiprocessors = count;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    EMULATOR_CALL("cudaGetDeviceProperties");
    if (device)
        return emulator_error(cudaErrorInvalidDevice);
    memset(p, 0, sizeof(*p));
    snprintf(p->name, sizeof(p->name), "Emulated sm_%d", emulator_capability());
    p->totalGlobalMem = emulator_device_total();
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = (size_t)emulator_shared_limit();
    p->sharedMemPerMultiprocessor = p->sharedMemPerBlockOptin + 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = emulator_capability() / 10;
    p->minor = emulator_capability() % 10;
    p->multiProcessorCount = multiprocessors;
    p->asyncEngineCount = 1;
    p->memoryBusWidth = 256;
    p->l2CacheSize = 1 << 20;
    p->clusterLaunch = emulator_capability() >= 90;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp p;
    const cudaError_t status = cudaGetDeviceProperties(&p, device);
    if (status != cudaSuccess)
        return status;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = p.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)p.sharedMemPerBlock;
        break;
    case cudaDevAttrWarpSize:
        *value = p.warpSize;
        break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
        *value = 1000000;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrIntegrated:
        *value = 0;
        break;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = p.memoryBusWidth;
        break;
    case cudaDevAttrL2CacheSize:
        *value = p.l2CacheSize;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = p.maxThreadsPerMultiProcessor;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)p.sharedMemPerMultiprocessor;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)p.sharedMemPerBlockOptin;
        break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
        *value = 1024;
        break;
    default:
        return emulator_error(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    EMULATOR_CALL("cudaDeviceGetPCIBusId");
    if (device || size < 13)
        return emulator_error(cudaErrorInvalidValue);
    snprintf(text, (size_t)size, "0000:00:00.0");
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    EMULATOR_CALL("cudaDeviceGetStreamPriorityRange");
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    EMULATOR_CALL("cudaDeviceSynchronize");
    return emulator_error(emulator_wait_for_device());
}

cudaError_t cudaDeviceReset(void) {
    std::lock_guard<std::recursive_mutex> guard(emulator_lock());
    if (state.sticky == cudaSuccess)
        emulator_run_everything();
    state.sticky = state.last = cudaSuccess;
    emulator_device_reset();
    return cudaSuccess;
}

/* ---- memory ---- */

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    EMULATOR_CALL("cudaMemGetInfo");
    *available = emulator_device_free_bytes();
    *total = emulator_device_total();
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    EMULATOR_CALL("cudaMalloc");
    if (emulator_forbids_unsafe())
        return emulator_error(cudaErrorStreamCaptureUnsupported);
    *pointer = bytes ? emulator_device_alloc(bytes) : NULL;
    return emulator_error(bytes && !*pointer ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFree(void *pointer) {
    EMULATOR_CALL("cudaFree");
    if (!pointer)
        return cudaSuccess;
    if (emulator_forbids_unsafe())
        return emulator_error(cudaErrorStreamCaptureUnsupported);
    const cudaError_t status = emulator_wait_for_device();
    if (status != cudaSuccess)
        return emulator_error(status);
    return emulator_error(emulator_device_free(pointer) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t) {
    return cudaMalloc(pointer, bytes);
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t) {
    return cudaFree(pointer);
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int) {
    EMULATOR_CALL("cudaHostAlloc");
    *pointer = NULL;
    if (emulator_forbids_unsafe())
        return emulator_error(cudaErrorStreamCaptureUnsupported);
    if (posix_memalign(pointer, 4096, bytes ? bytes : 1))
        return emulator_error(cudaErrorMemoryAllocation);
    memset(*pointer, EMULATOR_POISON, bytes);
    pinned[(const char *)*pointer] = bytes;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes) {
    return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *pointer) {
    EMULATOR_CALL("cudaFreeHost");
    if (!pointer)
        return cudaSuccess;
    if (emulator_forbids_unsafe())
        return emulator_error(cudaErrorStreamCaptureUnsupported);
    if (!pinned.erase((const char *)pointer))
        return emulator_error(cudaErrorInvalidValue);
    free(pointer);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int) {
    EMULATOR_CALL("cudaHostRegister");
    if (emulator_forbids_unsafe())
        return emulator_error(cudaErrorStreamCaptureUnsupported);
    pinned[(const char *)pointer] = bytes;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *pointer) {
    EMULATOR_CALL("cudaHostUnregister");
    if (emulator_forbids_unsafe())
        return emulator_error(cudaErrorStreamCaptureUnsupported);
    return emulator_error(
        pinned.erase((const char *)pointer) ? cudaSuccess : cudaErrorInvalidValue);
}

bool emulator_is_pinned(const void *pointer) {
    const char *p = (const char *)pointer;
    auto after = pinned.upper_bound(p);
    if (after == pinned.begin())
        return false;
    --after;
    return p >= after->first && p < after->first + after->second;
}
