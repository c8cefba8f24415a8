/* Arithmetic on pairs of bf16 in 16 lanes: the instructions of AVX512_BF16, or their twin in plain
 * C.
 *
 * A lane is a 32-bit word that holds two bf16, the first in its low half. Two operations are enough
 * for a matrix product and for a softmax between two products. The twin gives the same bits as the
 * hardware and runs on every processor.
 */
#ifndef KERNELS_CPU_ATTENTION_PAIRS_H
#define KERNELS_CPU_ATTENTION_PAIRS_H

#include "kernels/cpu/simd.h"

#if LANES != 16
#error "compile with AVX512F or SIMD_16_LANES"
#endif

typedef uint32_t vu_memory __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));

INLINE vu load_pairs(const uint32_t *p) {
    return *(const vu_memory *)p;
}

INLINE void store_pairs(uint32_t *p, vu x) {
    *(vu_memory *)p = x;
}

#if defined(__AVX512BF16__)

/* sum + first(a) first(b) + second(a) second(b), in f32. */
INLINE vf pairs_dot(vf sum, vu a, vu b) {
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

INLINE bool any_below_zero(vf x) {
    return _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_LT_OQ) != 0;
}

/* Lane i: (first[i], second[i]), each rounded to nearest even. */
INLINE vu pairs_of(vf first, vf second) {
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25,
        9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    return (vu)_mm512_permutexvar_epi16(interleave, halves);
}

#else

/* x, or a zero of the same sign if x is subnormal: the hardware has no subnormal numbers here. */
INLINE vf pairs_flush(vf x) {
    vu size = (vu)x & 0x7fffffff;
    return (vf)((vu)x & ((vu)(size >= 0x00800000) | 0x80000000));
}

/* sum + a x b, rounded once. The product of two bf16 has 16 significant bits, so it is exact by
 * itself, but it may overflow although the sum does not. */
INLINE vf pairs_fused(vf sum, vf a, vf b) {
    vf y;
    for (int i = 0; i < LANES; i++)
        y[i] = fmaf(a[i], b[i], sum[i]);
    return pairs_flush(y);
}

/* Adds the product of the second members first, as the hardware does. */
INLINE vf pairs_dot(vf sum, vu a, vu b) {
    vf a0 = pairs_flush((vf)(a << 16)), b0 = pairs_flush((vf)(b << 16));
    vf a1 = pairs_flush((vf)(a & 0xffff0000)), b1 = pairs_flush((vf)(b & 0xffff0000));
    return pairs_fused(pairs_fused(pairs_flush(sum), a1, b1), a0, b0);
}

INLINE bool any_below_zero(vf x) {
    bool any = false;
    for (int i = 0; i < LANES; i++)
        any |= x[i] < 0;
    return any;
}

INLINE vu pairs_of(vf first, vf second) {
    return __builtin_convertvector(narrow(pairs_flush(first)), vu) |
           __builtin_convertvector(narrow(pairs_flush(second)), vu) << 16;
}

#endif

#endif
