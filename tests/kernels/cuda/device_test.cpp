/* Tests kernels/cuda/device, memory and graph on the emulator: which errors the runtime's errors
 * become, the pool of weights, copies whose source is reused, pacing, and recorded work. Every
 * fault that the runtime can report is injected where it would be reported. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm/gemm_candidates.h"
#include "tests/check.h"
#include "tests/cuda-emulator/emulator.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct error err;

/* Errors of opening a device. */
static void what_stands_in_the_way() {
    emulator_set_capability(0);
    CHECK(!cuda_open(0, &err) && err.code == ERROR_NOT_FOUND, "no device: %s", err.message);
    CHECK_CONTAINS(err.message, "cuda:0");
    emulator_set_capability(70);
    CHECK(!cuda_open(0, &err) && err.code == ERROR_UNSUPPORTED, "too old: %s", err.message);
    CHECK_CONTAINS(err.message, "compute capability 7.0; 7.5 and later");
    emulator_set_capability(90);
    CHECK(!cuda_open(7, &err) && err.code == ERROR_NOT_FOUND, "index: %s", err.message);
    CHECK_CONTAINS(err.message, "cuda:7");
    emulator_fail("cudaGetDeviceCount", 1, cudaErrorInsufficientDriver, false);
    CHECK(!cuda_open(0, &err) && err.code == ERROR_NOT_FOUND, "driver: %s", err.message);
    CHECK_CONTAINS(err.message, "river");
    emulator_fail("cudaFuncGetAttributes", 1, cudaErrorNoKernelImageForDevice, false);
    CHECK(!cuda_open(0, &err) && err.code == ERROR_UNSUPPORTED, "no code: %s", err.message);
    CHECK_CONTAINS(err.message, "no code for compute capability 9.0");
    emulator_fail("cudaMalloc", 1, cudaErrorMemoryAllocation, false);
    CHECK(!cuda_open(0, &err) && err.code == ERROR_NO_MEMORY, "memory: %s", err.message);
    emulator_fail_nothing();
    CHECK(emulator_allocations() == 0, "%zu left", emulator_allocations());
    CHECK(!cuda_enter(&err) && cuda_stream() == NULL, "nothing is open");
}

static bool may_use_hopper() {
    const struct gemm_candidate hopper = { GEMM_HOPPER, 0, 1 };
    struct gemm_shape shape = {};
    shape.dtype = DTYPE_F16;
    shape.n = shape.k = 64;
    shape.h = shape.h_out = 1;
    shape.w = shape.w_out = 64;
    return gemm_can(&shape, &hopper);
}

/* Kernels for sm_80 on sm_90. Runs in a process of its own, because a device stays open until its
 * process ends. */
static void older_code() {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        emulator_set_code(80);
        const struct cuda_properties *p = cuda_get_properties();
        const bool ok = cuda_open(0, &err) && p->capability == 90 && p->code == 80 &&
                        !cuda_may_overlap(true) && !cuda_may_overlap(true) && !may_use_hopper();
        _exit(ok ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "code for sm_80 is taken for sm_90's");
}

/* A smaller scratch memory, in a process of its own. */
static void small_workspace() {
    static const char name[] = "LATENTD_CUDA_WORKSPACE_KIB";
    static const char *const wrong[] = { "", "63", "65537", "-64", "64k" };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        setenv(name, wrong[i], 1);
        CHECK(
            !cuda_open(0, &err) && err.code == ERROR_INVALID, "%s KiB: %s", wrong[i], err.message);
        CHECK_CONTAINS(err.message, "it can be 64 to 65536");
    }
    setenv(name, "64", 1);
    CHECK(cuda_workspace_bytes() == CUDA_WORKSPACE_BYTES, "before a device is open");
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const bool ok = cuda_open(0, &err) && cuda_workspace_bytes() == 64 << 10 &&
                        cuda_workspace(64 << 10) && !cuda_workspace((64 << 10) + 1);
        _exit(ok ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "64 KiB are not what was asked for");
    unsetenv(name);
}

static void overlap() {
    CHECK(cuda_get_properties()->code == 90 && may_use_hopper(), "%d", cuda_get_properties()->code);
    (void)cuda_may_overlap(false);
    CHECK(!cuda_may_overlap(true), "right behind a kernel that others do not wait for");
    CHECK(cuda_may_overlap(true), "not the one after");
    CHECK(!cuda_may_overlap(false) && !cuda_may_overlap(true) && cuda_may_overlap(true), "-");
}

