#include "train/optimizer/adamw_8bit.h"

#include "train/optimizer/optimizer_kind.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

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

static void step_block(const struct adamw_8bit *s, int64_t block, float *p, const float *g,
    int count, const struct adamw_8bit_step *a) {
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

static int64_t blocks_of(int64_t count) {
    return (count + ADAMW_8BIT_BLOCK - 1) / ADAMW_8BIT_BLOCK;
}

void adamw_8bit_step(const struct adamw_8bit *s, int64_t block, float *parameters,
    const float *gradients, int64_t count, const struct adamw_8bit_step *step) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const int64_t blocks = blocks_of(count);
    pthread_once(&once, fill_maps);
#pragma omp parallel for
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t at = b * ADAMW_8BIT_BLOCK;
        const int64_t left = count - at;
        step_block(s, block + b, parameters + at, gradients + at,
            left < ADAMW_8BIT_BLOCK ? (int)left : ADAMW_8BIT_BLOCK, step);
    }
}

/* --- the entry of the table --- */

/* Each range begins with a block of its own. */
static bool add_states(struct optimizer *o, struct error *err) {
    int64_t blocks = 0;
    for (size_t i = 0; i < o->parameters->range_count; i++)
        blocks += blocks_of(o->parameters->ranges[i].count);
    const size_t places = (size_t)blocks * ADAMW_8BIT_BLOCK;
    const size_t largest = (size_t)blocks * sizeof(float);
    return optimizer_add_state(o, "m", places, true, err) &&
           optimizer_add_state(o, "v", places, true, err) &&
           optimizer_add_state(o, "m.largest", largest, true, err) &&
           optimizer_add_state(o, "v.largest", largest, true, err);
}

static void step(struct optimizer *o, const struct parameter_range *r, float *own,
    const struct optimizer_now *now) {
    const struct train_config *c = o->config;
    const struct adamw_8bit states = { o->states[0].data, o->states[1].data, o->states[2].data,
        o->states[3].data };
    adamw_8bit_step(&states, o->cursor.blocks, own, o->parameters->gradients + r->at, r->count,
        &(struct adamw_8bit_step){
            .lr = learning_rate_at(now->schedule, r->learning_rate, now->schedule_step),
            .beta1 = c->adam_beta1,
            .beta2 = c->adam_beta2,
            .eps = c->adam_epsilon,
            .weight_decay = r->weight_decay,
            .gradient_scale = now->scale,
            .step = o->steps,
            .gradient_limit = c->max_grad_value });
    o->cursor.blocks += blocks_of(r->count);
}

const struct optimizer_kind optimizer_adamw_8bit = { .title = "AdamW8bit",
    .bytes_each = 2,
    .on_host_only = true,
    .add_states = add_states,
    .step = step };
