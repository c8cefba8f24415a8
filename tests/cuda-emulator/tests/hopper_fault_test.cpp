/* Planted violations of the rules for Hopper's instructions: each must end its process with the
 * right message, be refused, or make the result wrong. */
#include "kernels/cuda/ptx_hopper.cuh"
#include "tests/cuda-emulator/planted.h"
#include "tests/cuda-emulator/tests/kernel_test.h"

/* ---- wgmma: d [64][64] = a [64][16] b [64][16]^T of ones, by one group ---- */

enum product_fault {
    NOTHING,
    /* descriptors */
    MIDDLE_OF_ATOM,
    BETWEEN_PIECES,
    BEYOND_MEMORY,
    NO_SWIZZLE,
    SMALL_STRIDE,
    STRAY_BITS,
    SMALL_LEADING,
    /* a warp's operation, a group's */
    LANE_MISSING,
    LANE_ELSEWHERE,
    LANES_PARTED,
    WARP_ELSEWHERE,
    WARP_MISSING,
    SMALL_GROUP,
    /* fence and hold */
    NO_FENCE,
    NO_HOLD,
    HOLD_AFTER_FENCE,
    CHANGED_AFTER_FENCE,
    WRITTEN_UNDER_WAY,
    HELD_UNDER_WAY,
    LEFT_CHANGED,
    LEFT_NOT_HELD,
    NO_LAST_HOLD,
    FEW_REGISTERS,
};

static const int N = 64, OPERAND_BYTES = 64 * 128;

template <int FAULT> static __global__ void product_kernel(float *out) {
    DYNAMIC_SHARED(unsigned char, s);
    const int thread = (int)threadIdx.x, lane = thread % 32;
    int warp = thread / 32;
    uint64_t *barrier = (uint64_t *)(s + 2 * OPERAND_BYTES);
    const unsigned char *a = s, *b = s + OPERAND_BYTES;
    uint32_t left[4] = { 0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00 };
    float d[N / 2] = {};
    for (int i = thread; i < 2 * OPERAND_BYTES / 4; i += 128)
        ((uint32_t *)s)[i] = 0x3c003c00; /* twice 1 in f16 */
    if (thread == 0)
        mbarrier_init(barrier, blockDim.x);
    fence_async_proxy();
    __syncthreads();
    /* If the compiler knew that thread 0 is in warp 0, it would make a separate copy of the
     * following code for that warp. The emulator would take the copies for different instructions,
     * because their addresses differ. */
    asm volatile("" : "+r"(warp));
    if (FAULT == FEW_REGISTERS)
        registers_give_back<24>();
    if (FAULT == LANES_PARTED) {
        mbarrier_arrive(barrier);
        mbarrier_wait(barrier, 0);
    }
    if (FAULT == HOLD_AFTER_FENCE)
        wgmma_fence();
    if (FAULT != NO_HOLD)
        wgmma_hold<N / 2>(d);
    if (FAULT != LEFT_NOT_HELD)
        wgmma_hold<4>(left);
    if (FAULT != NO_FENCE && FAULT != HOLD_AFTER_FENCE)
        wgmma_fence();
    if (FAULT == CHANGED_AFTER_FENCE)
        d[3] = 1.0f;
    if (FAULT == MIDDLE_OF_ATOM)
        b += 512;
    if (FAULT == BETWEEN_PIECES)
        a += 16;
    if (FAULT == BEYOND_MEMORY)
        b += 1024;
    if (FAULT == WARP_ELSEWHERE && warp == 2)
        b += 32;
    if (FAULT == LANE_ELSEWHERE && lane == 7)
        b += 32;
    const uint64_t at = wgmma_operand(b, 0);
    if (FAULT == NO_SWIZZLE)
        emulator_wgmma(d, wgmma_operand(a, 0), at & ~((uint64_t)3 << 62), N, true, EMULATOR_F16);
    else if (FAULT == SMALL_STRIDE)
        emulator_wgmma(d, wgmma_operand(a, 0), at ^ (uint64_t)96 << 32, N, true, EMULATOR_F16);
    else if (FAULT == STRAY_BITS)
        emulator_wgmma(d, wgmma_operand(a, 0), at | (uint64_t)1 << 53, N, true, EMULATOR_F16);
    else if (FAULT == SMALL_LEADING)
        wgmma_m64k16_columns<__half, N>(d, left, b, 0, 512);
    else if (FAULT == LEFT_CHANGED || FAULT == LEFT_NOT_HELD)
        wgmma_m64k16_columns<__half, N>(d, left, b, 0, 2048);
    else if ((FAULT != LANE_MISSING || lane != 7) && (FAULT != WARP_MISSING || warp != 2))
        wgmma_m64k16<__half, N>(d, a, 0, b, 0);
    wgmma_commit();
    if (FAULT == WRITTEN_UNDER_WAY)
        d[0] *= 0.5f;
    if (FAULT == LEFT_CHANGED)
        left[2] = 0;
    if (FAULT == HELD_UNDER_WAY)
        wgmma_hold<N / 2>(d);
    wgmma_wait<0>();
    if (FAULT != NO_LAST_HOLD)
        wgmma_hold<N / 2>(d);
    for (int i = 0; i < N / 2; i++)
        out[thread * (N / 2) + i] = d[i];
}

