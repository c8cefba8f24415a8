/* The vectors used with tiles: 16 lanes, one for each column.
 *
 * They use AVX-512 with its bf16 extension. On other processors they are plain C that gives the
 * same bits. Compile with
 * -ffp-contract=off, so that only `fused` fuses.
 */
#ifndef KERNELS_CPU_ATTENTION_TILE_SIMD_H
#define KERNELS_CPU_ATTENTION_TILE_SIMD_H

#include "kernels/cpu/simd.h"

#if LANES != 16
#error "tiles have 16 columns"
#endif

typedef uint32_t vu_memory __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));

INLINE void store_words(uint32_t *p, vu x) {
    *(vu_memory *)p = x;
}

/* a * b + c, rounded once. */
INLINE vf fused(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    vf y;
    for (int i = 0; i < LANES; i++)
        y[i] = fmaf(a[i], b[i], c[i]);
    return y;
#endif
}

INLINE bool any_larger(vf a, vf b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ) != 0;
#else
    vi larger = a > b;
    int32_t any = 0;
    for (int i = 0; i < LANES; i++)
        any |= larger[i];
    return any != 0;
#endif
}

/* Loads `count` <= 32 bf16 numbers from p as pairs; the rest is zero. */
INLINE vu load_pairs(const uint16_t *p, int64_t count) {
#if defined(__AVX512BW__)
    return (vu)_mm512_maskz_loadu_epi16((__mmask32)(((uint64_t)1 << count) - 1), p);
#else
    vu x = { 0 };
    memcpy(&x, p, (size_t)count * sizeof(*p));
    return x;
#endif
}

/* Loads `count` <= 16 bf16 numbers from p into the low halves of the words; the rest is zero. */
INLINE vu load_halves(const uint16_t *p, int64_t count) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return (vu)_mm512_cvtepu16_epi32(
        _mm256_maskz_loadu_epi16((__mmask16)(((uint32_t)1 << count) - 1), p));
#else
    vh x = { 0 };
    memcpy(&x, p, (size_t)count * sizeof(*p));
    return __builtin_convertvector(x, vu);
#endif
}

/* Rounds both vectors to bf16 and pairs them, `low` in the low halves. Neither may hold subnormal
 * numbers or NaN. */
INLINE vu pair_of(vf low, vf high) {
#if defined(__AVX512BF16__)
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9,
        24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512bh both = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    return (vu)_mm512_permutexvar_epi16(order, (__m512i)both);
#else
    vu a = (vu)low, b = (vu)high;
    a += 0x7fff + ((a >> 16) & 1);
    b += 0x7fff + ((b >> 16) & 1);
    return (a >> 16) | (b & 0xffff0000);
#endif
}

/* Factor and offset for the argument of an exponential: the float whose bits are the integer x *
 * EXPONENT + EXPONENT_ONE is 2^x, except that its mantissa is linear in x. */
#define EXPONENT 0x1p23f
#define EXPONENT_ONE (127 * EXPONENT)

/* 2^x for y = x * EXPONENT + EXPONENT_ONE and x <= 0, with a relative error below 6.7e-4, a sixth
 * of the error of rounding to bf16. Gives 0 below 2^-111, far above the subnormal numbers, which
 * cost a hundred cycles each. NaN gives 0 and makes *seen negative; *seen collects the signs of all
 * calls. */
INLINE vf cheap_exp2(vf y, vi *seen) {
    const vf least = splat(16 * EXPONENT);
    vf limited = vf_max(least, y); /* a NaN stays */
#if defined(__AVX512F__)
    vi bits = (vi)_mm512_cvttps_epi32((__m512)limited); /* INT32_MIN for a NaN */
#else
    vi nan = limited != limited;
    vi bits = __builtin_convertvector(choose(nan, splat(0), limited), vi) | (nan & INT32_MIN);
#endif
    *seen |= bits;
    /* The bits give 2^n m with 1 <= m < 2, but 2^n 2^(m-1) is wanted. The polynomial is a minimax
     * approximation of 2^(m-1) / m. */
    vf m = (vf)((bits & 0x007fffff) | 0x3f800000);
    vf p = fused(m, splat(-0x1.b40068p-4f), splat(0x1.6a3a46p-1f));
    p = fused(m, p, splat(-0x1.60973ap+0f));
    p = fused(m, p, splat(0x1.c68eb0p+0f));
#if defined(__AVX512F__)
    const __mmask16 counts = _mm512_cmp_ps_mask((__m512)y, (__m512)least, _CMP_GT_OQ);
    return (vf)_mm512_maskz_mul_ps(counts, (__m512)(vf)bits, (__m512)p);
#else
    return choose(y > least, (vf)bits * p, splat(0));
#endif
}

#endif
