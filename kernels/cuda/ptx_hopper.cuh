/* Inside kernels/cuda/: Hopper's instructions, each as one small function, as in ptx.cuh.
 *
 * Barriers (mbarrier) lie in shared memory, 8 bytes each. A barrier's phase ends when as many
 * threads have arrived as it was initialised for, and all announced bytes have come. Phases have
 * parity 0, 1, 0 and so on. Sources: PTX ISA 9.0, sections on mbarrier, cp.async.bulk.tensor and
 * wgmma.
 */
#ifndef KERNELS_CUDA_PTX_HOPPER_CUH
#define KERNELS_CUDA_PTX_HOPPER_CUH

#include "kernels/cuda/ptx.cuh"

#include <cuda.h>
#ifdef CUDA_WATCHED
#include <stdio.h>
#endif

/* HOPPER_CODE is true where wgmma and the related instructions exist: on sm_90a only. Kernels that
 * use them are compiled for every architecture and begin with "if (!HOPPER_CODE) return;". On the
 * other architectures, where they never run, they are therefore empty and compile in seconds
 * instead of minutes. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#elif defined(__CUDACC__)
#define HOPPER_ASM(...) __trap()
#endif
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER_CODE false
#else
#define HOPPER_CODE true
#endif

/* sm_90 and all later chips have clusters. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define CLUSTER_CODE false
#define CLUSTER_ASM(...) __trap()
#else
#define CLUSTER_CODE true
#define CLUSTER_ASM(...) asm volatile(__VA_ARGS__)
#endif

/* Initialises a barrier for `count` arrivals per phase. Called by one thread. Other threads must
 * not touch the barrier before all threads have met: at a barrier of the block or, after
 * mbarrier_fence_init, at the cluster's barrier. */
__device__ __forceinline__ void mbarrier_init(uint64_t *barrier, unsigned count) {
#ifdef __CUDACC__
    HOPPER_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
#else
    emulator_mbarrier_init(barrier, count);
#endif
}

__device__ __forceinline__ void mbarrier_fence_init() {
#ifdef __CUDACC__
    HOPPER_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
    emulator_mbarrier_fence_init();
#endif
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t *barrier) {
#ifdef __CUDACC__
    HOPPER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
#else
    emulator_mbarrier_arrive(barrier, 0);
#endif
}