template <int FAULT> static float *run_product(void) {
    float *out = device_array<float>(128 * N / 2);
    launch(dim3(1), dim3(FAULT == SMALL_GROUP ? 96 : 128), 2 * OPERAND_BYTES + 8,
        product_kernel<FAULT>, out);
    return out;
}

/* ---- setmaxnreg: two groups take what the third gives back ---- */

enum registers_fault { NOT_GIVEN_BACK, BY_ONE_WARP, MORE_GIVEN_BACK };

template <int FAULT> static __global__ void registers_kernel(float *out) {
    const int warp = (int)threadIdx.x / 32;
    if (warp < 8)
        registers_take<232>();
    else if (FAULT == MORE_GIVEN_BACK)
        registers_give_back<176>();
    else if (FAULT == BY_ONE_WARP ? warp != 9 : FAULT != NOT_GIVEN_BACK)
        registers_give_back<40>();
    out[threadIdx.x] = 1.0f;
}

/* One warp does not give back its registers, so the others cannot get theirs. */
static __global__ void few_registers_kernel(float *out) {
    if (threadIdx.x / 32 == 1)
        registers_give_back<40>();
    out[threadIdx.x] = 1.0f;
}

/* ---- clusters of two, and barriers that others see ---- */

enum cluster_fault {
    RIGHT = 100,
    NOT_FENCED,
    NOT_MET,
    READ_EARLY,
    HAS_LEFT,
    NO_SUCH_BLOCK,
    TOO_MANY_BYTES,
};

template <int FAULT> static __global__ void cluster_kernel(float *out) {
    DYNAMIC_SHARED(float4, s);
    uint64_t *barrier = (uint64_t *)(s + 32);
    const int thread = (int)threadIdx.x;
    const unsigned other = (blockIdx.x % 2) ^ 1;
    s[thread] = make_float4((float)blockIdx.x, 0.0f, 0.0f, 0.0f);
    if (thread == 0) {
        mbarrier_init(barrier, 32);
        if (FAULT != NOT_FENCED)
            mbarrier_fence_init();
        if (FAULT == TOO_MANY_BYTES)
            mbarrier_arrive_expect_tx(barrier, 1 << 20);
    }
    if (FAULT == READ_EARLY)
        out[thread] = cluster_read(s + thread, other).x;
    if (FAULT != NOT_MET)
        cluster_sync();
    if (FAULT == HAS_LEFT && other == 0)
        return;
    if (FAULT == HAS_LEFT)
        cluster_sync(); /* of the blocks that have not exited */
    mbarrier_arrive_cluster(barrier, FAULT == NO_SUCH_BLOCK ? 2 : other);
    mbarrier_wait(barrier, 0);
    out[blockIdx.x * 32 + thread] = cluster_read(s + thread, other).x;
    cluster_sync();
}

template <int FAULT> static float *run_cluster(void) {
    float *out = device_array<float>(64);
    launch_clusters(dim3(2), dim3(32), 32 * 16 + 8, 2, cluster_kernel<FAULT>, out);
    return out;
}

static void run_registers(void (*kernel)(float *)) {
    launch(dim3(1), dim3(384), 0, kernel, device_array<float>(384));
}

/* ---- groups that take turns: the first gives one to the second ---- */

enum turn_fault { IN_TURN, GIVEN_TO_NOBODY, NOT_GIVEN, GIVEN_TO_ANOTHER, GIVEN_BY_FEW };

template <int FAULT> static __global__ void turns_kernel(float *out) {
    const int thread = (int)threadIdx.x;
    if (thread >= 128)
        turn_wait(1);
    else if (FAULT != NOT_GIVEN && (FAULT != GIVEN_BY_FEW || thread < 96))
        turn_give(FAULT == GIVEN_TO_ANOTHER ? 2 : 1);
    if (FAULT == GIVEN_TO_NOBODY && thread < 128)
        turn_give(2);
    out[thread] = 1.0f;
}