static void opened() {
    CHECK(cuda_open(0, &err), "%s", err.message);
    CHECK(cuda_open(0, &err), "twice: %s", err.message);
    CHECK(!cuda_open(1, &err) && err.code == ERROR_UNSUPPORTED, "%s", err.message);
    const struct cuda_properties *p = cuda_get_properties();
    printf("%s, capability %d, %zu MiB\n", p->name, p->capability, p->memory_bytes >> 20);
    CHECK(p->capability == 90 && p->name[0] && p->multiprocessors > 0 && p->bus_id[0], "-");
    CHECK(cuda_workspace(CUDA_WORKSPACE_BYTES) && !cuda_workspace(CUDA_WORKSPACE_BYTES + 1), "-");
    CHECK(cuda_ok(cudaSuccess, "x", &err), "-");
    CHECK(!cuda_ok(cudaErrorInvalidValue, "a launch", &err) && err.code == ERROR_DEVICE, "-");
    CHECK_CONTAINS(err.message, "a launch");
    CHECK(!cuda_ok(cudaErrorMemoryAllocation, "x", &err) && err.code == ERROR_NO_MEMORY, "-");
    CHECK(cuda_ok(cudaSuccess, "x", &err), "neither of them is for good");
}

/* Each case runs in a process of its own, because a lost device stays lost. */
static void what_loses_a_device() {
    static const cudaError_t fatal[] = { cudaErrorUnknown, cudaErrorNoDevice,
        cudaErrorInvalidDevice, cudaErrorContextIsDestroyed, cudaErrorDeviceUninitialized,
        cudaErrorMpsConnectionFailed, cudaErrorMpsRpcFailure, cudaErrorMpsServerNotReady,
        cudaErrorMpsClientTerminated, cudaErrorECCUncorrectable, cudaErrorIllegalAddress,
        cudaErrorLaunchTimeout, cudaErrorLaunchFailure, cudaErrorTensorMemoryLeak };
    static const cudaError_t harmless[] = { cudaErrorInvalidValue, cudaErrorMemoryAllocation,
        cudaErrorNotSupported, cudaErrorInvalidConfiguration, cudaErrorStreamCaptureInvalidated,
        cudaErrorLaunchOutOfResources };
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]) + 6; i++) {
        const bool is_fatal = i < sizeof(fatal) / sizeof(fatal[0]);
        const cudaError_t status = is_fatal ? fatal[i] : harmless[i - (sizeof(fatal) / 4)];
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            struct error why = {};
            (void)cuda_ok(status, "a launch", &why);
            _exit(why.code == ERROR_DEVICE_LOST ? !cuda_enter(NULL) : 2 * cuda_enter(NULL));
        }
        int ended = 0;
        waitpid(child, &ended, 0);
        CHECK(WIFEXITED(ended) && WEXITSTATUS(ended) == (is_fatal ? 1 : 2), "error %d: status %d",
            (int)status, ended);
    }
}

