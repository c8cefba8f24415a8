/* Vectors of LANES floats for the files that are compiled once per instruction set.
 *
 * They are compiled with the flags of the instruction set and -ffp-contract=fast (a * b + c becomes
 * a fused multiply-add where there is one). There is no other fast-math: NaN and infinities keep
 * their meaning. A remainder is padded and goes through the same vector code as the rest, so an
 * element's bits do not depend on its place.
 */
#ifndef KERNELS_CPU_SIMD_H
#define KERNELS_CPU_SIMD_H

#include "kernels/cpu/cpu.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define LANES 16
#define ISA avx512
#elif defined(SIMD_16_LANES) /* 16 lanes without AVX-512 */
#define LANES 16
#define ISA wide
#elif defined(__AVX2__)
#define LANES 8
#define ISA avx2
#else
#define LANES 4
#define ISA portable
#endif

#define SIMD_PASTE(name, isa) simd_##name##_##isa
#define SIMD_EXPAND(name, isa) SIMD_PASTE(name, isa)
#define NAME(name) SIMD_EXPAND(name, ISA) /* simd_attention_avx2 */

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));
/* A vector in memory, at any alignment. */
typedef float vf_memory __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));
typedef uint16_t vh_memory __attribute__((vector_size(LANES * 2), may_alias, aligned(2)));

INLINE vf splat(float x) {
    return x - (vf){ 0 };
}