template <int FAULT> static float *run_turns(void) {
    float *out = device_array<float>(256);
    launch(dim3(1), dim3(256), 0, turns_kernel<FAULT>, out);
    return out;
}

/* ---- the faults ---- */

#define PRODUCT(fault, message)                                                                    \
    {                                                                                              \
        message, [] { (void)run_product<fault>(); }                                                \
    }
#define CLUSTER(fault, message)                                                                    \
    {                                                                                              \
        message, [] { (void)run_cluster<fault>(); }                                                \
    }
#define TURNS(fault, message)                                                                      \
    {                                                                                              \
        message, [] { (void)run_turns<fault>(); }                                                  \
    }
#define REGISTERS(fault, message)                                                                  \
    {                                                                                              \
        message, [] { run_registers(registers_kernel<fault>); }                                    \
    }

static const struct {
    const char *message;
    void (*run)(void);
} faults[] = {
    PRODUCT(MIDDLE_OF_ATOM, "wgmma's b at byte 8704 of shared memory: not where an atom"),
    PRODUCT(BETWEEN_PIECES, "wgmma's a at byte 16 of shared memory: not where an atom"),
    PRODUCT(BEYOND_MEMORY, "out of bounds: wgmma's b at byte 9216"),
    PRODUCT(NO_SWIZZLE, "wgmma's b: descriptor 00000040000102"),
    PRODUCT(SMALL_STRIDE, "wgmma's b: a stride of 512 bytes between atoms of 1024"),
    PRODUCT(STRAY_BITS, "has bits that mean nothing"),
    PRODUCT(SMALL_LEADING, "wgmma's b: a leading offset of 512 bytes"),
    PRODUCT(LANE_MISSING, "lanes of a warp issue different wgmma: lane 7 and lane 0"),
    PRODUCT(LANE_ELSEWHERE, "lanes of a warp issue different wgmma: lane 7 and lane 0"),
    PRODUCT(LANES_PARTED, "wgmma_fence where lanes of the warp may have parted"),
    PRODUCT(WARP_ELSEWHERE, "warps of a group issue different wgmma"),
    PRODUCT(WARP_MISSING, "warps of a group issue different wgmma"),
    PRODUCT(SMALL_GROUP, "wgmma_fence in a group of fewer than four warps"),
    PRODUCT(NO_FENCE, "no wgmma_fence between the sums and wgmma"),
    PRODUCT(NO_HOLD, "no wgmma_hold of the sums before wgmma"),
    PRODUCT(HOLD_AFTER_FENCE, "no wgmma_fence between the sums and wgmma"),
    PRODUCT(CHANGED_AFTER_FENCE, "the sums changed after wgmma_hold"),
    PRODUCT(
        WRITTEN_UNDER_WAY, "sums were written between wgmma and the wgmma_hold behind its wait"),
    PRODUCT(HELD_UNDER_WAY, "wgmma_hold of sums that are under way"),
    PRODUCT(LEFT_CHANGED, "wgmma's left operand changed while it was under way"),
    PRODUCT(LEFT_NOT_HELD, "no wgmma_hold of the left operand before wgmma"),
    PRODUCT(FEW_REGISTERS, "wgmma of 32 sums in 24 registers"),
    REGISTERS(NOT_GIVEN_BACK, "256 threads wait in registers_take"),
    REGISTERS(MORE_GIVEN_BACK, "registers_give_back: from 168 registers to 176"),
    REGISTERS(BY_ONE_WARP, "threads wait in registers_take"),
    { "setmaxnreg by warp", [] { run_registers(few_registers_kernel); } },
    TURNS(GIVEN_TO_NOBODY, "exit with 128 threads arrived at barrier 2, for which nobody waits"),
    TURNS(NOT_GIVEN, "deadlock: no thread can go on"),
    TURNS(GIVEN_TO_ANOTHER, "deadlock: no thread can go on"),
    TURNS(GIVEN_BY_FEW, "deadlock: no thread can go on"),
    CLUSTER(NOT_FENCED, "an arrival from another block at an mbarrier that no mbarrier_fence_init"),
    CLUSTER(NOT_MET, "the shared memory of block"),
    CLUSTER(READ_EARLY, "which may not have started: no barrier of the cluster came before"),
    CLUSTER(HAS_LEFT, "which has exited"),
    CLUSTER(NO_SUCH_BLOCK, "block 2 of a cluster of 2"),
    CLUSTER(TOO_MANY_BYTES, "an mbarrier is to count 1048576 bytes"),
};