static void weights_pool() {
    void *small[300], *large = NULL, *huge = NULL;
    size_t before = emulator_memory_used(), blocks = emulator_allocations();
    for (int i = 0; i < 300; i++) {
        CHECK(cuda_memory.alloc(MEMORY_WEIGHTS, 1000, &small[i], &err), "%s", err.message);
        CHECK((uintptr_t)small[i] % MEMORY_ALIGNMENT == 0, "aligned");
        CHECK(i == 0 || (char *)small[i] >= (char *)small[i - 1] + 1000, "apart");
    }
    CHECK(emulator_allocations() == blocks + 1, "many pieces, one block");
    CHECK(cuda_memory.alloc(MEMORY_WEIGHTS, 100 << 20, &large, &err), "%s", err.message);
    CHECK(emulator_allocations() == blocks + 2, "a large one has its own");
    CHECK(cuda_memory.used(MEMORY_WEIGHTS) == 300 * 1024 + (100 << 20), "%zu",
        cuda_memory.used(MEMORY_WEIGHTS));
    emulator_set_memory(emulator_memory_used() + (1 << 20));
    struct available left;
    cuda_memory.available(&left);
    CHECK(left.bytes == 0, "%zu", left.bytes);
    CHECK(!cuda_memory.alloc(MEMORY_WEIGHTS, 80 << 20, &huge, &err) && !huge, "full");
    CHECK(err.code == ERROR_NO_MEMORY, "%s", err.message);
    CHECK(!cuda_memory.alloc(MEMORY_ACTIVATIONS, 50 << 20, &huge, &err) && !huge, "full");
    CHECK(err.code == ERROR_NO_MEMORY, "%s", err.message);
    CHECK(!cuda_memory.alloc(MEMORY_WEIGHTS, SIZE_MAX - 5, &huge, &err), "absurd");
    CHECK(cuda_memory.alloc(MEMORY_WEIGHTS, 1000, &huge, &err), "a small one still fits");
    cuda_memory.release(MEMORY_WEIGHTS, huge, 1000);
    cuda_memory.release(MEMORY_WEIGHTS, large, 100 << 20);
    for (int i = 0; i < 300; i++)
        cuda_memory.release(MEMORY_WEIGHTS, small[i], 1000);
    cuda_memory.release(MEMORY_WEIGHTS, NULL, 0);
    CHECK(emulator_memory_used() == before && cuda_memory.used(MEMORY_WEIGHTS) == 0, "all back");
    emulator_set_memory((size_t)1 << 30);
    const size_t unused = ((size_t)1 << 30) - emulator_memory_used();
    cuda_memory.available(&left);
    CHECK(left.bytes == unused - (256 << 20), "%zu of %zu: the rest is the driver's", left.bytes,
        unused);
}

/* Copies far more than the ring holds, in odd sizes, and overwrites each source at once. */
static void copies() {
    const size_t bytes = (37 << 20) + 13;
    void *block = NULL;
    unsigned char *host = (unsigned char *)malloc(bytes);
    CHECK(cuda_memory.alloc(MEMORY_ACTIVATIONS, bytes, &block, &err), "%s", err.message);
    for (size_t i = 0; i < bytes; i++)
        host[i] = (unsigned char)(i * 31 + i / 1000);
    CHECK(cuda_upload(block, host, bytes, &err), "%s", err.message);
    memset(host, 0, bytes);
    for (int i = 0; i < 50; i++) {
        host[0] = (unsigned char)i;
        CHECK(cuda_upload((char *)block + i * 1000, host, 1, &err), "%s", err.message);
    }
    host[0] = 0;
    emulator_fail("cudaHostAlloc", 1, cudaErrorMemoryAllocation, false);
    CHECK(!cuda_memory.view(block, bytes, &err) && err.code == ERROR_NO_MEMORY, "%s", err.message);
    CHECK_CONTAINS(err.message, "38 MiB of page-locked host memory");
    const unsigned char *seen = (const unsigned char *)cuda_memory.view(block, bytes, &err);
    size_t wrong = 0;
    for (size_t i = 0; seen && i < bytes; i++) {
        bool marked = i % 1000 == 0 && i / 1000 < 50;
        wrong += seen[i] !=
                 (marked ? (unsigned char)(i / 1000) : (unsigned char)(i * 31 + i / 1000));
    }
    CHECK(seen && wrong == 0, "%zu of %zu bytes are wrong", wrong, bytes);
    free(host);
    cuda_memory.release(MEMORY_ACTIVATIONS, block, bytes);
    CHECK(cuda_memory.used(MEMORY_ACTIVATIONS) == 0, "-");
}

static void count_up(void *number) {
    ++*(int *)number;
}

/* The host is never more than one step ahead. */
static void pacing() {
    int done = 0;
    CHECK(cuda_memory.synchronize(&err), "%s", err.message);
    for (int step = 0; step < 20; step++) {
        CHECK(cudaLaunchHostFunc(cuda_stream(), count_up, &done) == cudaSuccess, "-");
        CHECK(cuda_memory.pace(&err), "%s", err.message);
        CHECK(done >= step, "step %d: only %d are done", step, done);
    }
    CHECK(cuda_memory.synchronize(&err) && done == 20, "%d", done);
}

