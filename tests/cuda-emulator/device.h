/* The kernel language in C++: keywords, built-in variables, barriers, warp operations, atomics and
 * arithmetic intrinsics. Each thread of a block is a fiber (scheduler.h); only barriers and warp
 * operations may switch to another fiber. Each of them records the caller's file and line, so that
 * an error report says where every thread waits. */
#ifndef TESTS_CUDA_EMULATOR_DEVICE_H
#define TESTS_CUDA_EMULATOR_DEVICE_H

#include "tests/cuda-emulator/scheduler.h"
#include "tests/cuda-emulator/vector_types.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
/* Kernels use DYNAMIC_SHARED of kernels/cuda/ptx.cuh instead: only dynamic shared memory is
 * poisoned and guarded. */
#define __shared__ static_assert(false, "only dynamic shared memory");

static const int warpSize = 32;
/* Built-in variables of the running thread. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

#define EMULATOR_WHERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(EMULATOR_WHERE) {
    emulator_block_barrier(0, -1, "__syncthreads", file, line);
}

static inline int __syncthreads_count(int predicate, EMULATOR_WHERE) {
    return emulator_block_count(predicate, "__syncthreads_count", file, line);
}

static inline int __syncthreads_or(int predicate, EMULATOR_WHERE) {
    return emulator_block_count(predicate != 0, "__syncthreads_or", file, line) != 0;
}

static inline int __syncthreads_and(int predicate, EMULATOR_WHERE) {
    return emulator_block_count(predicate == 0, "__syncthreads_and", file, line) == 0;
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_WHERE) {
    emulator_warp(nullptr, "__syncwarp", mask, nullptr, file, line);
}

static inline void __threadfence() {
}

static inline void __threadfence_block() {
}

static inline void __threadfence_system() {
}

static inline void __nanosleep(unsigned) {
    emulator_yield();
}

/* One lane's part of a shuffle; `source` is the lane it reads. */
template <class T> struct emulator_shuffle {
    T value, result;
    int source;
};

/* Runs once for the whole warp, when its last lane has arrived. So no lane can overwrite a value
 * before the other lanes have read it. */
template <class T> static void emulator_shuffle_all(void **lanes, unsigned mask) {
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) {
            struct emulator_shuffle<T> *lane = (struct emulator_shuffle<T> *)lanes[i];
            if (!(mask >> lane->source & 1))
                emulator_die("a shuffle reads lane %d, which its mask does not name", lane->source);
            lane->result = ((struct emulator_shuffle<T> *)lanes[lane->source])->value;
        }
}

template <class T>
static inline T emulator_shuffle_from(
    const char *name, unsigned mask, T value, int source, const char *file, int line) {
    struct emulator_shuffle<T> lane = {
        value, value, source
    };
    emulator_warp(emulator_shuffle_all<T>, name, mask, &lane, file, line);
    return lane.result;
}

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATOR_WHERE) {
    const int lane = emulator_current->lane;
    return emulator_shuffle_from(
        "__shfl_sync", mask, value, (lane & ~(width - 1)) | (source & (width - 1)), file, line);
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, EMULATOR_WHERE) {
    const int lane = emulator_current->lane, from = lane ^ bits;
    const bool inside = from / width <= lane / width;
    return emulator_shuffle_from(
        "__shfl_xor_sync", mask, value, inside ? from & 31 : lane, file, line);
}

template <class T>
static inline T __shfl_up_sync(
    unsigned mask, T value, unsigned by, int width = 32, EMULATOR_WHERE) {
    const int lane = emulator_current->lane, from = lane - (int)by;
    const bool inside = from >= (lane & ~(width - 1));
    return emulator_shuffle_from("__shfl_up_sync", mask, value, inside ? from : lane, file, line);
}

template <class T>
static inline T __shfl_down_sync(
    unsigned mask, T value, unsigned by, int width = 32, EMULATOR_WHERE) {
    const int lane = emulator_current->lane, from = lane + (int)by;
    const bool inside = from < (lane & ~(width - 1)) + width;
    return emulator_shuffle_from("__shfl_down_sync", mask, value, inside ? from : lane, file, line);
}

struct emulator_vote {
    bool predicate;
    unsigned ballot;
};

static inline void emulator_vote_all(void **lanes, unsigned mask) {
    unsigned ballot = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1)
            ballot |= (unsigned)((struct emulator_vote *)lanes[i])->predicate << i;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1)
            ((struct emulator_vote *)lanes[i])->ballot = ballot;
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATOR_WHERE) {
    struct emulator_vote lane = { predicate != 0, 0 };
    emulator_warp(emulator_vote_all, "__ballot_sync", mask, &lane, file, line);
    return lane.ballot;
}

static inline int __any_sync(unsigned mask, int predicate, EMULATOR_WHERE) {
    return __ballot_sync(mask, predicate, file, line) != 0;
}

static inline int __all_sync(unsigned mask, int predicate, EMULATOR_WHERE) {
    return __ballot_sync(mask, predicate, file, line) == mask;
}

static inline unsigned __activemask() {
    return emulator_live_lanes();
}

/* Fibers are switched only at barriers, so a plain read-modify-write is atomic. */
#define EMULATOR_ATOMIC(name, type, expression)                                                    \
    static inline type name(type *address, type value) {                                           \
        const type old = *address;                                                                 \
        *address = expression;                                                                     \
        return old;                                                                                \
    }
