/* The emulated runtime compared with CUDA's documentation: queued streams, events, graphs, memory,
 * limits and injected errors. */
#include "kernels/cuda/ptx.cuh"
#include "tests/check.h"
#include "tests/cuda-emulator/emulator.h"

#include <thread>

#define OK(call) CHECK((call) == cudaSuccess, "%s", cudaGetErrorName(cudaPeekAtLastError()))
#define FAILS(call, error)                                                                         \
    do {                                                                                           \
        const cudaError_t got = (call);                                                            \
        CHECK(got == (error), "%s, not %s", cudaGetErrorName(got), cudaGetErrorName(error));       \
        cudaGetLastError();                                                                        \
    } while (0)

static __global__ void add_kernel(int *x, int value) {
    x[threadIdx.x] += value;
}

static cudaError_t add(cudaStream_t stream, int *x, int value, size_t shared = 0) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(4);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, add_kernel, x, value);
}

static void streams_run_when_waited_for(void) {
    cudaStream_t a, b;
    cudaEvent_t event;
    int *x, *host;
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaEventCreate(&event));
    OK(cudaMalloc(&x, 16));
    OK(cudaHostAlloc(&host, 16, cudaHostAllocDefault));
    CHECK(x[0] == -1 && host[0] == -1, "new memory is not poisoned");
    OK(cudaMemsetAsync(x, 0, 16, a));
    OK(add(a, x, 5));
    OK(cudaMemcpyAsync(host, x, 16, cudaMemcpyDeviceToHost, a));
    CHECK(host[0] == -1, "the copy of %d has arrived before it was waited for", host[0]);
    OK(cudaStreamSynchronize(a));
    CHECK(host[0] == 5 && host[3] == 5, "%d", host[0]);

    /* b waits for a's event. Nothing else waits for a. */
    OK(add(a, x, 10));
    OK(cudaEventRecord(event, a));
    OK(add(a, x, 100));
    OK(cudaStreamWaitEvent(b, event));
    OK(cudaMemcpyAsync(host, x, 16, cudaMemcpyDeviceToHost, b));
    OK(cudaStreamSynchronize(b));
    CHECK(host[0] == 15 || host[0] == 115, "%d", host[0]);
    OK(cudaDeviceSynchronize());
    CHECK(x[0] == 115, "%d", x[0]);

    /* Pageable memory may be reused as soon as the call returns, pinned memory may not. */
    int pageable[4] = { 1, 1, 1, 1 };
    OK(cudaMemcpyAsync(x, pageable, 16, cudaMemcpyHostToDevice, a));
    pageable[0] = 2;
    OK(cudaStreamSynchronize(a));
    CHECK(x[0] == 1, "%d", x[0]);
    host[0] = 3;
    OK(cudaMemcpyAsync(x, host, 16, cudaMemcpyHostToDevice, a));
    host[0] = 4;
    OK(cudaStreamSynchronize(a));
    CHECK(x[0] == 4, "%d: a pinned buffer was read too early", x[0]);

    float ms = -1;
    cudaEvent_t end;
    OK(cudaEventCreate(&end));
    OK(cudaEventRecord(event, a));
    OK(cudaEventRecord(end, a));
    FAILS(cudaEventElapsedTime(&ms, event, end), cudaErrorNotReady);
    OK(cudaEventSynchronize(end));
    OK(cudaEventElapsedTime(&ms, event, end));
    CHECK(ms >= 0, "%g ms", ms);
    OK(cudaEventDestroy(end));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaFree(x));
    OK(cudaFreeHost(host));
}

