/* CUDA's cuda_fp16.h: the functions that kernels use, in the CPU's arithmetic. */
#ifndef TESTS_CUDA_EMULATOR_CUDA_FP16_H
#define TESTS_CUDA_EMULATOR_CUDA_FP16_H

#ifdef __cplusplus
#include "tests/cuda-emulator/cuda_runtime.h"
#include "tests/cuda-emulator/half.h"

struct __half {
    unsigned short bits;
    __half() = default;
    __half(float f) : bits(emulator_float_to_half(f)) {
    }
    __half(double f) : __half((float)f) {
    }
    __half(int i) : __half((float)i) {
    }
    operator float() const {
        return emulator_half_to_float(bits);
    }
};

struct alignas(4) __half2 {
    __half x, y;
    __half2() = default;
    __half2(__half a, __half b) : x(a), y(b) {
    }
};
typedef __half half;
typedef __half2 half2;

static inline float __half2float(__half h) {
    return emulator_half_to_float(h.bits);
}

static inline __half __float2half(float f) {
    return __half(f);
}

static inline __half __float2half_rn(float f) {
    return __half(f);
}

static inline __half2 __floats2half2_rn(float x, float y) {
    return __half2(__half(x), __half(y));
}

static inline __half2 __float2half2_rn(float f) {
    return __half2(__half(f), __half(f));
}

static inline __half2 __float22half2_rn(float2 f) {
    return __half2(__half(f.x), __half(f.y));
}

static inline float2 __half22float2(__half2 h) {
    return make_float2(__half2float(h.x), __half2float(h.y));
}

static inline float __low2float(__half2 h) {
    return __half2float(h.x);
}

static inline float __high2float(__half2 h) {
    return __half2float(h.y);
}

static inline __half __low2half(__half2 h) {
    return h.x;
}

static inline __half __high2half(__half2 h) {
    return h.y;
}

static inline __half2 __halves2half2(__half x, __half y) {
    return __half2(x, y);
}

static inline __half2 __half2half2(__half x) {
    return __half2(x, x);
}

static inline unsigned short __half_as_ushort(__half h) {
    return h.bits;
}

static inline __half __ushort_as_half(unsigned short bits) {
    __half h;
    h.bits = bits;
    return h;
}

#define EMULATOR_OPERATOR(operation)                                                               \
    static inline __half operator operation(__half a, __half b) {                                  \
        return __half((float)a operation(float) b);                                                \
    }
EMULATOR_OPERATOR(+)
EMULATOR_OPERATOR(-)
EMULATOR_OPERATOR(*)
EMULATOR_OPERATOR(/)
#undef EMULATOR_OPERATOR

#define EMULATOR_BINARY(name, operation)                                                           \
    static inline __half name(__half a, __half b) {                                                \
        return __half((float)a operation(float) b);                                                \
    }                                                                                              \
    static inline __half2 name##2(__half2 a, __half2 b) {                                          \
        return __half2(name(a.x, b.x), name(a.y, b.y));                                            \
    }
EMULATOR_BINARY(__hadd, +)
EMULATOR_BINARY(__hsub, -)
EMULATOR_BINARY(__hmul, *)
#undef EMULATOR_BINARY

static inline __half __hfma(__half a, __half b, __half c) {
    return __half(fmaf((float)a, (float)b, (float)c));
}

static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    return __half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}

static inline __half __hmax(__half a, __half b) {
    return __half(fmaxf((float)a, (float)b));
}

static inline __half __hmin(__half a, __half b) {
    return __half(fminf((float)a, (float)b));
}

static inline __half2 __hmax2(__half2 a, __half2 b) {
    return __half2(__hmax(a.x, b.x), __hmax(a.y, b.y));
}

static inline bool __hisnan(__half h) {
    return isnan((float)h);
}
#endif

#endif
