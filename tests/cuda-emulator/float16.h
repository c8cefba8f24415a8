/* Inside the emulator: the common part of CUDA's cuda_fp16.h and cuda_bf16.h, in the CPU's
 * arithmetic. Each format defines how its 16 bits become a float and back. EMULATOR_FLOAT16 makes
 * the functions whose names contain the type. */
#ifndef TESTS_CUDA_EMULATOR_FLOAT16_H
#define TESTS_CUDA_EMULATOR_FLOAT16_H

#include "tests/cuda-emulator/cuda_runtime.h"
#include "tests/cuda-emulator/half.h"

template <class FORMAT> struct emulator_float16 {
    unsigned short bits;
    emulator_float16() = default;
    emulator_float16(float f) : bits(FORMAT::narrow(f)) {
    }
    emulator_float16(double f) : emulator_float16((float)f) {
    }
    emulator_float16(int i) : emulator_float16((float)i) {
    }
    operator float() const {
        return FORMAT::widen(bits);
    }

    /* Friend functions, so that either operand may be a number that is converted first. */
#define EMULATOR_OPERATOR(operation, name)                                                         \
    friend inline emulator_float16 operator operation(emulator_float16 a, emulator_float16 b) {    \
        return emulator_float16((float)a operation(float) b);                                      \
    }                                                                                              \
    friend inline emulator_float16 name(emulator_float16 a, emulator_float16 b) {                  \
        return emulator_float16((float)a operation(float) b);                                      \
    }
    EMULATOR_OPERATOR(+, __hadd)
    EMULATOR_OPERATOR(-, __hsub)
    EMULATOR_OPERATOR(*, __hmul)
    EMULATOR_OPERATOR(/, __hdiv)
#undef EMULATOR_OPERATOR

    friend inline emulator_float16 __hfma(
        emulator_float16 a, emulator_float16 b, emulator_float16 c) {
        return emulator_float16(fmaf((float)a, (float)b, (float)c));
    }
    friend inline emulator_float16 __hmax(emulator_float16 a, emulator_float16 b) {
        return emulator_float16(fmaxf((float)a, (float)b));
    }
    friend inline emulator_float16 __hmin(emulator_float16 a, emulator_float16 b) {
        return emulator_float16(fminf((float)a, (float)b));
    }
    friend inline bool __hisnan(emulator_float16 h) {
        return isnan((float)h);
    }
};

template <class FORMAT> struct alignas(4) emulator_float16x2 {
    typedef emulator_float16<FORMAT> element;
    element x, y;
    emulator_float16x2() = default;
    emulator_float16x2(element a, element b) : x(a), y(b) {
    }

    friend inline float __low2float(emulator_float16x2 h) {
        return (float)h.x;
    }
    friend inline float __high2float(emulator_float16x2 h) {
        return (float)h.y;
    }

#define EMULATOR_PAIRWISE(name)                                                                    \
    friend inline emulator_float16x2 name##2(emulator_float16x2 a, emulator_float16x2 b) {         \
        return emulator_float16x2(name(a.x, b.x), name(a.y, b.y));                                 \
    }
    EMULATOR_PAIRWISE(__hadd)
    EMULATOR_PAIRWISE(__hsub)
    EMULATOR_PAIRWISE(__hmul)
    EMULATOR_PAIRWISE(__hmax)
#undef EMULATOR_PAIRWISE

    friend inline emulator_float16x2 __hfma2(
        emulator_float16x2 a, emulator_float16x2 b, emulator_float16x2 c) {
        return emulator_float16x2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
    }
};

/* Defines `type`, the pair `type2`, and the functions whose names contain `name`, such as
 * __float2NAME. */
#define EMULATOR_FLOAT16(type, type2, name)                                                        \
    struct emulator_##name {                                                                       \
        static unsigned short narrow(float f) {                                                    \
            return emulator_float_to_##name(f);                                                    \
        }                                                                                          \
        static float widen(unsigned short bits) {                                                  \
            return emulator_##name##_to_float(bits);                                               \
        }                                                                                          \
    };                                                                                             \
    typedef emulator_float16<emulator_##name> type;                                                \
    typedef emulator_float16x2<emulator_##name> type2;                                             \
    static inline float __##name##2float(type h) {                                                 \
        return (float)h;                                                                           \
    }                                                                                              \
    static inline type __float2##name(float f) {                                                   \
        return type(f);                                                                            \
    }                                                                                              \
    static inline type __float2##name##_rn(float f) {                                              \
        return type(f);                                                                            \
    }                                                                                              \
    static inline type2 __floats2##name##2_rn(float x, float y) {                                  \
        return type2(type(x), type(y));                                                            \
    }                                                                                              \
    static inline type2 __float2##name##2_rn(float f) {                                            \
        return type2(type(f), type(f));                                                            \
    }                                                                                              \
    static inline type2 __float22##name##2_rn(float2 f) {                                          \
        return type2(type(f.x), type(f.y));                                                        \
    }                                                                                              \
    static inline float2 __##name##22float2(type2 h) {                                             \
        return make_float2((float)h.x, (float)h.y);                                                \
    }                                                                                              \
    static inline type __low2##name(type2 h) {                                                     \
        return h.x;                                                                                \
    }                                                                                              \
    static inline type __high2##name(type2 h) {                                                    \
        return h.y;                                                                                \
    }                                                                                              \
    static inline type2 __halves2##name##2(type x, type y) {                                       \
        return type2(x, y);                                                                        \
    }                                                                                              \
    static inline type2 __##name##2##name##2(type x) {                                             \
        return type2(x, x);                                                                        \
    }                                                                                              \
    static inline unsigned short __##name##_as_ushort(type h) {                                    \
        return h.bits;                                                                             \
    }                                                                                              \
    static inline type __ushort_as_##name(unsigned short bits) {                                   \
        type h;                                                                                    \
        h.bits = bits;                                                                             \
        return h;                                                                                  \
    }

#endif
