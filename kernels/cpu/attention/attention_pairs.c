/* y = softmax(scale q k^T) v in bf16, on processors that multiply pairs of bf16 fast (pairs.h).
 *
 * Everything is transposed, so that the queries are the lanes: S^T = K Q^T and O^T = V^T P^T. The
 * maxima and sums of a softmax are then taken lane by lane, and the weights are already laid out as
 * the right operand of the second product. For each head, the keys are packed as [key][pair of
 * channels] and the values as [pair of keys][channel]. A block of up to BLOCK_Q queries walks over
 * blocks of BLOCK_K keys with the running maximum m, sum l and output o of each query, as in
 * attention.c.
 *
 * Both products are summed in f32. q is not scaled before the first product, because that would
 * round it. Only the weights are rounded to bf16 on the way, as in every fused bf16 attention. A
 * query's result depends on its own row only, never on the queries beside it.
 */
#include "kernels/cpu/attention/attention_pairs.h"

#include "kernels/cpu/attention/pairs.h"
#include "kernels/cpu/scratch.h"

#include <omp.h>

#define BLOCK_VECTORS 3 /* of queries */
#define BLOCK_Q (BLOCK_VECTORS * LANES)
#define BLOCK_K 128
#define TILE 8 /* keys per score tile, channels per output tile: 24 of 32 registers */
/* Limit for the packed heads in memory at a time. A single head may exceed it. */
#define PACK_BYTES ((size_t)4 << 20)
#define LEAST (-3.402823466e38f) /* finite: -inf - -inf would be NaN */

/* The sizes of one call. */
struct shape {
    int64_t tq, tk, d;
    int64_t pairs;    /* pairs of channels in a key */
    int64_t channels; /* of a value, rounded up to whole tiles */
    int64_t keys;     /* whole tiles */
    size_t key_words, head_words;
    float factor; /* scale / ln 2 */
};

/* What one thread holds for its block of queries. */
struct block {
    uint32_t *q;               /* [pairs][vectors][LANES] */
    float *scores;             /* [BLOCK_K][vectors][LANES] */
    uint32_t *p;               /* [BLOCK_K / 2][vectors][LANES] */
    float *o;                  /* [channels][vectors][LANES] */
    vf largest[BLOCK_VECTORS]; /* largest score, unscaled */
    vf total[BLOCK_VECTORS];
};

static uint32_t pair_at(const uint16_t *x, int64_t i, int64_t count) {
    return (uint32_t)x[i] | (i + 1 < count ? (uint32_t)x[i + 1] << 16 : 0);
}

/* Packs keys [first, first + TILE) of `count`. The last key is followed by copies of itself, whose
 * scores cannot raise a maximum; the last value is followed by zeros. */
static void pack_tile(const struct shape *s, const uint16_t *k, int64_t k_step, const uint16_t *v,
    int64_t v_step, int64_t first, int64_t count, uint32_t *keys, uint32_t *values) {
    for (int64_t key = first; key < first + TILE; key++) {
        const uint16_t *from = k + (key < count ? key : count - 1) * k_step;
        for (int64_t i = 0; i < s->pairs; i++)
            keys[key * s->pairs + i] = pair_at(from, 2 * i, s->d);
    }
    for (int64_t key = first; key < first + TILE; key += 2) {
        const uint16_t *from = v + key * v_step;
        uint32_t *to = values + key / 2 * s->channels;
        for (int64_t c = 0; c < s->channels; c++) {
            uint32_t low = c < s->d && key < count ? from[c] : 0;
            uint32_t high = c < s->d && key + 1 < count ? from[v_step + c] : 0;
            to[c] = low | high << 16;
        }
    }
}

static void pack_queries(const struct shape *s, const uint16_t *q, int64_t step, int64_t count,
    int vectors, uint32_t *out) {
    const int64_t width = vectors * LANES;
    for (int64_t i = 0; i < width; i++)
        for (int64_t pair = 0; pair < s->pairs; pair++)
            out[pair * width + i] = i < count ? pair_at(q + i * step, 2 * pair, s->d) : 0;
}

/* scores[0..TILE)[vectors] = k q^T; updates the maxima in `most`. `vectors` is a compile-time
 * constant. */
