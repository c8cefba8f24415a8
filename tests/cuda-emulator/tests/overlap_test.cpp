/* Kernels that are launched to overlap the previous one. They cannot see what that kernel writes
 * before they call griddepcontrol_wait. Tested in a stream and in a graph. */
#include "kernels/cuda/ptx_hopper.cuh"
#include "tests/cuda-emulator/planted.h"
#include "tests/cuda-emulator/tests/kernel_test.h"

#define OK(call) CHECK((call) == cudaSuccess, "%s", cudaGetErrorName(cudaPeekAtLastError()))

static const int THREADS = 64, BLOCKS = 3, COUNT = THREADS * BLOCKS;

static __global__ void ahead_kernel(float *x, float value) {
    x[blockIdx.x * THREADS + threadIdx.x] = value;
    griddepcontrol_wait();
    griddepcontrol_launch();
}

enum fault {
    NOTHING,
    READS_EARLY,     /* reads the previous kernel's output before the wait */
    LAST_WARP_EARLY, /* only one warp does */
    ONE_WAITS,       /* one thread waits for all, and the others continue */
    ONE_WAITS_RIGHT, /* one thread waits, and the others meet it at a barrier */
    TMA_EARLY,       /* the TMA copy is requested before the wait */
    WRITES_EARLY,    /* to its own output, which the previous kernel may still read */
    LAUNCHES_EARLY,  /* lets the next kernel start, which then waits for this kernel only */
};

/* y = x + weight. A weight may be read before the wait. */
template <int FAULT>
static __global__ void behind_kernel(const float *x, const float *weight, float *y) {
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x), thread = (int)threadIdx.x;
    const float w = weight[i];
    float early = 0;
    if (FAULT == READS_EARLY || (FAULT == LAST_WARP_EARLY && thread >= 32))
        early = x[i];
    if (FAULT == WRITES_EARLY)
        y[i] = w;
    if (FAULT == LAUNCHES_EARLY)
        griddepcontrol_launch();
    if ((FAULT != ONE_WAITS && FAULT != ONE_WAITS_RIGHT) || thread == 0)
        griddepcontrol_wait();
    if (FAULT == ONE_WAITS_RIGHT)
        __syncthreads();
    if (!(FAULT == READS_EARLY || (FAULT == LAST_WARP_EARLY && thread >= 32)))
        early = x[i];
    y[i] = early + w;
}

static const int BOX = 64; /* elements: a row of 128 bytes */

/* The same sum for data that TMA loads. */
template <int FAULT>
static __global__ void copying_kernel(const __grid_constant__ CUtensorMap map, float *y) {
    DYNAMIC_SHARED(unsigned char, s);
    uint64_t *full = (uint64_t *)(s + 128);
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_fence_init();
        mbarrier_arrive_expect_tx(full, 128);
        if (FAULT != TMA_EARLY)
            griddepcontrol_wait();
        tma_load_3d(s, &map, full, (int)blockIdx.x * BOX, 0, 0);
        griddepcontrol_wait();
    }
    __syncthreads();
    mbarrier_wait(full, 0);
    if (threadIdx.x < 32)
        y[blockIdx.x * 32 + threadIdx.x] = ((const float *)s)[threadIdx.x];
}

template <class... P, class... A>
static void queue(cudaStream_t stream, bool overlap, void (*kernel)(P...), A... arguments) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(BLOCKS);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = 256;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = overlap;
    OK(cudaLaunchKernelEx(&config, kernel, arguments...));
}

struct rig {
    cudaStream_t stream;
    float *x, *weight, *y;
    CUtensorMap map;
};

