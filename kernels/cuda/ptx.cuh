/* Inside kernels/cuda/: instructions that C cannot express, each as one small function.
 *
 * nvcc gets the PTX. Any other compiler gets a twin with the same arguments, from the machine that
 * it builds for (the CPU emulator of the tests). Nothing else in this folder depends on the
 * compiler. Sources: PTX ISA 9.0.
 *
 * Fragments of one warp, lane = 4 * group + pair:
 *   a (16 x 16): a[0] row group, columns 2 pair, 2 pair + 1; a[1] row group + 8;
 *                a[2], a[3] the same rows, columns + 8
 *   b (16 x 8):  b[0] rows 2 pair, 2 pair + 1 of column group; b[1] rows + 8
 *   c (16 x 8):  c[0], c[1] row group, columns 2 pair, 2 pair + 1; c[2], c[3] row group + 8
 */
#ifndef KERNELS_CUDA_PTX_CUH
#define KERNELS_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* Declares `type *name`, the block's dynamic shared memory, 1024-byte aligned. The launch sets its
 * size. No other shared memory may be used. */
#ifdef __CUDACC__
#define DYNAMIC_SHARED(type, name)                                                                 \
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];                              \
    type *const name = reinterpret_cast<type *>(dynamic_shared)
#else
#define DYNAMIC_SHARED(type, name)                                                                 \
    type *const name = reinterpret_cast<type *>(emulator_current->block->shared)
#endif

/* Whether this code is compiled for chips with cp.async and m16n8k16: sm_80 and later. A kernel
 * that is never launched on older chips begins with "if (!AMPERE_CODE) return;" and is empty
 * there. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define AMPERE_CODE false
#else
#define AMPERE_CODE true
#endif

/* The 32-bit address that PTX uses for a pointer into shared memory. */
__device__ __forceinline__ uint32_t shared_address(const void *shared) {
#ifdef __CUDACC__
    return (uint32_t)__cvta_generic_to_shared(shared);
#else
    return emulator_shared_address(shared);
#endif
}

#ifndef __CUDACC__
/* Flushes subnormal results to zero, as the chip's approximations do. */
static inline float without_tiny(float x) {
    return x < 1.17549435e-38f ? 0.0f : x;
}
#endif

/* 2^x to about 2 units in the last place; 0 below the normal numbers. */
__device__ __forceinline__ float fast_exp2(float x) {
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return without_tiny(exp2f(x));
#endif
}

/* The larger of x and y; NaN if one of them is NaN. */
__device__ __forceinline__ float max_or_nan(float x, float y) {
#ifdef __CUDACC__
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
#else
    return isnan(x) || isnan(y) ? x + y : fmaxf(x, y);
#endif
}

/* 1 / x to about a unit in the last place, for x above 0; 0 below the normal numbers. */
__device__ __forceinline__ float fast_reciprocal(float x) {
#ifdef __CUDACC__
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return without_tiny(1.0f / x);
#endif
}

/* c += a b, f32 sums. T is __half or __nv_bfloat16. Needs sm_80 and all lanes of the warp. */
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float *c, const uint32_t *a, const uint32_t *b);

#if !defined(__CUDACC__)
#define MMA_M16N8K16(type, element) emulator_mma_m16n8k16(c, a, b, element)
#elif __CUDA_ARCH__ >= 800
#define MMA_M16N8K16(type, element)                                                                \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, "  \
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                   \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#else
#define MMA_M16N8K16(type, element) __trap()
#endif

template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(
    float *c, const uint32_t *a, const uint32_t *b) {
    MMA_M16N8K16("f16", EMULATOR_F16);
}

template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(
    float *c, const uint32_t *a, const uint32_t *b) {
    MMA_M16N8K16("bf16", EMULATOR_BF16);
}

/* c (16 x 8) += a (16 x 8) b (8 x 8) in f16. a[0]: row group, a[1]: row group + 8, both columns 2
 * pair, 2 pair + 1. b: rows 2 pair, 2 pair + 1 of column group. Needs sm_75. */
__device__ __forceinline__ void mma_m16n8k8_f16(float *c, const uint32_t *a, uint32_t b) {
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, "
                 "{%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
#else
    emulator_mma_m16n8k8(c, a, b);
#endif
}