#define EMULATOR_ATOMICS(type)                                                                     \
    EMULATOR_ATOMIC(atomicAdd, type, old + value)                                                  \
    EMULATOR_ATOMIC(atomicExch, type, value)
#define EMULATOR_INTEGER_ATOMICS(type)                                                             \
    EMULATOR_ATOMICS(type)                                                                         \
    EMULATOR_ATOMIC(atomicMax, type, old > value ? old : value)                                    \
    EMULATOR_ATOMIC(atomicMin, type, old < value ? old : value)                                    \
    EMULATOR_ATOMIC(atomicOr, type, old | value)                                                   \
    EMULATOR_ATOMIC(atomicAnd, type, old &value)                                                   \
    EMULATOR_ATOMIC(atomicXor, type, old ^ value)                                                  \
    static inline type atomicCAS(type *address, type compare, type value) {                        \
        const type old = *address;                                                                 \
        if (old == compare)                                                                        \
            *address = value;                                                                      \
        return old;                                                                                \
    }
EMULATOR_ATOMICS(float)
EMULATOR_ATOMICS(double)
EMULATOR_INTEGER_ATOMICS(int)
EMULATOR_INTEGER_ATOMICS(unsigned int)
EMULATOR_INTEGER_ATOMICS(unsigned long long)

/* Adds 1; a count of `value` or more becomes 0. */
static inline unsigned int atomicInc(unsigned int *address, unsigned int value) {
    const unsigned int old = *address;
    *address = old >= value ? 0 : old + 1;
    return old;
}

template <class T> static inline T __ldg(const T *p) {
    return *p;
}

template <class T> static inline T __ldcg(const T *p) {
    return *p;
}

template <class T> static inline T __ldcs(const T *p) {
    return *p;
}

template <class T> static inline void __stcg(T *p, T value) {
    *p = value;
}

template <class T> static inline void __stcs(T *p, T value) {
    *p = value;
}

template <class To, class From> static inline To emulator_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

static inline unsigned __float_as_uint(float x) {
    return emulator_bits<unsigned>(x);
}

static inline float __uint_as_float(unsigned x) {
    return emulator_bits<float>(x);
}

static inline int __float_as_int(float x) {
    return emulator_bits<int>(x);
}

static inline float __int_as_float(int x) {
    return emulator_bits<float>(x);
}

/* Here the fast intrinsics are as precise as the exact functions; on the device they lose a few
 * bits. They are macros because the C library has functions of the same names. */
#define __expf(x) expf(x)
#define __exp10f(x) powf(10.0f, x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __powf(x, y) powf(x, y)

static inline float __fdividef(float x, float y) {
    return x / y;
}

static inline float __frcp_rn(float x) {
    return 1.0f / x;
}

static inline float __fsqrt_rn(float x) {
    return sqrtf(x);
}

static inline float __frsqrt_rn(float x) {
    return (float)(1.0 / sqrt((double)x));
}

static inline float rsqrtf(float x) {
    return (float)(1.0 / sqrt((double)x));
}

static inline float __fmaf_rn(float x, float y, float z) {
    return fmaf(x, y, z);
}

static inline float __fadd_rn(float x, float y) {
    return x + y;
}

static inline float __fsub_rn(float x, float y) {
    return x - y;
}

/* The volatile variable keeps the compiler from fusing the product with a later addition. */
static inline float __fmul_rn(float x, float y) {
    volatile float product = x * y;
    return product;
}

static inline float __fdiv_rn(float x, float y) {
    return x / y;
}

static inline float __saturatef(float x) {
    return x > 1.0f ? 1.0f : x > 0.0f ? x : 0.0f;
}

static inline int __float2int_rn(float x) {
    return (int)lrintf(x);
}

static inline int __float2int_rz(float x) {
    return (int)x;
}

static inline float __int2float_rn(int x) {
    return (float)x;
}

static inline float __uint2float_rn(unsigned x) {
    return (float)x;
}

static inline void sincospif(float x, float *s, float *c) {
    *s = (float)sin(3.14159265358979323846 * (double)x);
    *c = (float)cos(3.14159265358979323846 * (double)x);
}

static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}

static inline int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}

static inline int __ffs(int x) {
    return __builtin_ffs(x);
}

static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}

static inline int __mulhi(int a, int b) {
    return (int)((int64_t)a * b >> 32);
}

static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned choice = selector >> 4 * i & 0xf;
        unsigned byte = (unsigned)(bytes >> 8 * (choice & 7)) & 0xff;
        if (choice & 8)
            byte = byte & 0x80 ? 0xff : 0;
        result |= byte << 8 * i;
    }
    return result;
}

static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((uint64_t)high << 32 | low) << (by & 31) >> 32);
}

static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (by & 31));
}

#define EMULATOR_MIN_MAX(type)                                                                     \
    static inline type min(type a, type b) {                                                       \
        return a < b ? a : b;                                                                      \
    }                                                                                              \
    static inline type max(type a, type b) {                                                       \
        return a > b ? a : b;                                                                      \
    }
EMULATOR_MIN_MAX(int)
EMULATOR_MIN_MAX(unsigned int)
EMULATOR_MIN_MAX(long)
EMULATOR_MIN_MAX(unsigned long)
EMULATOR_MIN_MAX(long long)
EMULATOR_MIN_MAX(unsigned long long)

static inline float min(float a, float b) {
    return fminf(a, b);
}

static inline float max(float a, float b) {
    return fmaxf(a, b);
}

#endif
