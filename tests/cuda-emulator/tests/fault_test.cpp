/* Planted faults: each must end its process with the right message, or make the result wrong. */
#include "kernels/cuda/ptx.cuh"
#include "tests/cuda-emulator/memory.h"
#include "tests/cuda-emulator/planted.h"

#include <stdlib.h>

static struct {
    dim3 block;
    size_t shared;
    bool overlap;
} shape;

template <class... P, class... A> static void launch(void (*kernel)(P...), A... arguments) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(2);
    config.blockDim = shape.block;
    config.dynamicSmemBytes = shape.shared;
    config.attrs = &attribute;
    config.numAttrs = shape.overlap;
    emulator_name_kernel("planted");
    if (cudaLaunchKernelEx(&config, kernel, arguments...) != cudaSuccess)
        fprintf(stderr, "the launch was refused\n");
    cudaDeviceSynchronize();
}

static float *device_floats(size_t count) {
    float *p = NULL;
    if (cudaMalloc(&p, count * sizeof(float)) != cudaSuccess)
        abort();
    return p;
}

/* ---- faults that end the process ---- */

static __global__ void divergent_kernel() {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

static __global__ void lonely_kernel() {
    if (threadIdx.x < 16)
        __syncthreads();
    __syncwarp();
}

static __global__ void shared_kernel(int at) {
    DYNAMIC_SHARED(float, s);
    if (threadIdx.x == 3)
        s[at] = 1.0f;
}

static __global__ void global_kernel(float *x, ptrdiff_t at) {
    if (threadIdx.x == 3)
        x[at] = 1.0f;
}

static __global__ void read_kernel(const float *x, float *y, ptrdiff_t at) {
    if (threadIdx.x == 3)
        y[0] = x[at];
}

static __global__ void exited_kernel(int *out) {
    if (threadIdx.x >= 16)
        return;
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (int)threadIdx.x, 1);
}

static __global__ void mixed_kernel(int *out) {
    if (threadIdx.x % 2)
        out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
    else
        out[threadIdx.x] = (int)__ballot_sync(0xffffffffu, 1);
}

static __global__ void unnamed_kernel(int *out) {
    if (threadIdx.x < 16)
        out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 20);
}

static __global__ void new_kernel(float *out) {
    uint32_t a[4] = {}, b[2] = {};
    float c[4] = {};
    mma_m16n8k16<__half>(c, a, b);
    out[threadIdx.x] = c[0];
}

static __global__ void odd_copy_kernel(const float *x) {
    DYNAMIC_SHARED(float, s);
    cp_async_16(s, x + threadIdx.x, 16);
    cp_async_wait<0>();
}

static __global__ void forgotten_copy_kernel(const float *x) {
    DYNAMIC_SHARED(float4, s);
    cp_async_16(s + threadIdx.x, x + 4 * threadIdx.x, 16);
    cp_async_commit();
}

static __global__ void far_copy_kernel(const float *x) {
    DYNAMIC_SHARED(float4, s);
    cp_async_16(s + threadIdx.x, x + 4 * threadIdx.x + 4, 16);
    cp_async_commit();
    cp_async_wait<0>();
}

static __global__ void empty_kernel() {
}

static void plant(int fault) {
    float *x = device_floats(250), *y = device_floats(256);
    shape.block = dim3(64);
    shape.shared = 1024;
    switch (fault) {
    case 0:
        return launch(divergent_kernel);
    case 1:
        return launch(lonely_kernel);
    case 2:
        return launch(shared_kernel, 256);
    case 3:
        return launch(shared_kernel, -1);
    case 4:
        return launch(global_kernel, x, 250);
    case 5:
        return launch(global_kernel, x, -1);
    case 6:
        return launch(read_kernel, (const float *)x, y, 1024);
    case 7:
        return launch(exited_kernel, (int *)x);
    case 8:
        return launch(mixed_kernel, (int *)x);
    case 9:
        return launch(unnamed_kernel, (int *)x);
    case 10:
        emulator_set_capability(75);
        return launch(new_kernel, x);
    case 11:
        return launch(odd_copy_kernel, (const float *)x);
    case 12:
        return launch(forgotten_copy_kernel, (const float *)x);
    case 13:
        return launch(far_copy_kernel, (const float *)x);
    case 14:
        shape.overlap = true;
        return launch(empty_kernel);
    default:
        cudaFree(x);
        return launch(read_kernel, (const float *)x, y, 0);
    }
}

/* The expected message: the emulator's own, or the sanitizer's if it detects the fault first. */
static const char *const messages[][2] = {
    { "divergent barrier: __syncthreads at", "" },
    { "deadlock: no thread can go on", "" },
    { "out of bounds: write past the dynamic shared memory of block", "use-after-poison" },
    { "out of bounds: write before the dynamic shared memory of block", "use-after-poison" },
    { "out of bounds: planted wrote 0 bytes past an allocation of 1000 bytes", "use-after-poison" },
    { "out of bounds: planted wrote 4 bytes before an allocation of 1000 bytes",
        "use-after-poison" },
    { "bytes past an allocation of 1000 bytes", "use-after-poison" },
    { "__shfl_xor_sync at", "" },
    { "lanes of one warp in different operations", "" },
    { "a shuffle reads lane 20, which its mask does not name", "" },
    { "mma.m16n8k16 needs sm_80, the kernel is for sm_75", "" },
    { "which is not at a multiple of 16", "" },
    { "exit with 1 cp.async that were never waited for", "" },
    { "out of bounds: cp.async of 16 bytes", "" },
    { "never called griddepcontrol_wait", "" },
    { "out of bounds: access to", "use-after-poison" },
};

