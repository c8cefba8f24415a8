/* CUDA's cuda_bf16.h: the functions that kernels use, in the CPU's arithmetic. */
#ifndef TESTS_CUDA_EMULATOR_CUDA_BF16_H
#define TESTS_CUDA_EMULATOR_CUDA_BF16_H

#ifdef __cplusplus
#include "tests/cuda-emulator/cuda_runtime.h"
#include "tests/cuda-emulator/half.h"

struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float f) : bits(emulator_float_to_bfloat16(f)) {
    }
    __nv_bfloat16(double f) : __nv_bfloat16((float)f) {
    }
    __nv_bfloat16(int i) : __nv_bfloat16((float)i) {
    }
    operator float() const {
        return emulator_bfloat16_to_float(bits);
    }
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) {
    }
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline float __bfloat162float(__nv_bfloat16 h) {
    return emulator_bfloat16_to_float(h.bits);
}

static inline __nv_bfloat16 __float2bfloat16(float f) {
    return __nv_bfloat16(f);
}

static inline __nv_bfloat16 __float2bfloat16_rn(float f) {
    return __nv_bfloat16(f);
}

static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return __nv_bfloat162(__nv_bfloat16(x), __nv_bfloat16(y));
}

static inline __nv_bfloat162 __float2bfloat162_rn(float f) {
    return __nv_bfloat162(__nv_bfloat16(f), __nv_bfloat16(f));
}

static inline __nv_bfloat162 __float22bfloat162_rn(float2 f) {
    return __nv_bfloat162(__nv_bfloat16(f.x), __nv_bfloat16(f.y));
}

static inline float2 __bfloat1622float2(__nv_bfloat162 h) {
    return make_float2(__bfloat162float(h.x), __bfloat162float(h.y));
}

static inline float __low2float(__nv_bfloat162 h) {
    return __bfloat162float(h.x);
}

static inline float __high2float(__nv_bfloat162 h) {
    return __bfloat162float(h.y);
}

static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 h) {
    return h.x;
}

static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 h) {
    return h.y;
}

static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
    return __nv_bfloat162(x, y);
}

static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) {
    return __nv_bfloat162(x, x);
}

static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) {
    return h.bits;
}

static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
    __nv_bfloat16 h;
    h.bits = bits;
    return h;
}

#define EMULATOR_OPERATOR(operation)                                                               \
    static inline __nv_bfloat16 operator operation(__nv_bfloat16 a, __nv_bfloat16 b) {             \
        return __nv_bfloat16((float)a operation(float) b);                                         \
    }
EMULATOR_OPERATOR(+)
EMULATOR_OPERATOR(-)
EMULATOR_OPERATOR(*)
EMULATOR_OPERATOR(/)
#undef EMULATOR_OPERATOR

#define EMULATOR_BINARY(name, operation)                                                           \
    static inline __nv_bfloat16 name(__nv_bfloat16 a, __nv_bfloat16 b) {                           \
        return __nv_bfloat16((float)a operation(float) b);                                         \
    }                                                                                              \
    static inline __nv_bfloat162 name##2(__nv_bfloat162 a, __nv_bfloat162 b) {                     \
        return __nv_bfloat162(name(a.x, b.x), name(a.y, b.y));                                     \
    }
EMULATOR_BINARY(__hadd, +)
EMULATOR_BINARY(__hsub, -)
EMULATOR_BINARY(__hmul, *)
#undef EMULATOR_BINARY

static inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
    return __nv_bfloat16(fmaf((float)a, (float)b, (float)c));
}

static inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
    return __nv_bfloat162(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}

static inline __nv_bfloat16 __hmax(__nv_bfloat16 a, __nv_bfloat16 b) {
    return __nv_bfloat16(fmaxf((float)a, (float)b));
}

static inline __nv_bfloat16 __hmin(__nv_bfloat16 a, __nv_bfloat16 b) {
    return __nv_bfloat16(fminf((float)a, (float)b));
}

static inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b) {
    return __nv_bfloat162(__hmax(a.x, b.x), __hmax(a.y, b.y));
}

static inline bool __hisnan(__nv_bfloat16 h) {
    return isnan((float)h);
}
#endif

#endif
