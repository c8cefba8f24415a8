/* Vectors of LANES floats for the files that are compiled once per instruction set. GCC's and
 * clang's vector extensions: no intrinsics, and the same source for every width. */
#ifndef KERNELS_CPU_MATMUL_VECTOR_H
#define KERNELS_CPU_MATMUL_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define TILE_ROWS 12 /* 24 accumulators of 32 registers */
#elif defined(__AVX2__)
#define LANES 8
#define TILE_ROWS 6 /* 12 accumulators of 16 registers */
#else
#define LANES 4
#define TILE_ROWS 6
#endif
#define PANEL (2 * LANES)

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));

static inline __attribute__((always_inline)) vf load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline __attribute__((always_inline)) void store(float *p, vf v) {
    memcpy(p, &v, sizeof(v));
}

static inline __attribute__((always_inline)) vf load_bf16(const uint16_t *p) {
    vh h;
    memcpy(&h, p, sizeof(h));
    vu bits = __builtin_convertvector(h, vu) << 16;
    return (vf)bits;
}

/* Rounds to nearest even; NaN stays NaN. */
static inline __attribute__((always_inline)) void store_bf16(uint16_t *p, vf v) {
    vu bits = (vu)v;
    vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vu quiet = (bits >> 16) | 0x40, number = (vu)(v == v);
    vh h = __builtin_convertvector((rounded & number) | (quiet & ~number), vh);
    memcpy(p, &h, sizeof(h));
}

static inline vf choose(vi mask, vf yes, vf no) {
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

/* e^x, relative error below 2e-7; saturates at the ends of the normal range; NaN stays NaN. */
static inline vf vf_exp(vf x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    vf clamped = choose(x > 88.0f, x * 0 + 88.0f, choose(x < -87.0f, x * 0 - 87.0f, x));
    vf n = (clamped * 1.44269504f + magic) - magic;
    vf r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
    vf p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    vi exponent = (__builtin_convertvector(n, vi) + 127) << 23;
    return choose(x == x, p * (vf)exponent, x);
}

/* 0.5 x (1 + erf(x / sqrt 2)). erf by Abramowitz and Stegun 7.1.26, |error| <= 1.5e-7. */
static inline vf vf_gelu(vf x) {
    vi sign = (vi)x & INT32_MIN;
    vf a = (vf)((vi)x & INT32_MAX) * 0.70710678f;
    vf t = 1.0f / (a * 0.3275911f + 1.0f);
    vf p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    vf tail = p * t * vf_exp(-a * a); /* erfc(a) */
    vf erf = (vf)((vi)(1.0f - tail) ^ sign);
    return x * 0.5f * (erf + 1.0f);
}

/* x * sigmoid(s x) */
static inline vf vf_silu(vf x, float s) {
    return x / (vf_exp(x * -s) + 1.0f);
}

#endif
