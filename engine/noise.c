#include "engine/noise.h"

#include "engine/philox.h"

#include <math.h>
#include <string.h>

/* torch's CPU kernel works on blocks of this many values; smaller draws take another path. */
#define BLOCK 16

/* The grid of torch's CUDA kernel on a GPU with 132 multiprocessors of 2,048 threads. */
#define CUDA_BLOCK_THREADS 256
#define CUDA_MAX_BLOCKS (132 * (2048 / CUDA_BLOCK_THREADS))
#define CUDA_UNROLL 4

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

/* 53 random bits in [0, 1), the first word on top. */
static double uniform_f64(struct mt19937 *mt) {
    uint64_t high = mt19937_next(mt);
    uint64_t bits = (high << 32) | mt19937_next(mt);
    return (double)(bits & ((UINT64_C(1) << 53) - 1)) * 0x1p-53;
}

/* Draws of fewer than BLOCK values: one at a time in double, Box-Muller in pairs. The second of a
 * pair waits in the generator, also across draws. */
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
        /* The last block overlaps the one before and is drawn afresh. */
        float *tail = out + count - BLOCK;
        for (int i = 0; i < BLOCK; i++)
            tail[i] = uniform_f32(&g->mt);
        normalize_block(tail);
    }
}

/* cuRAND's Box-Muller of two words: sine first. */
static void normalize_words(uint32_t x, uint32_t y, float *first, float *second) {
    const float scale = 2.3283064e-10f; /* 2^-32 */
    const float scale_2pi = 2.3283064e-10f * 6.2831855f;
    float u = (float)x * scale + scale / 2;
    float angle = (float)y * scale_2pi + scale_2pi / 2;
    float radius = sqrtf(-2.0f * logf(u));
    *first = radius * sinf(angle);
    *second = radius * cosf(angle);
}

/* Thread i of N takes elements i, i + N, i + 2N, i + 3N from one counter, then the next 4N. */
static void draw_cuda(struct noise_generator *g, float *out, int64_t count) {
    int64_t blocks = (count + CUDA_BLOCK_THREADS - 1) / CUDA_BLOCK_THREADS;
    if (blocks > CUDA_MAX_BLOCKS)
        blocks = CUDA_MAX_BLOCKS;
    int64_t threads = blocks * CUDA_BLOCK_THREADS;
    int64_t rounds = (count - 1) / (threads * CUDA_UNROLL) + 1;
    for (int64_t round = 0; round < rounds; round++) {
        uint64_t offset = g->offset + (uint64_t)round;
        for (int64_t thread = 0; thread < threads; thread++) {
            int64_t first = round * threads * CUDA_UNROLL + thread;
            if (first >= count)
                break;
            uint32_t counter[4] = { (uint32_t)offset, (uint32_t)(offset >> 32), (uint32_t)thread,
                (uint32_t)((uint64_t)thread >> 32) };
            uint32_t words[4];
            float normals[CUDA_UNROLL];
            philox_4x32_10(counter, g->seed, words);
            normalize_words(words[0], words[1], &normals[0], &normals[1]);
            normalize_words(words[2], words[3], &normals[2], &normals[3]);
            for (int i = 0; i < CUDA_UNROLL && first + i * threads < count; i++)
                out[first + i * threads] = normals[i];
        }
    }
    g->offset += (uint64_t)rounds;
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

const char *rng_kind_name(enum rng_kind kind) {
    return kind == RNG_CUDA ? "cuda" : "cpu";
}

bool rng_kind_from_name(const char *name, enum rng_kind *out) {
    if (strcmp(name, "cpu") == 0)
        *out = RNG_CPU;
    else if (strcmp(name, "cuda") == 0)
        *out = RNG_CUDA;
    else
        return false;
    return true;
}
