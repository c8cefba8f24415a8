/* CUDA's small vectors, with CUDA's alignments: a misaligned vector access fails on the device, and
 * here the sanitizer reports it. */
#ifndef TESTS_CUDA_EMULATOR_VECTOR_TYPES_H
#define TESTS_CUDA_EMULATOR_VECTOR_TYPES_H

#ifdef __cplusplus
#define EMULATOR_MAKE static inline
#else
#define EMULATOR_MAKE static inline __attribute__((unused))
#endif

#define EMULATOR_VECTORS(type, name, align2, align4)                                               \
    typedef struct name##1 {                                                                       \
        type x;                                                                                    \
    }                                                                                              \
    name##1;                                                                                       \
    typedef struct name##2 {                                                                       \
        type x, y;                                                                                 \
    }                                                                                              \
    __attribute__((aligned(align2))) name##2;                                                      \
    typedef struct name##3 {                                                                       \
        type x, y, z;                                                                              \
    }                                                                                              \
    name##3;                                                                                       \
    typedef struct name##4 {                                                                       \
        type x, y, z, w;                                                                           \
    }                                                                                              \
    __attribute__((aligned(align4))) name##4;                                                      \
    EMULATOR_MAKE name##2 make_##name##2(type x, type y) {                                         \
        name##2 v = { x, y };                                                                      \
        return v;                                                                                  \
    }                                                                                              \
    EMULATOR_MAKE name##3 make_##name##3(type x, type y, type z) {                                 \
        name##3 v = { x, y, z };                                                                   \
        return v;                                                                                  \
    }                                                                                              \
    EMULATOR_MAKE name##4 make_##name##4(type x, type y, type z, type w) {                         \
        name##4 v = { x, y, z, w };                                                                \
        return v;                                                                                  \
    }

EMULATOR_VECTORS(signed char, char, 2, 4)
EMULATOR_VECTORS(unsigned char, uchar, 2, 4)
EMULATOR_VECTORS(short, short, 4, 8)
EMULATOR_VECTORS(unsigned short, ushort, 4, 8)
EMULATOR_VECTORS(int, int, 8, 16)
EMULATOR_VECTORS(unsigned int, uint, 8, 16)
EMULATOR_VECTORS(float, float, 8, 16)
EMULATOR_VECTORS(long long, longlong, 16, 16)
EMULATOR_VECTORS(unsigned long long, ulonglong, 16, 16)
EMULATOR_VECTORS(double, double, 16, 16)

typedef struct dim3 {
    unsigned int x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1)
        : x(x_), y(y_), z(z_) {
    }
#endif
} dim3;

#endif
