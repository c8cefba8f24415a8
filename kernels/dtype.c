/* Conversions between f32, f16 and bf16. The loops are branch-free, so that the compiler can use
 * whole vectors: a checkpoint of a billion f16 weights passes through here at load. */
#include "kernels/dtype.h"

#include <string.h>

static inline uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline float widen_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t magnitude = h & 0x7fffu;
    /* Normal: move the fraction up and the exponent's bias from 15 to 127. */
    uint32_t normal = (magnitude << 13) + ((127u - 15u) << 23);
    /* Inf and NaN: the exponent is all ones in both formats. */
    uint32_t special = (magnitude << 13) | 0x7f800000u;
    /* Subnormal: fraction * 2^-24, read off as (0.5 + fraction * 2^-24) - 0.5, which is exact. */
    uint32_t subnormal = bits_of(float_of(0x3f000000u + magnitude) - 0.5f);
    uint32_t result = magnitude < 0x0400u ? subnormal : normal;
    result = magnitude >= 0x7c00u ? special : result;
    return float_of(sign | result);
}

static inline uint16_t narrow_f16(float f) {
    uint32_t u = bits_of(f);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t magnitude = u & 0x7fffffffu;
    /* Normal: round the 13 dropped bits to nearest, ties to even. A carry may run into the exponent
     * and turn the largest finite number into infinity, as rounding requires. */
    uint32_t rebiased = magnitude - ((127u - 15u) << 23);
    uint32_t normal = (rebiased + 0x0fffu + ((rebiased >> 13) & 1u)) >> 13;
    /* Subnormal, below 2^-14: adding 0.5 leaves the number in the low bits, rounded to units of
     * 2^-24. Larger numbers are replaced by 0, so that the addition never sees a signalling NaN. */
    uint32_t small = magnitude < 0x38800000u ? magnitude : 0;
    uint32_t subnormal = bits_of(float_of(small) + 0.5f) - 0x3f000000u;
    uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
    result = magnitude >= 0x47800000u ? 0x7c00u : result;
    /* A NaN keeps the top of its payload and is made quiet. */
    uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
    result = magnitude > 0x7f800000u ? nan : result;
    return (uint16_t)(sign | result);
}

static inline float widen_bf16(uint16_t h) {
    return float_of((uint32_t)h << 16);
}

static inline uint16_t narrow_bf16(float f) {
    uint32_t u = bits_of(f);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t nan = (u >> 16) | 0x0040u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

float f16_to_f32(uint16_t h) {
    return widen_f16(h);
}

float bf16_to_f32(uint16_t h) {
    return widen_bf16(h);
}

void convert_elements(
    void *dst, enum dtype dst_dtype, const void *src, enum dtype src_dtype, int64_t n) {
    if (dst_dtype == src_dtype) {
        if (dst != src)
            memcpy(dst, src, (size_t)n * dtype_size(dst_dtype));
        return;
    }
    const float *restrict from32 = src;
    const uint16_t *restrict from16 = src;
    float *restrict to32 = dst;
    uint16_t *restrict to16 = dst;
    if (src_dtype == DTYPE_F32 && dst_dtype == DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++)
            to16[i] = narrow_bf16(from32[i]);
    } else if (src_dtype == DTYPE_F32 && dst_dtype == DTYPE_F16) {
        for (int64_t i = 0; i < n; i++)
            to16[i] = narrow_f16(from32[i]);
    } else if (src_dtype == DTYPE_BF16 && dst_dtype == DTYPE_F32) {
        for (int64_t i = 0; i < n; i++)
            to32[i] = widen_bf16(from16[i]);
    } else if (src_dtype == DTYPE_F16 && dst_dtype == DTYPE_F32) {
        for (int64_t i = 0; i < n; i++)
            to32[i] = widen_f16(from16[i]);
    } else if (src_dtype == DTYPE_F16 && dst_dtype == DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++)
            to16[i] = narrow_bf16(widen_f16(from16[i]));
    } else if (src_dtype == DTYPE_BF16 && dst_dtype == DTYPE_F16) {
        for (int64_t i = 0; i < n; i++)
            to16[i] = narrow_f16(widen_bf16(from16[i]));
    }
}

size_t dtype_size(enum dtype dtype) {
    switch (dtype) {
    case DTYPE_F16:
    case DTYPE_BF16:
        return 2;
    case DTYPE_F32:
    case DTYPE_I32:
        return 4;
    case DTYPE_I64:
    case DTYPE_F64:
        return 8;
    }
    return 0;
}

const char *dtype_name(enum dtype dtype) {
    switch (dtype) {
    case DTYPE_F32:
        return "f32";
    case DTYPE_F16:
        return "f16";
    case DTYPE_BF16:
        return "bf16";
    case DTYPE_I32:
        return "i32";
    case DTYPE_I64:
        return "i64";
    case DTYPE_F64:
        return "f64";
    }
    return "unknown";
}
