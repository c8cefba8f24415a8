#include "train/optimizer/adamw_8bit.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* For each power of ten from 1e-6 to 1, the map has the midpoints between evenly spaced points from
 * 0.1 to 1, times the power. The first power has one midpoint (in the unsigned map two), and each
 * further power has twice as many as the one before. A signed map also has the negative of each
 * number. Finally 0 and 1 are added. */
void adamw_8bit_map(bool is_signed, float map[256]) {
    int used = 0;
    for (int exponent = 0; exponent < 7; exponent++) {
        const int count = 1 << (exponent + !is_signed);
        const float scale = (float)pow(10, exponent - 6);
        for (int i = 0; i < count; i++) {
            const float low = (float)(0.1 + 0.9 * i / count);
            const float high = (float)(0.1 + 0.9 * (i + 1) / count);
            map[used] = scale * ((low + high) / 2);
            if (is_signed)
                map[used + 1] = -map[used];
            used += is_signed ? 2 : 1;
        }
    }
    map[used++] = 0;
    map[used] = 1;
    qsort(map, 256, sizeof(*map), by_value);
}

static float maps[2][256]; /* unsigned, signed */

static void fill_maps(void) {
    adamw_8bit_map(false, maps[0]);
    adamw_8bit_map(true, maps[1]);
}

bool adamw_8bit_init(struct adamw_8bit *s, int64_t blocks, struct error *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_maps);
    const size_t count = blocks > 0 ? (size_t)blocks : 1;
    *s = (struct adamw_8bit){ .blocks = blocks,
        .m = calloc(count, ADAMW_8BIT_BLOCK),
        .v = calloc(count, ADAMW_8BIT_BLOCK),
        .m_largest = calloc(count, sizeof(float)),
        .v_largest = calloc(count, sizeof(float)) };
    if (s->m && s->v && s->m_largest && s->v_largest)
        return true;
    adamw_8bit_finish(s);
    return error_set(err, ERROR_NO_MEMORY, "no memory for the optimizer's states in 8 bits");
}

void adamw_8bit_finish(struct adamw_8bit *s) {
    free(s->m);
    free(s->v);
    free(s->m_largest);
    free(s->v_largest);
    *s = (struct adamw_8bit){ 0 };
}

/* Returns the index of the map's number that is nearest to x. */
static uint8_t nearest(const float map[256], float x) {
    int low = 0, high = 255;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (map[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    return (uint8_t)(x - map[low] <= map[high] - x ? low : high);
}

static void store(
    const float map[256], const float *values, int count, uint8_t *places, float *largest) {
    *largest = 0;
    for (int i = 0; i < count; i++)
        *largest = fmaxf(*largest, fabsf(values[i]));
    for (int i = 0; i < count; i++)
        places[i] = nearest(map, *largest > 0 ? values[i] / *largest : 0);
}

static void step_block(struct adamw_8bit *s, int64_t block, float *p, const float *g, int count,
    const struct adamw_8bit_step *a) {
    uint8_t *m_places = s->m + block * ADAMW_8BIT_BLOCK,
            *v_places = s->v + block * ADAMW_8BIT_BLOCK;
    const float beta1 = (float)a->beta1, rest1 = (float)(1 - a->beta1);
    const float beta2 = (float)a->beta2, rest2 = (float)(1 - a->beta2);
    const float correction2 = (float)sqrt(1 - pow(a->beta2, (double)a->step));
    const float rate = (float)(-a->lr / (1 - pow(a->beta1, (double)a->step)));
    const float kept = (float)(1 - a->lr * a->weight_decay);
    const float scale = (float)a->gradient_scale, eps = (float)a->eps;
    const float limit = a->gradient_limit > 0 ? (float)a->gradient_limit : INFINITY;
    float m[ADAMW_8BIT_BLOCK], v[ADAMW_8BIT_BLOCK];
    for (int i = 0; i < count; i++) {
        const float gradient = fmaxf(-limit, fminf(limit, g[i] * scale));
        m[i] = beta1 * (maps[1][m_places[i]] * s->m_largest[block]) + rest1 * gradient;
        v[i] = beta2 * (maps[0][v_places[i]] * s->v_largest[block]) + rest2 * gradient * gradient;
        p[i] = p[i] * kept + rate * (m[i] / (sqrtf(v[i]) / correction2 + eps));
    }
    store(maps[1], m, count, m_places, &s->m_largest[block]);
    store(maps[0], v, count, v_places, &s->v_largest[block]);
}

void adamw_8bit_step(struct adamw_8bit *s, int64_t block, float *parameters, const float *gradients,
    int64_t count, const struct adamw_8bit_step *step) {
    const int64_t blocks = (count + ADAMW_8BIT_BLOCK - 1) / ADAMW_8BIT_BLOCK;
#pragma omp parallel for
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t at = b * ADAMW_8BIT_BLOCK;
        const int64_t left = count - at;
        step_block(s, block + b, parameters + at, gradients + at,
            left < ADAMW_8BIT_BLOCK ? (int)left : ADAMW_8BIT_BLOCK, step);
    }
}