/* Arrives, and announces `bytes` bytes. The phase waits for them too. */
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t *barrier, unsigned bytes) {
#ifdef __CUDACC__
    HOPPER_ASM(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
#else
    emulator_mbarrier_arrive(barrier, bytes);
#endif
}

/* Arrives at the barrier at the same address in block `rank` of the cluster. Only TMA and wgmma
 * read and write the memory that these barriers guard, so the forms without cluster scope suffice;
 * those with cluster scope flush or drop caches at every step. */
__device__ __forceinline__ void mbarrier_arrive_cluster(uint64_t *barrier, unsigned rank) {
#ifdef __CUDACC__
    HOPPER_ASM("{\n"
               ".reg .b32 remote;\n"
               "mapa.shared::cluster.u32 remote, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
               "}" ::"r"(shared_address(barrier)),
               "r"(rank)
               : "memory");
#else
    emulator_mbarrier_arrive_cluster(barrier, rank);
#endif
}

#ifdef CUDA_WATCHED
/* For a build that finds hangs (-Dgpu-watch=true). After this time, a wait gives up, prints where
 * it was and ends the kernel, so that a hang becomes an error with a location. */
#define WATCH_MAX_NS 2000000000ull

__device__ __forceinline__ uint64_t watch_ns() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

static __device__ __noinline__ void mbarrier_give_up(unsigned barrier, unsigned parity) {
    printf(
        "hang: block %u %u %u, warp %u, lane %u: the phase of parity %u of the barrier at shared "
        "address %u does not end\n",
        blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x / 32, threadIdx.x % 32, parity, barrier);
    __trap();
}
#endif

/* Waits until the phase with this parity has ended. */
__device__ __forceinline__ void mbarrier_wait(uint64_t *barrier, unsigned parity) {
#if defined(__CUDACC__) && defined(CUDA_WATCHED)
    unsigned done = 0;
    for (uint64_t begun = 0; !done;) {
        HOPPER_ASM("{\n"
                   ".reg .pred done;\n"
                   "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                   "selp.u32 %0, 1, 0, done;\n"
                   "}"
                   : "=r"(done)
                   : "r"(shared_address(barrier)), "r"(parity)
                   : "memory");
        const uint64_t now = done ? 0 : watch_ns();
        begun = begun ? begun : now;
        if (!done && now - begun > WATCH_MAX_NS)
            mbarrier_give_up(shared_address(barrier), parity);
    }
#elif defined(__CUDACC__)
    HOPPER_ASM("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;\n"
               "}" ::"r"(shared_address(barrier)),
               "r"(parity)
               : "memory");
#else
    emulator_mbarrier_wait(barrier, parity, __FILE__, __LINE__);
#endif
}

/* Makes this thread's writes to shared memory visible to wgmma. Another warp's wgmma sees the
 * writes after that warp and this thread have met at a barrier. */
__device__ __forceinline__ void fence_async_proxy() {
#ifdef __CUDACC__
    HOPPER_ASM("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Arrives at the cluster's barrier; cluster_wait waits until all threads of all its blocks have
 * arrived. Everything that a thread did before its arrival is visible to all threads after their
 * wait. For this, the arrival waits until the thread's writes have reached the other
 * multiprocessors. Each thread arrives separately; warps need not be converged. */
__device__ __forceinline__ void cluster_arrive() {
#ifdef __CUDACC__
    CLUSTER_ASM("barrier.cluster.arrive.release;" ::: "memory");
#else
    emulator_cluster_arrive();
#endif
}

/* Arrives without waiting for writes. For threads that have written nothing that others read,
 * except barriers followed by mbarrier_fence_init. */
__device__ __forceinline__ void cluster_arrive_relaxed() {
#ifdef __CUDACC__
    CLUSTER_ASM("barrier.cluster.arrive.relaxed;" ::: "memory");
#else
    emulator_cluster_arrive();
#endif
}

__device__ __forceinline__ void cluster_wait() {
#ifdef __CUDACC__
    CLUSTER_ASM("barrier.cluster.wait.acquire;" ::: "memory");
#else
    emulator_cluster_wait(__FILE__, __LINE__);
#endif
}

__device__ __forceinline__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

/* Reads four floats from block `rank` of the cluster, at the same address of its shared memory.
 * Returns zeros if `wanted` is false. There is no branch, so several reads can be in progress at
 * once. */
__device__ __forceinline__ float4 cluster_read(
    const float4 *shared, unsigned rank, bool wanted = true) {
#ifdef __CUDACC__
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    CLUSTER_ASM("{\n"
                ".reg .b32 remote;\n"
                ".reg .pred wanted;\n"
                "setp.ne.b32 wanted, %6, 0;\n"
                "mapa.shared::cluster.u32 remote, %4, %5;\n"
                "@wanted ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n"
                "}"
                : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w)
                : "r"(shared_address(shared)), "r"(rank), "r"((int)wanted)
                : "memory");
    return v;
#else
    return wanted ? *(const float4 *)emulator_cluster_address(shared, rank)
                  : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#endif
}

/* Fetches the tensor map itself, so that the first copy need not wait for it. */
__device__ __forceinline__ void tma_prefetch(const CUtensorMap *map) {
#ifdef __CUDACC__
    HOPPER_ASM("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#else
    (void)map;
#endif
}

/* Starts a copy of one box of the tensor, at these coordinates (innermost dimension first), to
 * this block's shared memory; elements outside the tensor are zeros. All bytes of the box,
 * including those zeros, count at the barrier. Called by one thread; `map` is a
 * __grid_constant__ parameter. */
__device__ __forceinline__ void tma_load_3d(
    void *shared, const CUtensorMap *map, uint64_t *barrier, int c, int x, int y) {
#ifdef __CUDACC__
    HOPPER_ASM("cp.async.bulk.tensor.3d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(shared)),
               "l"(map), "r"(shared_address(barrier)), "r"(c), "r"(x), "r"(y)
               : "memory");
#else
    const int at[] = { c, x, y };
    emulator_tma_load(shared, map, barrier, at, 3, 0);
#endif
}

/* Does what tma_load_3d does, for every block of the cluster whose rank's bit is set in
 * `blocks`. The data goes to the same address in each block, and counts at the barrier at the
 * same address. */
__device__ __forceinline__ void tma_load_3d_multicast(
    void *shared, const CUtensorMap *map, uint64_t *barrier, int c, int x, int y, uint16_t blocks) {
#ifdef __CUDACC__
    HOPPER_ASM("cp.async.bulk.tensor.3d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(shared)),
               "l"(map), "r"(shared_address(barrier)), "r"(c), "r"(x), "r"(y), "h"(blocks)
               : "memory");
#else
    const int at[] = { c, x, y };
    emulator_tma_load(shared, map, barrier, at, 3, blocks);
#endif
}

__device__ __forceinline__ void tma_load_4d(
    void *shared, const CUtensorMap *map, uint64_t *barrier, int c, int x, int y, int z) {
#ifdef __CUDACC__
    HOPPER_ASM("cp.async.bulk.tensor.4d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
               "l"(map), "r"(shared_address(barrier)), "r"(c), "r"(x), "r"(y), "r"(z)
               : "memory");
#else
    const int at[] = { c, x, y, z };
    emulator_tma_load(shared, map, barrier, at, 4, 0);
#endif
}

__device__ __forceinline__ void tma_load_4d_multicast(void *shared, const CUtensorMap *map,
    uint64_t *barrier, int c, int x, int y, int z, uint16_t blocks) {
#ifdef __CUDACC__
    HOPPER_ASM("cp.async.bulk.tensor.4d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(shared)),
               "l"(map), "r"(shared_address(barrier)), "r"(c), "r"(x), "r"(y), "r"(z), "h"(blocks)
               : "memory");
#else
    const int at[] = { c, x, y, z };
    emulator_tma_load(shared, map, barrier, at, 4, blocks);
#endif
}

/* Keeps the compiler from moving arithmetic on these sums: computations before this call stay
 * before it, and reads after it stay after it. Call it before the fence of the first wgmma and
 * after the wait for the last one. The compiler believes that a wgmma is done with its registers at
 * once, so nothing else keeps arithmetic from moving past the fence or the wait. */
template <int COUNT> __device__ __forceinline__ void wgmma_hold(float *sums) {
#ifdef __CUDACC__
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(sums[i])::"memory");
#else
    emulator_wgmma_hold(sums, COUNT);
#endif
}

/* Does what the other wgmma_hold does, for a left operand in registers instead of sums. */
template <int COUNT> __device__ __forceinline__ void wgmma_hold(uint32_t *a) {
#ifdef __CUDACC__
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+r"(a[i])::"memory");
#else
    emulator_wgmma_hold(a, COUNT);
#endif
}

/* Required before the first wgmma, and before any wgmma after the registers of its sums were
 * touched. All lanes of the warp call it together. */
__device__ __forceinline__ void wgmma_fence() {
#ifdef __CUDACC__
    HOPPER_ASM("wgmma.fence.sync.aligned;" ::: "memory");
#else
    emulator_wgmma_fence();
#endif
}

/* Makes a group of the wgmma started since the last group. */
__device__ __forceinline__ void wgmma_commit() {
#ifdef __CUDACC__
    HOPPER_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    emulator_wgmma_commit();
#endif
}

/* Waits until at most N of the newest groups are pending. */
template <int N> __device__ __forceinline__ void wgmma_wait() {
#ifdef __CUDACC__
    HOPPER_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#else
    emulator_wgmma_wait(N);
#endif
}

/* Makes the computation of `x` (0 or more) precede the waits that follow. ptxas moves wgmma's waits
 * ahead of arithmetic that does not need them. It moves them across fences and barriers but not
 * across a branch, so this is a branch, which is never taken. */
__device__ __forceinline__ void wgmma_wait_after(float x) {
#ifdef __CUDACC__
    if (x < 0.0f)
        HOPPER_ASM("nanosleep.u32 32;" ::: "memory");
#else
    (void)x;
#endif
}

/* Describes an operand in shared memory: rows of 64 16-bit elements, 128 bytes apart, with the
 * 128-byte swizzle. Groups of 8 rows are 1024 bytes apart and begin at multiples of 1024. To
 * reach the next 16 elements, the address may be moved by 32, 64 or 96 bytes. `moved` is a
 * further constant offset that is added to the finished description, which takes one addition
 * per product. */
__device__ __forceinline__ uint64_t wgmma_operand(const void *shared, unsigned moved) {
    const unsigned at = ((shared_address(shared) & 0x3ffff) >> 4 | 1u << 16) + (moved >> 4);
    return (uint64_t)at | (uint64_t)(1024 >> 4 | 1u << 30) << 32;
}

/* sums (64 x N, N / 2 per thread) += a (64 x 16) b (N x 16)^T. Both operands are in shared memory,
 * as wgmma_operand describes them, a_moved and b_moved bytes further. Without `add`: sums = a b^T.
 * T is __half or __nv_bfloat16. Executed by the four warps of a group, each with 16 rows. A warp's
 * sums are laid out like those of N / 8 mma_m16n8k16, one after the other. */
template <class T, int N>
__device__ __forceinline__ void wgmma_m64k16(
    float *sums, const void *a, unsigned a_moved, const void *b, unsigned b_moved, bool add = true);

#ifdef __CUDACC__
#define WGMMA_P0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_P1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_P2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_P3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_P4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_P5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_P6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_P7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_P8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_P9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_P10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_P11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_P12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_P13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_P14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define WGMMA_P15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_O(i)                                                                                 \
    "+f"(c[8 * i]), "+f"(c[8 * i + 1]), "+f"(c[8 * i + 2]), "+f"(c[8 * i + 3]),                    \
        "+f"(c[8 * i + 4]), "+f"(c[8 * i + 5]), "+f"(c[8 * i + 6]), "+f"(c[8 * i + 7])
#define WGMMA_PLACES_64 WGMMA_P0 ", " WGMMA_P1 ", " WGMMA_P2 ", " WGMMA_P3
#define WGMMA_SUMS_64 WGMMA_O(0), WGMMA_O(1), WGMMA_O(2), WGMMA_O(3)
#define WGMMA_PLACES_80 WGMMA_P0 ", " WGMMA_P1 ", " WGMMA_P2 ", " WGMMA_P3 ", " WGMMA_P4
#define WGMMA_SUMS_80 WGMMA_O(0), WGMMA_O(1), WGMMA_O(2), WGMMA_O(3), WGMMA_O(4)
#define WGMMA_PLACES_128                                                                           \
    WGMMA_P0 ", " WGMMA_P1 ", " WGMMA_P2 ", " WGMMA_P3 ", " WGMMA_P4 ", " WGMMA_P5 ", " WGMMA_P6   \
             ", " WGMMA_P7
#define WGMMA_SUMS_128                                                                             \
    WGMMA_O(0), WGMMA_O(1), WGMMA_O(2), WGMMA_O(3), WGMMA_O(4), WGMMA_O(5), WGMMA_O(6), WGMMA_O(7)
#define WGMMA_PLACES_160                                                                           \
    WGMMA_P0 ", " WGMMA_P1 ", " WGMMA_P2 ", " WGMMA_P3 ", " WGMMA_P4 ", " WGMMA_P5 ", " WGMMA_P6   \
             ", " WGMMA_P7 ", " WGMMA_P8 ", " WGMMA_P9
#define WGMMA_SUMS_160                                                                             \
    WGMMA_O(0), WGMMA_O(1), WGMMA_O(2), WGMMA_O(3), WGMMA_O(4), WGMMA_O(5), WGMMA_O(6),            \
        WGMMA_O(7), WGMMA_O(8), WGMMA_O(9)
#define WGMMA_PLACES_256                                                                           \
    WGMMA_P0 ", " WGMMA_P1 ", " WGMMA_P2 ", " WGMMA_P3 ", " WGMMA_P4 ", " WGMMA_P5 ", " WGMMA_P6   \
             ", " WGMMA_P7 ", " WGMMA_P8 ", " WGMMA_P9 ", " WGMMA_P10 ", " WGMMA_P11               \
             ", " WGMMA_P12 ", " WGMMA_P13 ", " WGMMA_P14 ", " WGMMA_P15
#define WGMMA_SUMS_256                                                                             \
    WGMMA_O(0), WGMMA_O(1), WGMMA_O(2), WGMMA_O(3), WGMMA_O(4), WGMMA_O(5), WGMMA_O(6),            \
        WGMMA_O(7), WGMMA_O(8), WGMMA_O(9), WGMMA_O(10), WGMMA_O(11), WGMMA_O(12), WGMMA_O(13),    \
        WGMMA_O(14), WGMMA_O(15)
#define WGMMA_PLACES_40 WGMMA_P0 ", " WGMMA_P1 ", %16, %17, %18, %19"
#define WGMMA_SUMS_40 WGMMA_O(0), WGMMA_O(1), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19])
#define WGMMA_DO(device, twin) device
#else
#define WGMMA_DO(device, twin) twin
#endif
/* A, B and ADD are the positions of these operands in the list that follows the sums. LAYOUT has,
 * for each operand in shared memory, 1 if its rows are read as columns. */
#define WGMMA_ASM(type, N, A, B, ADD, LAYOUT, ...)                                                 \
    HOPPER_ASM("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD ", 0;\n"                                \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " "                 \
               "{" WGMMA_PLACES_##N "}, " A ", " B ", add, 1, 1, " LAYOUT ";\n}"                   \
               : WGMMA_SUMS_##N                                                                    \
               : __VA_ARGS__)
#define WGMMA_ELEMENT(type) (type[0] == 'f' ? EMULATOR_F16 : EMULATOR_BF16)

#define WGMMA_OF(TYPE, type, N, A, B, ADD)                                                         \
    template <>                                                                                    \
    __device__ __forceinline__ void wgmma_m64k16<TYPE, N>(                                         \
        float *c, const void *a, unsigned a_moved, const void *b, unsigned b_moved, bool add) {    \
        const uint64_t from_a = wgmma_operand(a, a_moved), from_b = wgmma_operand(b, b_moved);     \
        WGMMA_DO(WGMMA_ASM(type, N, A, B, ADD, "0, 0", "l"(from_a), "l"(from_b), "r"((int)add)),   \
            emulator_wgmma(c, from_a, from_b, N, add, WGMMA_ELEMENT(type)));                       \
    }
#define WGMMA(N, ...)                                                                              \
    WGMMA_OF(__half, "f16", N, __VA_ARGS__)                                                        \
    WGMMA_OF(__nv_bfloat16, "bf16", N, __VA_ARGS__)
WGMMA(64, "%32", "%33", "%34")
WGMMA(80, "%40", "%41", "%42")
WGMMA(128, "%64", "%65", "%66")
WGMMA(160, "%80", "%81", "%82")
WGMMA(256, "%128", "%129", "%130")

/* Describes an operand as wgmma_operand does, but with its rows read as columns: row k has the
 * elements of step k for 64 of the n columns. Groups of 8 rows are 1024 bytes apart; the next 64
 * columns are `next` bytes further. */
__device__ __forceinline__ uint64_t wgmma_operand_columns(
    const void *shared, unsigned moved, unsigned next) {
    const unsigned at = ((shared_address(shared) & 0x3ffff) >> 4 | (next >> 4) << 16) +
                        (moved >> 4);
    return (uint64_t)at | (uint64_t)(1024 >> 4 | 1u << 30) << 32;
}

/* sums (64 x N) += a (64 x 16) b (16 x N). a is in registers, laid out per warp as for
 * mma_m16n8k16, and must not change before wgmma_wait. b is in shared memory, `moved` bytes after
 * the address `b`, in pieces of [16][64] columns. The pieces are `next` bytes apart and begin at
 * multiples of 1024. */
template <class T, int N>
__device__ __forceinline__ void wgmma_m64k16_columns(
    float *sums, const uint32_t *a, const void *b, unsigned moved, unsigned next);

#define WGMMA_COLUMNS_OF(TYPE, type, N, A, B, ADD)                                                 \
    template <>                                                                                    \
    __device__ __forceinline__ void wgmma_m64k16_columns<TYPE, N>(                                 \
        float *c, const uint32_t *a, const void *b, unsigned moved, unsigned next) {               \
        const uint64_t from = wgmma_operand_columns(b, moved, next);                               \
        WGMMA_DO(WGMMA_ASM(type, N, A, B, ADD, "1", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),    \
                     "l"(from), "r"(1)),                                                           \
            emulator_wgmma_columns(c, a, from, N, WGMMA_ELEMENT(type)));                           \
    }
#define WGMMA_COLUMNS(N, ...)                                                                      \
    WGMMA_COLUMNS_OF(__half, "f16", N, __VA_ARGS__)                                                \
    WGMMA_COLUMNS_OF(__nv_bfloat16, "bf16", N, __VA_ARGS__)
WGMMA_COLUMNS(40, "{%20, %21, %22, %23}", "%24", "%25")
WGMMA_COLUMNS(64, "{%32, %33, %34, %35}", "%36", "%37")
WGMMA_COLUMNS(80, "{%40, %41, %42, %43}", "%44", "%45")
WGMMA_COLUMNS(160, "{%80, %81, %82, %83}", "%84", "%85")

/* Two groups of four warps take turns at barrier `id` (1 to 15). One group waits for its turn in
 * turn_wait; the other gives the turn in turn_give and goes on. */
__device__ __forceinline__ void turn_wait(int id) {
#ifdef __CUDACC__
    HOPPER_ASM("bar.sync %0, 256;" ::"r"(id) : "memory");
#else
    emulator_block_barrier(id, 256, "turn_wait", __FILE__, __LINE__);
#endif
}

__device__ __forceinline__ void turn_give(int id) {
#ifdef __CUDACC__
    HOPPER_ASM("bar.arrive %0, 256;" ::"r"(id) : "memory");
#else
    emulator_block_arrive(id, 256, "turn_give", __FILE__, __LINE__);
#endif
}

/* Changes the number of registers of each thread of a group of four warps to N, a multiple of 8
 * from 24 to 256. registers_give_back returns registers to the multiprocessor; registers_take waits
 * until others have returned enough. */
template <int N> __device__ __forceinline__ void registers_give_back() {
#ifdef __CUDACC__
    HOPPER_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#else
    emulator_registers(N, false);
#endif
}

template <int N> __device__ __forceinline__ void registers_take() {
#ifdef __CUDACC__
    HOPPER_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#else
    emulator_registers(N, true);
#endif
}

#endif