static void plant(int fault) {
    faults[fault].run();
}

static void faults_are_reported(void) {
    for (int fault = 0; fault < (int)(sizeof(faults) / sizeof(*faults)); fault++) {
        char text[16384];
        planted_output(plant, fault, text, sizeof(text));
        CHECK_CONTAINS(text, faults[fault].message);
    }
}

/* Runs the same kernels without a fault. Sums that were not held after the product are poison. */
static void right_kernels_pass(void) {
    float *out = run_product<NOTHING>(), *unheld = run_product<NO_LAST_HOLD>();
    for (int i = 0; i < 128 * N / 2; i++) {
        CHECK(out[i] == 16.0f, "sum %d: %g", i, out[i]);
        CHECK(isnan(unheld[i]), "sum %d can be read without wgmma_hold: %g", i, unheld[i]);
    }
    const float *turns = run_turns<IN_TURN>();
    for (int i = 0; i < 256; i++)
        CHECK(turns[i] == 1.0f, "thread %d ended with %g", i, turns[i]);
    float *others = run_cluster<RIGHT>();
    for (int i = 0; i < 64; i++)
        CHECK(others[i] == (float)(i < 32), "thread %d read %g", i, others[i]);
    cudaFree(out);
    cudaFree(unheld);
    cudaFree(others);
}

/* ---- tensor maps ---- */

struct tensor {
    CUtensorMap *map;
    uintptr_t data;
    cuuint32_t rank;
    cuuint64_t sizes[5], strides[4];
    cuuint32_t box[5], steps[5];
    CUtensorMapSwizzle swizzle;
};

static bool encodes(const struct tensor &t) {
    return cuTensorMapEncodeTiled(t.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, t.rank, (void *)t.data,
               t.sizes, t.strides, t.box, t.steps, CU_TENSOR_MAP_INTERLEAVE_NONE, t.swizzle,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static void wrong_tensor_maps_are_refused(void) {
    static CUtensorMap maps[2];
    const struct tensor right = { maps, 4096, 3, { 80, 20, 6 }, { 160, 3200 }, { 64, 4, 2 },
        { 1, 2, 1 }, CU_TENSOR_MAP_SWIZZLE_128B };
    CHECK(encodes(right), "a right tensor map is refused");
    const struct {
        const char *what;
        void (*spoil)(struct tensor &t);
    } wrong[] = {
        { "a map not at a multiple of 64",
            [](struct tensor &t) { t.map = (CUtensorMap *)((char *)t.map + 8); } },
        { "data not at a multiple of 16", [](struct tensor &t) { t.data += 8; } },
        { "no dimensions", [](struct tensor &t) { t.rank = 0; } },
        { "six dimensions", [](struct tensor &t) { t.rank = 6; } },
        { "no elements", [](struct tensor &t) { t.sizes[2] = 0; } },
        { "2^32 + 1 elements", [](struct tensor &t) { t.sizes[2] = ((uint64_t)1 << 32) + 1; } },
        { "rows of 81 elements", [](struct tensor &t) { t.strides[0] = 162; } },
        { "rows that overlap", [](struct tensor &t) { t.strides[0] = 144; } },
        { "planes less than a row apart", [](struct tensor &t) { t.strides[1] = 144; } },
        { "a stride of 2^40", [](struct tensor &t) { t.strides[1] = (uint64_t)1 << 40; } },
        { "a box of 257", [](struct tensor &t) { t.box[1] = 257; } },
        { "a box of 0", [](struct tensor &t) { t.box[2] = 0; } },
        { "a box's row of 256 bytes", [](struct tensor &t) { t.box[0] = 128; } },
        { "a box's row of 120 bytes", [](struct tensor &t) { t.box[0] = 60; } },
        { "a row of 128 bytes in a span of 64",
            [](struct tensor &t) { t.swizzle = CU_TENSOR_MAP_SWIZZLE_64B; } },
        { "every ninth element", [](struct tensor &t) { t.steps[1] = 9; } },
        { "every 0th element", [](struct tensor &t) { t.steps[2] = 0; } },
    };
    for (const auto &w : wrong) {
        struct tensor t = right;
        w.spoil(t);
        CHECK(!encodes(t), "a tensor map with %s is accepted", w.what);
    }
}

int main(void) {
    emulator_set_seed(1);
    emulator_set_capability(90);
    faults_are_reported();
    right_kernels_pass();
    wrong_tensor_maps_are_refused();
    return check_done();
}