#ifdef __CUDACC__
#define LDMATRIX_X4(kind, is_trans)                                                                \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" kind ".shared.b16 {%0, %1, %2, %3}, [%4];"        \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                  \
                 : "r"(shared_address(shared))                                                     \
                 : "memory")
#define LDMATRIX_X2(kind, is_trans)                                                                \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2" kind ".shared.b16 {%0, %1}, [%2];"                \
                 : "=r"(r[0]), "=r"(r[1])                                                          \
                 : "r"(shared_address(shared))                                                     \
                 : "memory")
#else
#define LDMATRIX_X4(kind, is_trans) emulator_ldmatrix(r, shared, 4, is_trans)
#define LDMATRIX_X2(kind, is_trans) emulator_ldmatrix(r, shared, 2, is_trans)
#endif

/* Loads four 8x8 matrices of 16-bit elements. Lane 8 i + r gives the address of row r of matrix i
 * (16 bytes, aligned). Lane 4 g + p gets elements 2 p, 2 p + 1 of row g of matrix i in r[i]; with
 * _trans, of column g instead. Needs sm_75. */
__device__ __forceinline__ void ldmatrix_x4(uint32_t *r, const void *shared) {
    LDMATRIX_X4("", false);
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t *r, const void *shared) {
    LDMATRIX_X4(".trans", true);
}

/* ldmatrix_x4 for two matrices only; the addresses of lanes 16 to 31 are not read. */
__device__ __forceinline__ void ldmatrix_x2(uint32_t *r, const void *shared) {
    LDMATRIX_X2("", false);
}

__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t *r, const void *shared) {
    LDMATRIX_X2(".trans", true);
}

/* Starts a copy of 16 bytes to shared memory; both addresses are 16-byte aligned. If bytes < 16,
 * the rest is zeroed; if bytes is 0, nothing is read. The copy is complete for this thread after
 * cp_async_wait; other threads need a barrier after that. On sm_75 it is a plain copy. */
__device__ __forceinline__ void cp_async_16(void *shared, const void *global, int bytes) {
#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
#else
    uint4 line = make_uint4(0, 0, 0, 0);
    if (bytes == 16) {
        line = *reinterpret_cast<const uint4 *>(global);
    } else {
        for (int i = 0; i < bytes; i += 2) {
            const uint32_t half = reinterpret_cast<const uint16_t *>(global)[i / 2];
            const uint32_t at = half << (i & 2 ? 16 : 0);
            if (i < 4)
                line.x |= at;
            else if (i < 8)
                line.y |= at;
            else if (i < 12)
                line.z |= at;
            else
                line.w |= at;
        }
    }
    *reinterpret_cast<uint4 *>(shared) = line;
#endif
#else
    emulator_cp_async_16(shared, global, bytes);
#endif
}

/* Makes a group of the copies that this thread has started since its last group. */
__device__ __forceinline__ void cp_async_commit() {
#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
#else
    emulator_cp_async_commit();
#endif
}

/* Waits until at most N of this thread's newest groups are pending. */
template <int N> __device__ __forceinline__ void cp_async_wait() {
#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
#else
    emulator_cp_async_wait(N);
#endif
}

/* Waits until THREADS threads of the block (whole warps) have reached barrier ID (1 to 15). */
template <int ID, int THREADS> __device__ __forceinline__ void named_barrier() {
#ifdef __CUDACC__
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
#else
    emulator_block_barrier(ID, THREADS, "named_barrier", __FILE__, __LINE__);
#endif
}

/* Waits until the previous kernel in the stream has ended and its writes are visible. Does nothing
 * if the kernel was launched without launch_shape.overlap, and nothing in code for chips before
 * sm_90. */
__device__ __forceinline__ void griddepcontrol_wait() {
#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
#else
    emulator_griddepcontrol_wait();
#endif
}

/* Allows the next kernel in the stream to start. The next kernel sees this kernel's writes only
 * after its own griddepcontrol_wait. */
__device__ __forceinline__ void griddepcontrol_launch() {
#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
#else
    emulator_griddepcontrol_launch();
#endif
}

#endif
