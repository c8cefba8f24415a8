#include "kernels/cuda/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CAPABILITY_MIN 75

static struct {
    bool open;
    bool overlapping;       /* the last kernel is written for overlapping */
    bool lost;              /* set once, after the message; read by any thread */
    char lost_message[256]; /* written under lost_lock, before lost is set, and never again */
    cudaStream_t stream;
    void *workspace;
    struct cuda_properties properties;
} device;

static pthread_mutex_t lost_lock = PTHREAD_MUTEX_INITIALIZER;

/* Whether an error makes the device unusable for this process. These are the errors after which the
 * runtime's documentation tells the process to end, and errors that say that an open device is
 * gone. An unknown error counts as fatal, because its effects are unknown. */
static bool is_fatal(cudaError_t status) {
    switch (status) {
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDeviceUninitialized:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorContextIsDestroyed:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsServerNotReady:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
        return true;
    default:
        return false;
    }
}

/* Records that the device is lost. The first thread to see it sets the message. */
static void set_lost(cudaError_t status, const char *what) {
    pthread_mutex_lock(&lost_lock);
    if (!device.lost) {
        snprintf(device.lost_message, sizeof(device.lost_message),
            "the GPU is lost to this process (%.100s: %s, %s)", what, cudaGetErrorName(status),
            cudaGetErrorString(status));
        __atomic_store_n(&device.lost, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lost_lock);
}

bool cuda_ok(cudaError_t status, const char *what, struct error *err) {
    if (__atomic_load_n(&device.lost, __ATOMIC_ACQUIRE))
        return error_set(err, ERROR_DEVICE_LOST, "%s", device.lost_message);
    if (status == cudaSuccess)
        return true;
    /* Clears the error that the runtime keeps, or the next cudaGetLastError would blame another
     * call for it. */
    (void)cudaGetLastError();
    if (status == cudaErrorMemoryAllocation)
        return error_set(err, ERROR_NO_MEMORY, "%s: the GPU's memory is full", what);
    if (device.open && is_fatal(status)) {
        set_lost(status, what);
        return error_set(err, ERROR_DEVICE_LOST, "%s", device.lost_message);
    }
    return error_set(err, ERROR_DEVICE, "%s: %s (%s)", what, cudaGetErrorString(status),
        cudaGetErrorName(status));
}

/* Never launched. Its attributes tell which code the device has loaded, which is the same for all
 * kernels here. Reading them fails on a chip that this build has no code for. */
static __global__ void probe() {
}

static bool read_properties(int index, struct cuda_properties *out, struct error *err) {
    struct cudaDeviceProp p;
    if (!cuda_ok(cudaGetDeviceProperties(&p, index), "cudaGetDeviceProperties", err))
        return false;
    memset(out, 0, sizeof(*out));
    out->index = index;
    snprintf(out->name, sizeof(out->name), "%.63s", p.name);
    out->capability = 10 * p.major + p.minor;
    out->multiprocessors = p.multiProcessorCount;
    out->shared_bytes_per_block = p.sharedMemPerBlockOptin;
    out->l2_bytes = (size_t)p.l2CacheSize;
    out->memory_bytes = p.totalGlobalMem;
    return cuda_ok(cudaDriverGetVersion(&out->driver_version), "cudaDriverGetVersion", err) &&
           cuda_ok(cudaRuntimeGetVersion(&out->runtime_version), "cudaRuntimeGetVersion", err) &&
           cuda_ok(cudaDeviceGetPCIBusId(out->bus_id, sizeof(out->bus_id), index),
               "cudaDeviceGetPCIBusId", err);
}

/* Reads a switch from the environment. A feature is on unless its switch is 0. Switches are for
 * measuring what a feature is worth, and for finding the cause of a fault. */
static bool is_off(const char *name, bool *off, struct error *err) {
    const char *text = getenv(name);
    *off = text && strcmp(text, "0") == 0;
    return !text || *off || strcmp(text, "1") == 0 ||
           error_set(err, ERROR_INVALID, "%s is \"%.40s\"; it can be 0 or 1", name, text);
}

/* With a small workspace entries cut their work into many parts. With the default size few calls
 * are cut. */
static bool read_workspace(struct cuda_properties *out, struct error *err) {
    static const char name[] = "LATENTD_CUDA_WORKSPACE_KIB";
    const size_t most = CUDA_WORKSPACE_BYTES >> 10;
    const char *text = getenv(name);
    char *end = NULL;
    const size_t kib = text ? (size_t)strtoull(text, &end, 10) : most;
    out->workspace_bytes = kib << 10;
    return !text ||
           (*text >= '0' && *text <= '9' && !*end && kib >= CUDA_WORKSPACE_KIB_MIN &&
               kib <= most) ||
           error_set(err, ERROR_INVALID, "%s is \"%.40s\"; it can be %d to %zu", name, text,
               CUDA_WORKSPACE_KIB_MIN, most);
}

static bool read_switches(struct cuda_properties *out, struct error *err) {
    return read_workspace(out, err) && is_off("LATENTD_CUDA_OVERLAP", &out->no_overlap, err) &&
           is_off("LATENTD_CUDA_CLUSTERS", &out->no_clusters, err);
}

/* Checks that the device exists. */
static bool find(int index, struct error *err) {
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
        (void)cudaGetLastError();
        return error_set(err, ERROR_NOT_FOUND, "cuda:%d: the NVIDIA driver finds no GPU", index);
    }
    if (status == cudaErrorInsufficientDriver || status == cudaErrorStubLibrary) {
        int driver = 0, runtime = 0;
        (void)cudaDriverGetVersion(&driver);
        (void)cudaRuntimeGetVersion(&runtime);
        (void)cudaGetLastError();
        if (driver == 0)
            return error_set(err, ERROR_NOT_FOUND, "cuda:%d: no NVIDIA driver is installed", index);
        return error_set(err, ERROR_NOT_FOUND,
            "cuda:%d: the NVIDIA driver supports CUDA %d.%d, this build needs %d.%d", index,
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    }
    if (!cuda_ok(status, "cudaGetDeviceCount", err))
        return false;
    if (index < 0 || index >= count)
        return error_set(err, ERROR_NOT_FOUND, "cuda:%d: the last of %d GPUs is cuda:%d", index,
            count, count - 1);
    return true;
}

static bool check_chip(struct cuda_properties *p, struct error *err) {
    struct cudaFuncAttributes attributes;
    if (p->capability < CAPABILITY_MIN)
        return error_set(err, ERROR_UNSUPPORTED,
            "cuda:%d: %s has compute capability %d.%d; 7.5 and later are supported", p->index,
            p->name, p->capability / 10, p->capability % 10);
    if (cudaFuncGetAttributes(&attributes, (const void *)probe) == cudaSuccess) {
        p->code = attributes.ptxVersion;
        return true;
    }
    (void)cudaGetLastError();
    return error_set(err, ERROR_UNSUPPORTED,
        "cuda:%d: this build has no code for compute capability %d.%d (%s)", p->index,
        p->capability / 10, p->capability % 10, p->name);
}

bool cuda_open(int index, struct error *err) {
    if (device.open && device.properties.index == index)
        return cuda_ok(cudaSuccess, "", err);
    if (device.open)
        return error_set(err, ERROR_UNSUPPORTED, "cuda:%d: this process already uses cuda:%d",
            index, device.properties.index);
    struct cuda_properties properties;
    cudaStream_t stream = NULL;
    void *workspace = NULL;
    if (!find(index, err) || !read_properties(index, &properties, err) ||
        !read_switches(&properties, err) || !cuda_ok(cudaSetDevice(index), "cudaSetDevice", err) ||
        !check_chip(&properties, err))
        return false;
    if (!cuda_ok(
            cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream", err) ||
        !cuda_ok(cudaMalloc(&workspace, properties.workspace_bytes), "cudaMalloc of the workspace",
            err)) {
        if (stream)
            (void)cudaStreamDestroy(stream);
        return error_prefix(err, "cuda:%d", index);
    }
    device.properties = properties;
    device.stream = stream;
    device.workspace = workspace;
    device.open = true;
    return true;
}

const struct cuda_properties *cuda_get_properties(void) {
    return &device.properties;
}

cudaStream_t cuda_stream(void) {
    return device.stream;
}

bool cuda_may_overlap(bool wanted) {
    const bool may = wanted && device.overlapping && device.properties.code >= 90 &&
                     !device.properties.no_overlap;
    device.overlapping = wanted;
    return may;
}

void cuda_forbid_overlap(void) {
    device.overlapping = false;
}

void *cuda_workspace(size_t bytes) {
    return bytes <= device.properties.workspace_bytes ? device.workspace : NULL;
}

size_t cuda_workspace_bytes(void) {
    return device.open ? device.properties.workspace_bytes : CUDA_WORKSPACE_BYTES;
}

bool cuda_enter(struct error *err) {
    if (!device.open)
        return error_set(err, ERROR_INTERNAL, "no CUDA device is open");
    return cuda_ok(cudaSetDevice(device.properties.index), "cudaSetDevice", err);
}