/* mask ? a : b; a mask's elements are 0 or -1. */
INLINE vf choose(vi mask, vf a, vf b) {
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* The larger of the two; b if either is NaN. */
INLINE vf vf_max(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return choose(a > b, a, b);
#endif
}

/* The smaller of the two; b if either is NaN. */
INLINE vf vf_min(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return choose(a < b, a, b);
#endif
}

INLINE vf vf_sqrt(vf x) {
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif LANES == 8
    return (vf)_mm256_sqrt_ps((__m256)x);
#else
    vf y = { 0 };
    for (int i = 0; i < LANES; i++)
        y[i] = sqrtf(x[i]);
    return y;
#endif
}

INLINE vf vf_abs(vf x) {
    return (vf)((vi)x & 0x7fffffff);
}

/* clang's ThreadSanitizer ignores accesses of more than 16 bytes, so we report these accesses to
 * it. */
#ifdef __clang__
#define TELLS_THREAD_SANITIZER __has_feature(thread_sanitizer)
#else
#define TELLS_THREAD_SANITIZER 0
#endif
#if TELLS_THREAD_SANITIZER
void __tsan_read_range(void *p, unsigned long bytes);
void __tsan_write_range(void *p, unsigned long bytes);
#define READS(p, bytes) __tsan_read_range((void *)(uintptr_t)(p), bytes)
#define WRITES(p, bytes) __tsan_write_range(p, bytes)
#else
#define READS(p, bytes) (void)0
#define WRITES(p, bytes) (void)0
#endif

INLINE vf load(const float *p) {
    READS(p, sizeof(vf));
    return *(const vf_memory *)p;
}

INLINE void store(float *p, vf x) {
    WRITES(p, sizeof(vf));
    *(vf_memory *)p = x;
}

INLINE vf widen(vh h) {
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

/* Round to nearest even; NaN stays NaN. */
INLINE vh narrow(vf x) {
    vu u = (vu)x;
    vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    vu nan = (u >> 16) | 0x40;
    vu is_nan = (vu)(x != x);
    return __builtin_convertvector((is_nan & nan) | (~is_nan & rounded), vh);
}

INLINE vf load_bf16(const uint16_t *p) {
    READS(p, sizeof(vh));
    return widen(*(const vh_memory *)p);
}

/* Rounds to nearest even; NaN stays NaN. */
INLINE void store_bf16(uint16_t *p, vf x) {
    WRITES(p, sizeof(vh));
    *(vh_memory *)p = narrow(x);
}

/* Loads elements i to i + LANES - 1 of f32 or bf16 memory. Call with a constant dtype where speed
 * matters. */
INLINE vf load_as(const void *p, enum dtype dtype, int64_t i) {
    if (dtype == DTYPE_F32)
        return load((const float *)p + i);
    return load_bf16((const uint16_t *)p + i);
}

INLINE void store_as(void *p, enum dtype dtype, int64_t i, vf x) {
    if (dtype == DTYPE_F32)
        store((float *)p + i, x);
    else
        store_bf16((uint16_t *)p + i, x);
}

/* Loads `count` < LANES elements from i on; the other lanes are zero. */
INLINE vf load_some(const void *p, enum dtype dtype, int64_t i, int64_t count) {
    if (dtype == DTYPE_F32) {
        float part[LANES] = { 0 };
        memcpy(part, (const float *)p + i, (size_t)count * sizeof(float));
        return load(part);
    }
    uint16_t part[LANES] = { 0 };
    memcpy(part, (const uint16_t *)p + i, (size_t)count * sizeof(uint16_t));
    return widen(*(const vh_memory *)part);
}

INLINE void store_some(void *p, enum dtype dtype, int64_t i, int64_t count, vf x) {
    if (dtype == DTYPE_F32) {
        float part[LANES];
        store(part, x);
        memcpy((float *)p + i, part, (size_t)count * sizeof(float));
    } else {
        vh part = narrow(x);
        memcpy((uint16_t *)p + i, &part, (size_t)count * sizeof(uint16_t));
    }
}

/* Transposes: x[i][j] becomes x[j][i], by perfect shuffles of all words. */
INLINE void transpose(vu x[LANES]) {
    for (int round = 1; round < LANES; round *= 2) {
        vu y[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            vu a = x[i], b = x[i + LANES / 2];
#if LANES == 16
            y[2 * i] = __builtin_shufflevector(
                a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            y[2 * i + 1] = __builtin_shufflevector(
                a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif LANES == 8
            y[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
            y[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
            y[2 * i] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
            y[2 * i + 1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            x[i] = y[i];
    }
}

/* Loads or stores LANES elements from i on, or only the first `count` of them if `count` is less.
 * With `accumulate`, a store adds to the memory. Call with a constant dtype. */
INLINE vf load_up_to(const void *p, enum dtype dtype, int64_t i, int64_t count) {
    return count >= LANES ? load_as(p, dtype, i) : load_some(p, dtype, i, count);
}

INLINE void store_up_to(
    void *p, enum dtype dtype, int64_t i, int64_t count, bool accumulate, vf x) {
    if (accumulate)
        x += load_up_to(p, dtype, i, count);
    if (count >= LANES)
        store_as(p, dtype, i, x);
    else
        store_some(p, dtype, i, count, x);
}

/* The sum of the lanes, in one fixed order. */
INLINE float sum_of(vf x) {
    float part[LANES];
    store(part, x);
    for (int width = LANES / 2; width >= 1; width /= 2)
        for (int i = 0; i < width; i++)
            part[i] += part[i + width];
    return part[0];
}

INLINE float max_of(vf x) {
    float part[LANES];
    store(part, x);
    for (int i = 1; i < LANES; i++)
        part[0] = part[i] > part[0] ? part[i] : part[0];
    return part[0];
}

/* 2^x for x <= 127.5: relative error below 2e-7, or 2 units in the last place. Below -126.5 the
 * result is 0 (no subnormals); NaN stays NaN. The final scaling is a multiplication, so that a
 * NaN's payload survives. */
INLINE vf vf_exp2(vf x) {
    /* Adding 1.5 * 2^23 + 127 rounds x to an integer and leaves it, biased, in the low bits. */
    const vf magic = splat(0x1.8p23f + 127.0f);
    x = vf_max(splat(-127.0f), x);
    vf shifted = x + magic;
    vf f = x - (shifted - magic); /* -0.5 .. 0.5 */
    vf scale = (vf)((vu)shifted << 23);
    /* Minimax polynomial for (2^f - 1) / f; the relative error of 2^f is 9.2e-8. */
    vf p = splat(0x1.5bb9fcp-10f);
    p = p * f + 0x1.3cea9ep-7f;
    p = p * f + 0x1.c6b754p-5f;
    p = p * f + 0x1.ebf9bcp-3f;
    p = p * f + 0x1.62e42ap-1f;
    p = p * f + 1.0f;
    return p * scale;
}

/* e^x: relative error below 1.5e-7. 0 below -87.6, infinity above 88.7; NaN stays NaN. */
INLINE vf vf_exp(vf x) {
    x = vf_max(splat(-128.0f), vf_min(splat(128.0f), x));
    const vf magic = splat(0x1.8p23f);
    vf n = x * 0x1.715476p0f + magic; /* x / ln 2 */
    vu bits = (vu)n;
    n -= magic;
    /* ln 2 in two parts, the first short enough that n * part is exact. */
    vf r = x - n * 0x1.62e4p-1f;
    r -= n * 0x1.7f7d1cp-20f;
    /* 2^n in two halves: n runs from -185 to 185. */
    vi whole = (vi)(bits << 10) >> 10; /* the integer in the low 22 bits, with its sign */
    vi half = whole >> 1;
    vf scale_a = (vf)((half + 127) << 23), scale_b = (vf)((whole - half + 127) << 23);
    vf p = splat(0x1.6ae720p-10f); /* minimax for |r| <= 0.347, relative error 2e-8 */
    p = p * r + 0x1.126794p-7f;
    p = p * r + 0x1.555824p-5f;
    p = p * r + 0x1.555418p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * scale_a * scale_b;
}

/* x / (1 + e^-bx) */
INLINE vf vf_silu(vf x, float b) {
    return x / (vf_exp(x * -b) + 1.0f);
}

/* The derivative of x / (1 + e^-bx). */
INLINE vf vf_silu_slope(vf x, float b) {
    vf s = 1.0f / (vf_exp(x * -b) + 1.0f);
    return s * (x * b * (1.0f - s) + 1.0f);
}

/* erfc(|z|) for |z| >= 0.95 as 2^polynomial: absolute error below 4e-8, relative below 1e-4. */
INLINE vf erfc_large(vf z) {
    z = vf_min(splat(9.4f), z); /* from there on the result is 0, as for infinity */
    vf p = splat(-0x1.0c750cp-24f);
    p = p * z + 0x1.9582p-19f;
    p = p * z - 0x1.0d003cp-14f;
    p = p * z + 0x1.a0118ep-11f;
    p = p * z - 0x1.a5d69ap-8f;
    p = p * z + 0x1.2cf564p-5f;
    p = p * z - 0x1.40176p-3f;
    p = p * z - 0x1.d40e4cp-1f;
    p = p * z - 0x1.a10ce8p0f;
    p = p * z + 0x1.f2de22p-14f;
    return vf_exp2(p);
}

/* erf(z) for |z| <= 0.95: relative error below 1e-7. */
INLINE vf erf_small(vf z) {
    vf s = z * z;
    vf p = splat(0x1.574ebcp-14f);
    p = p * s - 0x1.a88d86p-11f;
    p = p * s + 0x1.549662p-8f;
    p = p * s - 0x1.b80962p-6f;
    p = p * s + 0x1.ce2dcap-4f;
    p = p * s - 0x1.812742p-2f;
    p = p * s + 0x1.06eba8p-3f; /* 2 / sqrt(pi) - 1 */
    return p * z + z;
}

INLINE vf vf_erf(vf z) {
    vf size = vf_abs(z);
    vf large = 1.0f - erfc_large(size);
    large = (vf)((vi)large | ((vi)z & INT32_MIN));
    return choose(size > 0.95f, large, erf_small(z));
}

/* 1 + erf(x / sqrt 2), without cancellation for negative x. */
INLINE vf one_and_erf(vf x) {
    vf z = x * 0x1.6a09e6p-1f;
    vf tail = erfc_large(vf_abs(z));
    vf large = choose(x < 0.0f, tail, 2.0f - tail);
    return choose(vf_abs(z) > 0.95f, large, 1.0f + erf_small(z));
}

/* 0.5 x (1 + erf(x / sqrt 2)) */
INLINE vf vf_gelu(vf x) {
    return 0.5f * x * one_and_erf(x);
}

/* The derivative of vf_gelu: 0.5 (1 + erf(x / sqrt 2)) + x e^(-x^2 / 2) / sqrt(2 pi) */
INLINE vf vf_gelu_slope(vf x) {
    return 0.5f * one_and_erf(x) + x * vf_exp(x * x * -0.5f) * 0x1.988454p-2f;
}

INLINE vf vf_activate(enum activation activation, vf x) {
    switch (activation) {
    case ACTIVATION_NONE:
        return x;
    case ACTIVATION_SILU:
        return vf_silu(x, 1.0f);
    case ACTIVATION_QUICK_GELU:
        return vf_silu(x, 1.702f);
    case ACTIVATION_GELU:
        return vf_gelu(x);
    }
    return x;
}

void NAME(exp)(const float *x, float *y, int64_t n);
void NAME(exp2)(const float *x, float *y, int64_t n);
void NAME(erf)(const float *x, float *y, int64_t n);
#define ENTRY(name) bool NAME(name)(const struct name##_args *args, struct error *err);
SIMD_OPERATIONS(ENTRY)
#undef ENTRY
extern const struct simd NAME(table);

#endif