static void recorded_work() {
    void *block = NULL;
    struct recording *r = NULL, *none = NULL;
    CHECK(cuda_memory.alloc(MEMORY_ACTIVATIONS, 1 << 20, &block, &err), "%s", err.message);
    CHECK(cuda_recorder.begin(&err) && cuda_is_recording(), "%s", err.message);
    CHECK(cudaMemsetAsync(block, 7, 1 << 20, cuda_stream()) == cudaSuccess, "-");
    CHECK(!cuda_upload(block, "x", 1, &err) && err.code == ERROR_INTERNAL, "%s", err.message);
    CHECK(!cuda_memory.view(block, 1, &err) && !cuda_memory.pace(&err) &&
              !cuda_memory.synchronize(&err),
        "no waiting while recording");
    CHECK(cuda_recorder.end(&r, &err) && !cuda_is_recording(), "%s", err.message);
    CHECK(cuda_recorder.launches(r) == 0, "a fill is no kernel");
    for (int i = 0; i < 3; i++) {
        const char zero = 0;
        CHECK(cuda_upload((char *)block + 5, &zero, 1, &err), "%s", err.message);
        CHECK(cuda_recorder.replay(r, &err), "%s", err.message);
        const char *seen = (const char *)cuda_memory.view(block, 10, &err);
        CHECK(seen && seen[5] == 7, "replay %d", i);
    }
    cuda_recorder.destroy(r);
    cuda_recorder.destroy(NULL);

    CHECK(cuda_recorder.begin(&err) && cuda_recorder.end(NULL, NULL), "thrown away");
    CHECK(!cuda_is_recording() && cuda_memory.synchronize(&err), "%s", err.message);
    static const char *const steps[] = { "cudaStreamBeginCapture", "cudaStreamEndCapture",
        "cudaGraphGetNodes", "cudaGraphInstantiate" };
    for (int i = 0; i < 4; i++) {
        emulator_fail(
            steps[i], 1, i == 3 ? cudaErrorMemoryAllocation : cudaErrorInvalidValue, false);
        bool ok = cuda_recorder.begin(&err) && cuda_recorder.end(&none, &err);
        CHECK(!ok && !none && !cuda_is_recording(), "%s", steps[i]);
        CHECK(err.code == (i == 3 ? ERROR_NO_MEMORY : ERROR_DEVICE), "%s", err.message);
        emulator_fail_nothing();
        if (i == 1) { /* the injected failure left the stream capturing */
            cudaGraph_t graph;
            (void)cudaStreamEndCapture(cuda_stream(), &graph);
            if (graph)
                (void)cudaGraphDestroy(graph);
        }
    }
    CHECK(cuda_memory.synchronize(&err), "%s", err.message);
    cuda_memory.release(MEMORY_ACTIVATIONS, block, 1 << 20);
}

/* The device is lost, and the first call that notices it reports it. After that, every call fails
 * and none hangs. */
static void lost() {
    void *block = NULL;
    CHECK(cuda_memory.alloc(MEMORY_ACTIVATIONS, 4096, &block, &err), "%s", err.message);
    emulator_fail("cudaStreamSynchronize", 1, cudaErrorIllegalAddress, true);
    CHECK(!cuda_memory.view(block, 4096, &err) && err.code == ERROR_DEVICE_LOST, "%s", err.message);
    CHECK_CONTAINS(err.message, "cudaErrorIllegalAddress");
    CHECK_CONTAINS(err.message, "the GPU is lost to this process");
    emulator_fail_nothing(); /* the device stays lost */
    CHECK(!cuda_enter(&err) && err.code == ERROR_DEVICE_LOST, "%s", err.message);
    CHECK(!cuda_upload(block, "x", 1, &err) && err.code == ERROR_DEVICE_LOST, "%s", err.message);
    CHECK(!cuda_memory.synchronize(&err) && err.code == ERROR_DEVICE_LOST, "%s", err.message);
    CHECK(!cuda_memory.pace(&err) && !cuda_recorder.begin(&err), "%s", err.message);
    CHECK(!cuda_open(0, &err) && err.code == ERROR_DEVICE_LOST, "%s", err.message);
    const size_t used = emulator_memory_used();
    cuda_memory.release(MEMORY_ACTIVATIONS, block, 4096);
    CHECK(emulator_memory_used() == used, "nothing is asked of a device that is lost");
}

int main() {
    what_stands_in_the_way();
    older_code();
    small_workspace();
    opened();
    overlap();
    what_loses_a_device();
    weights_pool();
    copies();
    pacing();
    recorded_work();
    lost();
    return check_done();
}