INLINE void score_tile(
    const uint32_t *q, const uint32_t *k, int64_t pairs, int vectors, float *scores, vf *most) {
    vf sum[TILE][BLOCK_VECTORS] = { 0 };
    for (int64_t i = 0; i < pairs; i++, q += vectors * LANES) {
        vu x[BLOCK_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            x[v] = load_pairs(q + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < TILE; r++) {
            vu y = k[r * pairs + i] - (vu){ 0 };
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[r][v] = pairs_dot(sum[r][v], x[v], y);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < TILE; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            store(scores + (r * vectors + v) * LANES, sum[r][v]);
            most[v] = vf_max(sum[r][v], most[v]);
        }
    }
}

/* o[0..TILE)[vectors] += v p. */
INLINE void output_tile(
    const uint32_t *p, const uint32_t *values, int64_t step, int64_t pairs, int vectors, float *o) {
    vf sum[TILE][BLOCK_VECTORS];
#pragma GCC unroll 8
    for (int c = 0; c < TILE; c++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[c][v] = load(o + (c * vectors + v) * LANES);
    for (int64_t i = 0; i < pairs; i++, p += vectors * LANES, values += step) {
        vu x[BLOCK_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            x[v] = load_pairs(p + v * LANES);
#pragma GCC unroll 8
        for (int c = 0; c < TILE; c++) {
            vu y = values[c] - (vu){ 0 };
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[c][v] = pairs_dot(sum[c][v], x[v], y);
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < TILE; c++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            store(o + (c * vectors + v) * LANES, sum[c][v]);
}

/* 2^x for x <= 0, with a relative error of at most 7.5e-5, a twentieth of the error of rounding to
 * bf16. Never below 2^-64, because subnormal numbers are slow. NaN stays NaN. */
INLINE vf weight_of(vf x) {
    x = vf_max(splat(-64.0f), x);
    const vf magic = splat(0x1.8p23f);
    vf whole = x + magic;
    vf f = x - (whole - magic); /* -0.5 to 0.5 */
    vf p = splat(0x1.c3f76p-5f);
    p = p * f + 0x1.f0de1ap-3f;
    p = p * f + 0x1.62f31ap-1f;
    p = p * f + 0x1.fff692p-1f;
    return (vf)((vi)p + ((vi)whole << 23));
}

/* Turns the scores of one block of keys into weights and updates the running values. Weights behind
 * the last of `keys` are zero. The maximum is subtracted before scaling, because a scaled score
 * near 2^31 would have a rounding error larger than the range of weight_of. */
INLINE void soften(
    const struct shape *s, struct block *b, const vf *most, int64_t keys, int vectors) {
    vf largest[BLOCK_VECTORS], shrink[BLOCK_VECTORS];
    bool grown = false;
    for (int v = 0; v < vectors; v++) {
        largest[v] = vf_max(most[v], b->largest[v]);
        vf less = (b->largest[v] - largest[v]) * s->factor;
        shrink[v] = vf_exp2(less);
        grown |= any_below_zero(less);
        b->largest[v] = largest[v];
        b->total[v] *= shrink[v];
    }
    if (grown)
        for (int64_t c = 0; c < s->channels; c++)
            for (int v = 0; v < vectors; v++) {
                float *o = b->o + (c * vectors + v) * LANES;
                store(o, load(o) * shrink[v]);
            }
    const int64_t width = vectors * LANES, even = keys / 2 * 2;
    for (int64_t key = 0; key < even; key += 2) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const float *at = b->scores + key * width + v * LANES;
            vf first = weight_of((load(at) - largest[v]) * s->factor);
            vf second = weight_of((load(at + width) - largest[v]) * s->factor);
            b->total[v] += first;
            b->total[v] += second;
            store_pairs(b->p + key / 2 * width + v * LANES, pairs_of(first, second));
        }
    }
    if (even < keys)
        for (int v = 0; v < vectors; v++) {
            const float *at = b->scores + even * width + v * LANES;
            vf only = weight_of((load(at) - largest[v]) * s->factor);
            b->total[v] += only;
            store_pairs(b->p + even / 2 * width + v * LANES, pairs_of(only, splat(0)));
        }
}

/* Computes up to vectors * LANES queries of one head from its `tk` packed keys and values. */
INLINE void attend(const struct shape *s, struct block *b, int64_t tk, const uint32_t *keys,
    const uint32_t *values, int vectors) {
    for (int v = 0; v < vectors; v++) {
        b->total[v] = splat(0);
        b->largest[v] = splat(LEAST);
    }
    memset(b->o, 0, (size_t)(s->channels * vectors * LANES) * sizeof(float));
    for (int64_t at = 0; at < tk; at += BLOCK_K) {
        int64_t count = tk - at < BLOCK_K ? tk - at : BLOCK_K;
        vf most[BLOCK_VECTORS];
        for (int v = 0; v < vectors; v++)
            most[v] = splat(-INFINITY);
        for (int64_t i = 0; i < count; i += TILE)
            score_tile(b->q, keys + (at + i) * s->pairs, s->pairs, vectors,
                b->scores + i * vectors * LANES, most);
        soften(s, b, most, count, vectors);
        for (int64_t c = 0; c < s->channels; c += TILE)
            output_tile(b->p, values + at / 2 * s->channels + c, s->channels, (count + 1) / 2,
                vectors, b->o + c * vectors * LANES);
    }
}

/* y[i][c] = o[c][i] / total[i]. */
static void store_rows(const struct shape *s, const struct block *b, int vectors, int64_t count,
    uint16_t *y, int64_t step) {
    vf whole[BLOCK_VECTORS];
    for (int v = 0; v < vectors; v++) /* NaN if no key had a score above -inf: 0 / 0 */
        whole[v] = choose(b->largest[v] == splat(LEAST), splat(NAN), 1.0f / b->total[v]);
    for (int64_t c = 0; c < s->d; c++) {
        uint16_t column[BLOCK_Q];
        for (int v = 0; v < vectors; v++)
            store_bf16(column + v * LANES, load(b->o + (c * vectors + v) * LANES) * whole[v]);
        for (int64_t i = 0; i < count; i++)
            y[i * step + c] = column[i];
    }
}

/* Computes queries [first, first + count) of head `head` of row `row`. */
static void attend_block(const struct attention_args *args, const struct shape *s, struct block *b,
    const uint32_t *packed, int64_t row, int64_t head, int64_t first, int64_t count) {
    const int64_t q_step = args->q->shape[2], width = args->heads * s->d;
    const int64_t keys = attention_keys(args, row);
    const int vectors = (int)((count + LANES - 1) / LANES);
    const uint32_t *values = packed + s->key_words;
    pack_queries(s,
        (const uint16_t *)args->q->data + (row * s->tq + first) * q_step + args->q_offset +
            head * s->d,
        q_step, count, vectors, b->q);
    if (vectors == 3)
        attend(s, b, keys, packed, values, 3);
    else if (vectors == 2)
        attend(s, b, keys, packed, values, 2);
    else
        attend(s, b, keys, packed, values, 1);
    store_rows(s, b, vectors, count,
        (uint16_t *)args->y->data + (row * s->tq + first) * width + head * s->d, width);
}

/* Packs heads [first, first + count), counted over all rows, and computes their attention. Called
 * by every thread of the team; `packed` is shared, `b` is the thread's own. */
static void heads_of_team(const struct attention_args *args, const struct shape *s, struct block *b,
    uint32_t *packed, int64_t first, int64_t count) {
    const int64_t k_step = args->k->shape[2], v_step = args->v->shape[2], tiles = s->keys / TILE;
#pragma omp for
    for (int64_t item = 0; item < count * tiles; item++) {
        int64_t which = item / tiles, row = (first + which) / args->heads;
        int64_t channel = (first + which) % args->heads * s->d, keys = attention_keys(args, row);
        if (item % tiles * TILE >= keys)
            continue;
        uint32_t *out = packed + (size_t)which * s->head_words;
        pack_tile(s,
            (const uint16_t *)args->k->data + row * s->tk * k_step + args->k_offset + channel,
            k_step,
            (const uint16_t *)args->v->data + row * s->tk * v_step + args->v_offset + channel,
            v_step, item % tiles * TILE, keys, out, out + s->key_words);
    }
    const int64_t blocks = (s->tq + BLOCK_Q - 1) / BLOCK_Q;
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < count * blocks; item++) {
        int64_t which = first + item / blocks, from = item % blocks * BLOCK_Q;
        attend_block(args, s, b, packed + (size_t)(item / blocks) * s->head_words,
            which / args->heads, which % args->heads, from,
            s->tq - from < BLOCK_Q ? s->tq - from : BLOCK_Q);
    }
}

bool PAIRS(attention)(const struct attention_args *args, struct error *err) {
    struct shape s = { .tq = args->y->shape[1], .tk = args->k->shape[1], .d = args->head_dim };
    s.pairs = (s.d + 1) / 2;
    s.channels = (s.d + TILE - 1) / TILE * TILE;
    s.keys = (s.tk + TILE - 1) / TILE * TILE;
    s.key_words = (size_t)(s.keys * s.pairs);
    s.head_words = s.key_words + (size_t)(s.keys / 2 * s.channels);
    s.factor = args->scale * 0x1.715476p0f;
    int64_t heads = args->y->shape[0] * args->heads;
    int64_t at_once = (int64_t)(PACK_BYTES / (s.head_words * sizeof(uint32_t)));
    at_once = at_once < 1 ? 1 : at_once > heads ? heads : at_once;
    size_t own = (size_t)(BLOCK_Q * (s.pairs + BLOCK_K + BLOCK_K / 2 + s.channels));
    size_t packed = ((size_t)at_once * s.head_words + LANES - 1) / LANES * LANES;
    size_t words = packed + (size_t)omp_get_max_threads() * own;
    uint32_t *memory = cpu_scratch(words * sizeof(uint32_t), err);
    if (!memory || cpu_plans())
        return memory != NULL;
#pragma omp parallel
    {
        struct block b = { .q = memory + packed + (size_t)omp_get_thread_num() * own };
        b.p = b.q + BLOCK_Q * s.pairs;
        b.scores = (float *)(b.p + BLOCK_Q * (BLOCK_K / 2));
        b.o = b.scores + BLOCK_Q * BLOCK_K;
        for (int64_t first = 0; first < heads; first += at_once)
            heads_of_team(
                args, &s, &b, memory, first, heads - first < at_once ? heads - first : at_once);
    }
    return true;
}