static void faults_are_reported(void) {
    for (int fault = 0; fault < (int)(sizeof(messages) / sizeof(*messages)); fault++) {
        char text[16384];
        planted_output(plant, fault, text, sizeof(text));
        const char *expected = EMULATOR_ASAN && *messages[fault][1] ? messages[fault][1]
                                                                    : messages[fault][0];
        CHECK_CONTAINS(text, expected);
        /* The emulator's own messages name kernel, grid and seed. */
        if (expected == messages[fault][0])
            CHECK_CONTAINS(text, "[kernel planted, grid 2x1x1, block 64x1x1, seed");
    }
}

/* ---- faults that spoil the result ---- */

static __global__ void neighbour_kernel(const float *x, float *y, int barrier) {
    DYNAMIC_SHARED(float, s);
    s[threadIdx.x] = x[threadIdx.x];
    if (barrier)
        __syncthreads();
    y[threadIdx.x] = s[(threadIdx.x + 33) % 64];
}

static __global__ void unwaited_kernel(const float *x, float *y, int wait) {
    DYNAMIC_SHARED(float4, s);
    cp_async_16(s + threadIdx.x, x + 4 * threadIdx.x, 16);
    cp_async_commit();
    if (wait)
        cp_async_wait<0>();
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x].x;
    __syncthreads();
    cp_async_wait<0>();
}

/* Two stages without a barrier between reading a stage and filling it again. */
static __global__ void overtaken_kernel(const float *x, float *y, int barrier) {
    DYNAMIC_SHARED(float, s);
    float sum = 0;
    for (int i = 0; i < 8; i++) {
        s[threadIdx.x] = x[(i * 64 + threadIdx.x) % 256];
        __syncthreads();
        sum += s[63 - threadIdx.x];
        if (barrier)
            __syncthreads();
    }
    y[threadIdx.x] = sum;
}

/* Rows 0 to 7 of a product of 16 x 16 by 16 x 8. The fault exchanges two registers of a's
 * fragment. */
static __global__ void swapped_kernel(const float *x, float *y, int right) {
    const int lane = (int)threadIdx.x % 32;
    uint32_t a[4], b[2];
    float c[4] = {};
    for (int i = 0; i < 4; i++)
        a[i] = __half_as_ushort(__float2half(x[4 * lane + i]));
    for (int i = 0; i < 2; i++)
        b[i] = __half_as_ushort(__float2half(x[128 + 2 * lane + i]));
    const uint32_t exchanged[4] = { a[0], a[2], a[1], a[3] };
    mma_m16n8k16<__half>(c, right ? a : exchanged, b);
    if (threadIdx.x < 32)
        *(float2 *)(y + 2 * lane) = make_float2(c[0], c[1]);
}

/* A softmax of 61 keys in a block for 64. The fault is a mask that admits one key too many. */
static __global__ void masked_kernel(const float *x, float *y, int right) {
    DYNAMIC_SHARED(float, s);
    const int thread = (int)threadIdx.x, keys = right ? 61 : 62;
    float sum = 0;
    s[thread] = thread < keys ? expf(0.01f * x[thread]) : 0.0f;
    __syncthreads();
    for (int i = 0; i < 64; i++)
        sum += s[i];
    y[thread] = s[thread] / sum;
}

/* Returns in how many of `runs` seeds the kernel's result differs from the right one. */
static int spoilt(void (*kernel)(const float *, float *, int), int right, int runs) {
    float *x = device_floats(256), *y = device_floats(64), expected[64];
    int wrong = 0;
    for (int i = 0; i < 256; i++)
        x[i] = (float)(i * i % 251);
    shape.block = dim3(64);
    shape.shared = 1024;
    for (int seed = 0; seed < runs; seed++) {
        emulator_set_seed((uint64_t)seed + 1);
        launch(kernel, (const float *)x, y, 1);
        memcpy(expected, y, sizeof(expected));
        launch(kernel, (const float *)x, y, right);
        wrong += memcmp(expected, y, sizeof(expected)) != 0;
    }
    cudaFree(x);
    cudaFree(y);
    return wrong;
}

static void wrong_results_show(void) {
    const struct {
        const char *name;
        void (*kernel)(const float *, float *, int);
    } kernels[] = { { "a missing barrier", neighbour_kernel },
        { "a missing cp_async_wait", unwaited_kernel },
        { "a missing second barrier", overtaken_kernel }, { "exchanged operands", swapped_kernel },
        { "a mask that is off by one", masked_kernel } };
    for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++) {
        const int with = spoilt(kernels[i].kernel, 1, 10),
                  without = spoilt(kernels[i].kernel, 0, 10);
        CHECK(with == 0 && without == 10,
            "%s: the right kernel is wrong in %d of 10 runs, the faulty one in %d", kernels[i].name,
            with, without);
    }
}

int main(void) {
    faults_are_reported();
    wrong_results_show();
    return check_done();
}