static void graphs_replay(void) {
    cudaStream_t a, b;
    cudaEvent_t fork, join;
    cudaGraph_t graph, other;
    cudaGraphExec_t exec;
    cudaGraphExecUpdateResultInfo info;
    size_t nodes = 0;
    int *x;
    OK(cudaStreamCreate(&a));
    OK(cudaStreamCreate(&b));
    OK(cudaEventCreate(&fork));
    OK(cudaEventCreate(&join));
    OK(cudaMalloc(&x, 16));
    OK(cudaMemset(x, 0, 16));
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
    OK(add(a, x, 1));
    OK(cudaEventRecord(fork, a));
    OK(cudaStreamWaitEvent(b, fork));
    OK(add(b, x, 10));
    OK(cudaEventRecord(join, b));
    OK(cudaStreamWaitEvent(a, join));
    OK(add(a, x, 100));
    OK(cudaStreamEndCapture(a, &graph));
    OK(cudaGraphGetNodes(graph, NULL, &nodes));
    CHECK(nodes == 3, "%zu nodes", nodes);
    OK(cudaDeviceSynchronize());
    CHECK(x[0] == 0, "%d: captured work ran", x[0]);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, a));
    OK(cudaGraphLaunch(exec, a));
    OK(cudaStreamSynchronize(a));
    CHECK(x[0] == 222, "%d", x[0]);

    OK(cudaGraphDestroy(graph));
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    OK(add(a, x, 2));
    OK(add(a, x, 20));
    OK(add(a, x, 200));
    OK(cudaStreamEndCapture(a, &other));
    OK(cudaGraphExecUpdate(exec, other, &info));
    OK(cudaGraphLaunch(exec, a));
    OK(cudaGraphExecDestroy(exec)); /* queued work still runs */
    OK(cudaStreamSynchronize(a));
    CHECK(x[0] == 444, "%d", x[0]);

    /* Waiting for a stream invalidates its capture. So does ending a capture with a stream that was
     * not joined. */
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    FAILS(cudaStreamSynchronize(a), cudaErrorStreamCaptureUnsupported);
    FAILS(add(a, x, 1), cudaErrorStreamCaptureInvalidated);
    FAILS(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);
    /* So do calls that allocate or free memory, because the driver may wait in them. */
    void *memory = NULL, *pinned = NULL;
    OK(cudaMallocHost(&pinned, 16));
    for (int call = 0; call < 4; call++) {
        OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
        OK(add(a, x, 1));
        FAILS(call == 0   ? cudaMalloc(&memory, 16)
              : call == 1 ? cudaFree(x)
              : call == 2 ? cudaMallocHost(&memory, 16)
                          : cudaFreeHost(pinned),
            cudaErrorStreamCaptureUnsupported);
        FAILS(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);
    }
    OK(cudaFreeHost(pinned));
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
    OK(cudaMalloc(&memory, 16));
    OK(cudaStreamEndCapture(a, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(memory));
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    OK(cudaEventRecord(fork, a));
    OK(cudaStreamWaitEvent(b, fork));
    OK(add(b, x, 1));
    FAILS(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureUnjoined);
    OK(cudaGraphDestroy(other));
    OK(cudaEventDestroy(fork));
    OK(cudaEventDestroy(join));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaFree(x));
}

/* Checks that a call during a capture of `stream` fails with `error`, and that it invalidates the
 * capture. */