static struct rig rig_create(void) {
    struct rig r = {};
    const cuuint64_t sizes[] = { 2 * COUNT, 1, 1 }, strides[] = { 4 * COUNT, 4 * COUNT };
    const cuuint32_t box[] = { BOX, 1, 1 }, steps[] = { 1, 1, 1 };
    OK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
    r.x = device_array<float>(COUNT);
    r.weight = device_array<float>(COUNT);
    r.y = device_array<float>(COUNT);
    for (int i = 0; i < COUNT; i++) {
        r.x[i] = 1.0f;
        r.weight[i] = (float)i;
    }
    CHECK(
        cuTensorMapEncodeTiled(&r.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, r.x, sizes, strides, box,
            steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS,
        "cuTensorMapEncodeTiled");
    return r;
}

static void rig_destroy(struct rig *r) {
    OK(cudaStreamDestroy(r->stream));
    cudaFree(r->x);
    cudaFree(r->weight);
    cudaFree(r->y);
}

template <int FAULT> static void queue_both(struct rig *r, float value) {
    queue(r->stream, false, ahead_kernel, r->x, value);
    if (FAULT == TMA_EARLY)
        queue(r->stream, true, copying_kernel<FAULT>, r->map, r->y);
    else
        queue(r->stream, true, behind_kernel<FAULT>, (const float *)r->x, (const float *)r->weight,
            r->y);
}

/* Returns how many elements of y are wrong. */
template <int FAULT> static int spoilt(bool graph) {
    struct rig r = rig_create();
    int wrong = 0;
    if (graph) {
        cudaGraph_t recorded;
        cudaGraphExec_t exec;
        OK(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal));
        queue_both<FAULT>(&r, 5.0f);
        OK(cudaStreamEndCapture(r.stream, &recorded));
        OK(cudaGraphInstantiate(&exec, recorded, 0));
        OK(cudaGraphLaunch(exec, r.stream));
        OK(cudaGraphExecDestroy(exec));
        OK(cudaGraphDestroy(recorded));
    } else {
        queue_both<FAULT>(&r, 5.0f);
    }
    OK(cudaStreamSynchronize(r.stream));
    for (int i = 0; i < (FAULT == TMA_EARLY ? BLOCKS * 32 : COUNT); i++)
        wrong += !(r.y[i] == 5.0f + (FAULT == TMA_EARLY ? 0.0f : r.weight[i]));
    rig_destroy(&r);
    return wrong;
}

/* In each launch, one block of 3 x 64 threads runs ahead. */
static void early_reads_show(bool graph) {
    const char *where = graph ? "graph" : "stream";
    const struct {
        const char *what;
        int wrong, expected;
    } seen[] = {
        { "nothing", spoilt<NOTHING>(graph), 0 },
        { "one waits, and all meet", spoilt<ONE_WAITS_RIGHT>(graph), 0 },
        { "all read early", spoilt<READS_EARLY>(graph), 64 },
        { "a warp reads early", spoilt<LAST_WARP_EARLY>(graph), 32 },
        { "TMA reads early", spoilt<TMA_EARLY>(graph), 32 },
    };
    for (const auto &s : seen)
        CHECK(s.wrong == s.expected, "%s in a %s: %d wrong, not %d", s.what, where, s.wrong,
            s.expected);
}

template <int FAULT> static void queue_alone(void) {
    struct rig r = rig_create();
    queue_both<FAULT>(&r, 2.0f);
    cudaStreamSynchronize(r.stream);
}

static const struct {
    const char *message;
    void (*run)(void);
} deeds[] = {
    { "device memory is written before griddepcontrol_wait", queue_alone<WRITES_EARLY> },
    { "device memory is written before griddepcontrol_wait", queue_alone<ONE_WAITS> },
    { "griddepcontrol_launch before griddepcontrol_wait", queue_alone<LAUNCHES_EARLY> },
};

static void plant(int fault) {
    deeds[fault].run();
}

static void early_deeds_are_reported(void) {
    for (int fault = 0; fault < (int)(sizeof(deeds) / sizeof(*deeds)); fault++) {
        char text[16384];
        planted_output(plant, fault, text, sizeof(text));
        CHECK_CONTAINS(text, deeds[fault].message);
    }
}

int main(void) {
    emulator_set_seed(1);
    emulator_set_capability(90);
    early_reads_show(false);
    early_reads_show(true);
    early_deeds_are_reported();
    CHECK(emulator_allocations() == 0, "%zu allocations are left", emulator_allocations());
    return check_done();
}
