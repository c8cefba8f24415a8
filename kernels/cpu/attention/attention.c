/* y = softmax(scale q k^T) v, one head at a time, without ever holding the whole score matrix.
 *
 * For each head the keys are packed in panels of PANEL keys, [panel][d][PANEL], and the values as
 * [key][d padded to whole vectors], both f32. A block of BLOCK_Q queries then walks over blocks of
 * BLOCK_K keys with the running maximum m, sum l and output o of each query (Milakov and Gimelshein
 * 2018; FlashAttention, Dao 2022):
 *   s = q k^T;  m' = max(m, max s);  p = 2^(s - m');  l = 2^(m - m') l + sum p;
 *   o = 2^(m - m') o + p v;  in the end y = o / l.
 * q is multiplied by scale / ln 2 first, hence powers of two. Both products run in register tiles.
 * How a query is computed depends on the shape of its own row only, never on the other rows.
 */
#include "kernels/cpu/attention/attention_blocks.h"
#include "kernels/cpu/scratch.h"

#include <omp.h>

/* Limit for the packed heads in memory at a time. A single head may exceed it. */
#define PACK_BYTES ((size_t)8 << 20)

/* The sizes of one call. */
struct shape {
    int64_t tq, tk, d;
    int64_t d_padded; /* d rounded up to whole vectors */
    int64_t panels;   /* of keys */
    size_t head_floats, query_floats;
};

/* What one thread holds for its block of queries. */
struct block {
    float *q;               /* [BLOCK_Q / TILE_Q][d][TILE_Q] */
    float *scores;          /* [BLOCK_Q][BLOCK_K] */
    float *o;               /* [BLOCK_Q][d_padded] */
    float *largest, *total; /* [BLOCK_Q] */
};

/* Turns the scores of `keys` > 0 keys into weights and updates the running m, l and o of their
 * queries. Scores behind the last key are overwritten, up to a whole vector. There are two loops so
 * that the dependent steps of one query overlap with those of the next. */
static void soften(const struct shape *s, struct block *b, int64_t keys, int64_t count) {
    float largest[BLOCK_Q];
    int64_t vectors = (keys + LANES - 1) / LANES;
    for (int64_t i = 0; i < count; i++) {
        float *scores = b->scores + i * BLOCK_K;
        for (int64_t j = keys; j < vectors * LANES; j++)
            scores[j] = -INFINITY;
        vf most = load(scores);
        for (int64_t j = 1; j < vectors; j++)
            most = vf_max(load(scores + j * LANES), most);
        float now = max_of(most);
        largest[i] = now > b->largest[i] ? now : b->largest[i];
    }
    for (int64_t i = 0; i < count; i++) {
        float *scores = b->scores + i * BLOCK_K, *o = b->o + i * s->d_padded;
        vf sum = { 0 };
        for (int64_t j = 0; j < vectors; j++) {
            vf weight = vf_exp2(load(scores + j * LANES) - largest[i]);
            store(scores + j * LANES, weight);
            sum += weight;
        }
        if (largest[i] > b->largest[i]) {
            float shrink = vf_exp2(splat(b->largest[i] - largest[i]))[0];
            b->largest[i] = largest[i];
            b->total[i] *= shrink;
            for (int64_t c = 0; c < s->d_padded; c += LANES)
                store(o + c, load(o + c) * shrink);
        }
        b->total[i] += sum_of(sum);
    }
}

/* Processes keys [first, first + keys) for `count` queries, all of which see all these keys. */
static void visit(const struct shape *s, struct block *b, const float *k, const float *v,
    int64_t first, int64_t keys, int64_t count) {
    int64_t tiles = (count + TILE_Q - 1) / TILE_Q;
    for (int64_t j = 0; j < keys; j += PANEL)
        for (int64_t tile = 0; tile < tiles; tile++)
            score_tile(b->q + tile * s->d * TILE_Q, k + (first + j) * s->d, s->d,
                b->scores + tile * TILE_Q * BLOCK_K + j, BLOCK_K);
    soften(s, b, keys, count);
    const float *values = v + first * s->d_padded;
    int64_t i = 0;
    for (; i + TILE_O <= count; i += TILE_O)
        output_rows((struct weights){ b->scores + i * BLOCK_K, BLOCK_K, 1 }, values, s->d_padded,
            keys, TILE_O, b->o + i * s->d_padded);
    for (; i < count; i++)
        output_rows((struct weights){ b->scores + i * BLOCK_K, BLOCK_K, 1 }, values, s->d_padded,
            keys, 1, b->o + i * s->d_padded);
}