template <class CALL>
static void refused(cudaStream_t stream, int *x, cudaError_t error, CALL call) {
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(add(stream, x, 1));
    FAILS(call(), error);
    FAILS(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
}

static void captures_refuse_what_cuda_does(void) {
    cudaStream_t blocking, free_stream;
    cudaEvent_t inside, outside;
    cudaGraph_t graph;
    int *x, there = 0;
    OK(cudaStreamCreate(&blocking));
    OK(cudaStreamCreateWithFlags(&free_stream, cudaStreamNonBlocking));
    OK(cudaEventCreate(&inside));
    OK(cudaEventCreate(&outside));
    OK(cudaEventRecord(outside, free_stream));
    OK(cudaMalloc(&x, 16));
    OK(cudaMemset(x, 0, 16));
    const cudaError_t unsupported = cudaErrorStreamCaptureUnsupported;
    refused(blocking, x, cudaErrorStreamCaptureImplicit, [&] { return add(NULL, x, 1); });
    refused(blocking, x, cudaErrorStreamCaptureImplicit, [&] { return cudaMemset(x, 0, 16); });
    refused(blocking, x, unsupported, [&] { return cudaEventQuery(outside); });
    refused(blocking, x, unsupported, [&] { return cudaEventSynchronize(outside); });
    refused(blocking, x, unsupported, [&] { return cudaStreamQuery(blocking); });
    refused(blocking, x, unsupported, [&] { return cudaStreamDestroy(blocking); });
    refused(blocking, x, unsupported, [&] { return cudaDeviceSynchronize(); });
    refused(
        blocking, x, unsupported, [&] { return cudaMemcpy(&there, x, 4, cudaMemcpyDeviceToHost); });
    refused(blocking, x, unsupported,
        [&] { return cudaHostRegister(&there, sizeof(there), cudaHostRegisterDefault); });
    refused(blocking, x, cudaErrorCapturedEvent, [&] {
        OK(cudaEventRecord(inside, blocking));
        return cudaEventQuery(inside);
    });
    OK(cudaDeviceSynchronize());
    CHECK(x[0] == 0, "%d: work of a spoiled capture ran", x[0]);

    /* A capture of a stream that does not wait for the legacy stream is not affected by it. */
    OK(cudaStreamBeginCapture(free_stream, cudaStreamCaptureModeThreadLocal));
    OK(add(NULL, x, 7));
    CHECK(x[0] == 7, "%d", x[0]);
    /* Nor is it affected by other threads. They may query events, but may not end the capture. */
    std::thread other([&] {
        OK(cudaEventQuery(outside));
        FAILS(cudaStreamEndCapture(free_stream, &graph), cudaErrorStreamCaptureWrongThread);
    });
    other.join();
    OK(cudaStreamEndCapture(free_stream, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaEventDestroy(inside));
    OK(cudaEventDestroy(outside));
    OK(cudaStreamDestroy(blocking));
    OK(cudaStreamDestroy(free_stream));
    OK(cudaFree(x));
}

static __global__ void large_kernel(int *) {
}

/* Up to 8 blocks are always allowed; up to 16 if the kernel has opted in and the chip has the
 * room. */
static void clusters_have_their_size(int *x) {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = { 4, 1, 3 };
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(4, 1, 3);
    config.blockDim = dim3(1);
    config.attrs = &cluster;
    config.numAttrs = 1;
    int count = -1;
    FAILS(cudaLaunchKernelEx(&config, large_kernel, x), cudaErrorInvalidClusterSize);
    FAILS(
        cudaOccupancyMaxActiveClusters(&count, large_kernel, &config), cudaErrorInvalidClusterSize);
    OK(cudaFuncSetAttribute(large_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    OK(cudaOccupancyMaxActiveClusters(&count, large_kernel, &config));
    CHECK(count == 14, "%d clusters", count);
    OK(cudaLaunchKernelEx(&config, large_kernel, x));
    emulator_set_largest_cluster(8);
    OK(cudaOccupancyMaxActiveClusters(&count, large_kernel, &config));
    CHECK(count == 0, "%d clusters", count);
    FAILS(cudaLaunchKernelEx(&config, large_kernel, x), cudaErrorInvalidClusterSize);
    emulator_set_largest_cluster(16);
}

static void limits_are_the_devices(void) {
    struct cudaDeviceProp p;
    int *x, blocks = 0;
    void *large;
    size_t available, total;
    OK(cudaMalloc(&x, 16));
    emulator_set_capability(75);
    OK(cudaGetDeviceProperties(&p, 0));
    CHECK(p.major == 7 && p.minor == 5 && p.sharedMemPerBlockOptin == 65536, "%d.%d", p.major,
        p.minor);
    FAILS(add(NULL, x, 1, 65536), cudaErrorInvalidValue);
    FAILS(cudaFuncSetAttribute(add_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 65537),
        cudaErrorInvalidValue);
    OK(cudaFuncSetAttribute(add_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
    OK(add(NULL, x, 1, 65536));
    emulator_set_capability(90);
    OK(cudaFuncSetAttribute(add_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add_kernel, 128, 100 << 10));
    CHECK(blocks == 2, "%d blocks", blocks);
    clusters_have_their_size(x);

    emulator_set_memory(1 << 20);
    OK(cudaMemGetInfo(&available, &total));
    CHECK(total == 1 << 20 && available == total - 16, "%zu of %zu", available, total);
    FAILS(cudaMalloc(&large, 1 << 20), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&large, 1 << 19));
    FAILS(cudaMemcpy(large, x, 17, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    FAILS(cudaMemcpy(&blocks, large, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    OK(cudaFree(large));
    FAILS(cudaFree(large), cudaErrorInvalidValue);
    OK(cudaFree(x));
    emulator_set_memory((size_t)1 << 34);
}

static void errors_can_be_injected(void) {
    int *x = NULL;
    emulator_fail("cudaMalloc", 2, cudaErrorMemoryAllocation, false);
    OK(cudaMalloc(&x, 16));
    OK(cudaMemset(x, 0, 16));
    void *y;
    FAILS(cudaMalloc(&y, 16), cudaErrorMemoryAllocation);
    OK(add(NULL, x, 1));
    emulator_fail(NULL, 1, cudaErrorLaunchFailure, true);
    FAILS(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    FAILS(add(NULL, x, 1), cudaErrorLaunchFailure);
    FAILS(cudaFree(x), cudaErrorLaunchFailure);
    CHECK(cudaGetLastError() == cudaErrorLaunchFailure, "a sticky error is forgotten");
    emulator_fail_nothing();
    CHECK(cudaGetLastError() == cudaSuccess, "an error is left");
    OK(cudaFree(x));
    int count = -1;
    emulator_set_capability(0);
    FAILS(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    CHECK(count == 0, "%d devices", count);
    emulator_set_capability(90);
}

int main(void) {
    for (int seed = 1; seed <= 10; seed++) {
        emulator_set_seed((uint64_t)seed);
        streams_run_when_waited_for();
        graphs_replay();
    }
    captures_refuse_what_cuda_does();
    limits_are_the_devices();
    errors_can_be_injected();
    CHECK(emulator_allocations() == 0, "%zu allocations are left", emulator_allocations());
    return check_done();
}
