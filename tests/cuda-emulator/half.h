/* Conversions of 16-bit floats, bit by bit; to nearest even, NaN as 0x7fff like the device.
 *
 * kernels/dtype.c has the same conversions, written another way, and must not be used here: the
 * kernels' results are compared with the reference's, and a bug in a conversion that both shared
 * would not show. */
#ifndef TESTS_CUDA_EMULATOR_HALF_H
#define TESTS_CUDA_EMULATOR_HALF_H

#include <stdint.h>

static inline uint32_t emulator_float_bits(float f) {
    return __builtin_bit_cast(uint32_t, f);
}

static inline float emulator_bits_float(uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}

static inline float emulator_half_to_float(uint16_t h) {
    /* Multiplying by 2^112 corrects the exponent's bias and turns subnormal halves into normal
     * floats. Both results are computed without a branch, so that the compiler can vectorize
     * loops. */
    const uint32_t bits = (uint32_t)(h & 0x7fff) << 13;
    const uint32_t finite = emulator_float_bits(emulator_bits_float(bits) * 0x1p112f);
    const uint32_t all = bits >= 0x7c00u << 13 ? bits | 0x7f800000u : finite;
    return emulator_bits_float(all | (uint32_t)(h & 0x8000) << 16);
}

static inline uint16_t emulator_float_to_half(float f) {
    const uint32_t all = emulator_float_bits(f), bits = all & 0x7fffffffu;
    const uint32_t sign = all >> 16 & 0x8000u;
    if (bits > 0x7f800000u)
        return 0x7fff;
    if (bits >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (bits < 0x38800000u) /* subnormal: adding 0.5 rounds to multiples of 2^-24 */
        return (uint16_t)(sign | (emulator_float_bits(emulator_bits_float(bits) + 0.5f) -
                                     emulator_float_bits(0.5f)));
    return (uint16_t)(sign | (bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13);
}

static inline float emulator_bfloat16_to_float(uint16_t h) {
    return emulator_bits_float((uint32_t)h << 16);
}

static inline uint16_t emulator_float_to_bfloat16(float f) {
    const uint32_t bits = emulator_float_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