/* Computes queries [first, first + count) of one head from its packed keys and values. */
static void attend(const struct attention_args *args, const struct shape *s, struct block *b,
    const float *k, const float *v, int64_t row, int64_t head, int64_t first, int64_t count) {
    enum dtype dtype = args->y->dtype;
    int64_t q_step = args->q->shape[2], width = args->heads * s->d;
    int64_t q_at = (row * s->tq + first) * q_step + args->q_offset + head * s->d;
    int64_t keys = attention_keys(args, row);
    keys = args->causal && first + 1 < keys ? first + 1 : keys;
    pack_queries(
        s->d, args->q->data, dtype, q_at, q_step, count, args->scale * 0x1.715476p0f, b->q);
    memset(b->o, 0, (size_t)(count * s->d_padded) * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        b->total[i] = 0;
        b->largest[i] = -3.402823466e38f; /* finite: -inf - -inf would be NaN */
    }
    for (int64_t at = 0; at < keys; at += BLOCK_K)
        visit(s, b, k, v, at, keys - at < BLOCK_K ? keys - at : BLOCK_K, count);
    for (int64_t i = 0; i < count; i++) {
        const float *o = b->o + i * s->d_padded;
        int64_t y = (row * s->tq + first + i) * width + head * s->d, j = 0;
        for (; j + LANES <= s->d; j += LANES)
            store_as(args->y->data, dtype, y + j, load(o + j) / b->total[i]);
        if (j < s->d)
            store_some(args->y->data, dtype, y + j, s->d - j, load(o + j) / b->total[i]);
    }
}

/* Packs heads [first, first + count), counted over all rows, and computes their attention. Called
 * by every thread of the team; `packed` is shared, `b` is the thread's own. */
static void heads_of_team(const struct attention_args *args, const struct shape *s, struct block *b,
    float *packed, int64_t first, int64_t count) {
    enum dtype dtype = args->y->dtype;
    int64_t k_step = args->k->shape[2], v_step = args->v->shape[2];
    int64_t values_at = s->panels * PANEL * s->d;
#pragma omp for
    for (int64_t item = 0; item < count * s->panels; item++) {
        int64_t panel = item % s->panels, row = (first + item / s->panels) / args->heads;
        int64_t head = (first + item / s->panels) % args->heads, keys = attention_keys(args, row);
        if (panel * PANEL >= keys)
            continue;
        float *out = packed + (size_t)(item / s->panels) * s->head_floats;
        pack_keys(s->d, args->k->data, dtype, row * s->tk * k_step + args->k_offset + head * s->d,
            k_step, panel, keys, out + panel * PANEL * s->d);
        pack_values(s->d, s->d_padded, args->v->data, dtype,
            row * s->tk * v_step + args->v_offset + head * s->d, v_step, panel, keys,
            out + values_at + panel * PANEL * s->d_padded);
    }
    /* A causal query is a block of its own, so that keys it must not see are never touched. */
    int64_t per_block = args->causal ? 1 : BLOCK_Q;
    int64_t blocks = (s->tq + per_block - 1) / per_block;
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < count * blocks; item++) {
        int64_t which = first + item / blocks, from = item % blocks * per_block;
        const float *k = packed + (size_t)(item / blocks) * s->head_floats;
        attend(args, s, b, k, k + values_at, which / args->heads, which % args->heads, from,
            s->tq - from < per_block ? s->tq - from : per_block);
    }
}

bool NAME(attention)(const struct attention_args *args, struct error *err) {
    struct shape s = { .tq = args->y->shape[1], .tk = args->k->shape[1], .d = args->head_dim };
    s.d_padded = (s.d + LANES - 1) / LANES * LANES;
    s.panels = (s.tk + PANEL - 1) / PANEL;
    s.head_floats = (size_t)(s.panels * PANEL * (s.d + s.d_padded));
    s.query_floats = (size_t)(BLOCK_Q * (s.d + BLOCK_K + s.d_padded + 2));
    s.query_floats = (s.query_floats + 15) / 16 * 16;
    int64_t heads = args->y->shape[0] * args->heads;
    int64_t at_once = (int64_t)(PACK_BYTES / (s.head_floats * sizeof(float)));
    at_once = at_once < 1 ? 1 : at_once > heads ? heads : at_once;
    size_t packed_floats = (size_t)at_once * s.head_floats; /* whole panels: a multiple of 8 */
    size_t threads = (size_t)omp_get_max_threads();
    size_t floats = (packed_floats + threads * s.query_floats + 15) / 16 * 16;
    float *memory = cpu_scratch(floats * sizeof(float), err);
    if (!memory || cpu_plans())
        return memory != NULL;
#pragma omp parallel
    {
        float *own = memory + packed_floats + (size_t)omp_get_thread_num() * s.query_floats;
        struct block b = { .q = own };
        b.scores = b.q + BLOCK_Q * s.d;
        b.o = b.scores + BLOCK_Q * BLOCK_K;
        b.largest = b.o + BLOCK_Q * s.d_padded;
        b.total = b.largest + BLOCK_Q;
        for (int64_t first = 0; first < heads; first += at_once)
            heads_of_team(
                args, &s, &b, memory, first, heads - first < at_once ? heads - first : at_once);
    }
    return true;
}
