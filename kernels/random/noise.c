#include "kernels/random/noise.h"

#include "kernels/random/philox.h"

#include <math.h>
#include <string.h>

/* torch's CPU kernel works on blocks of this many values; smaller draws take another path. */
#define BLOCK 16

void noise_init(struct noise_generator *generator, enum rng_kind kind, uint64_t seed) {
    memset(generator, 0, sizeof(*generator));
    generator->kind = kind;
    generator->seed = seed;
    if (kind == RNG_CPU)
        mt19937_init(&generator->mt, seed);
}

/* 24 random bits in [0, 1). */
static float uniform_f32(struct mt19937 *mt) {
    return (float)(mt19937_next(mt) & 0xffffffu) * 0x1p-24f;
}

/* 53 random bits in [0, 1); the first word gives the high bits. */
static double uniform_f64(struct mt19937 *mt) {
    uint64_t high = mt19937_next(mt);
    uint64_t bits = (high << 32) | mt19937_next(mt);
    return (double)(bits & ((UINT64_C(1) << 53) - 1)) * 0x1p-53;
}

/* Draws one value in double, for draws of fewer than BLOCK values. Box-Muller gives pairs; the
 * second value of a pair is kept in the generator, also across draws. */
static float draw_single(struct noise_generator *g) {
    if (g->has_cached) {
        g->has_cached = false;
        return (float)g->cached;
    }
    double u1 = uniform_f64(&g->mt);
    double u2 = uniform_f64(&g->mt);
    double radius = sqrt(-2.0 * log1p(-u2));
    double angle = 2.0 * M_PI * u1;
    g->cached = radius * sin(angle);
    g->has_cached = true;
    return (float)(radius * cos(angle));
}

/* Box-Muller in place: value j pairs with value j + 8. */
static void normalize_block(float *block) {
    for (int j = 0; j < BLOCK / 2; j++) {
        float u1 = 1.0f - block[j]; /* (0, 1]: the logarithm stays finite */
        float u2 = block[j + BLOCK / 2];
        float radius = sqrtf(-2.0f * logf(u1));
        float angle = 2.0f * (float)M_PI * u2;
        block[j] = radius * cosf(angle);
        block[j + BLOCK / 2] = radius * sinf(angle);
    }
}

static void draw_blocks(struct noise_generator *g, float *out, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        out[i] = uniform_f32(&g->mt);
    for (int64_t i = 0; i + BLOCK <= count; i += BLOCK)
        normalize_block(out + i);
    if (count % BLOCK) {
        /* The last block overlaps the one before it. All of its values are drawn again. */
        float *tail = out + count - BLOCK;
        for (int i = 0; i < BLOCK; i++)
            tail[i] = uniform_f32(&g->mt);
        normalize_block(tail);
    }
}

static void draw_cuda(struct noise_generator *g, float *out, int64_t count) {
    philox_randn(g->seed, g->offset, out, count);
    g->offset += (uint64_t)philox_rounds(count);
}

void noise_draw(struct noise_generator *generator, float *out, int64_t count) {
    if (count <= 0)
        return;
    if (generator->kind == RNG_CUDA) {
        draw_cuda(generator, out, count);
    } else if (count >= BLOCK) {
        draw_blocks(generator, out, count);
    } else {
        for (int64_t i = 0; i < count; i++)
            out[i] = draw_single(generator);
    }
}

void noise_skip(struct noise_generator *generator, int64_t count) {
    float small[BLOCK];
    if (generator->kind == RNG_CUDA)
        generator->offset += (uint64_t)philox_rounds(count);
    else if (count >= BLOCK)
        mt19937_skip(&generator->mt, count + (count % BLOCK ? BLOCK : 0));
    else
        noise_draw(generator, small, count); /* the value that it keeps must be computed */
}
