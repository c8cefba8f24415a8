/* y = softmax(scale q k^T) v in bf16 on tiles, one head at a time.
 *
 * The order of work is attention.c's: for a block of queries, blocks of keys with the running
 * maximum m, sum l and output o of each query. Everything is transposed: S^T = K Q^T and
 * O^T = V^T P^T, so that queries are the columns of a tile and the lanes of a vector. Maxima and
 * sums are then taken down the rows. The weights are already laid out as the right operand of the
 * second product; they only have to be rounded to bf16. K and V^T are packed once per head, Q^T
 * once per block.
 *
 * A tile is 16 rows of 16 words. A word of an operand is a pair of bf16 that belong to consecutive
 * channels (K, Q) or keys (V, P); the tile multiplies pairs and adds both products. Zeros pad the
 * channels of queries and keys to a multiple of 32, the channels of values to 16, and the number of
 * keys to 32.
 *
 * A query's result depends on its own row only. This file is compiled twice, once with TILE_TWIN,
 * for tiles in plain C. Both builds give the same bits, so the compiler must not be free to change
 * any arithmetic.
 */
#include "kernels/cpu/attention/amx.h"
#include "kernels/cpu/attention/tile.h"
#include "kernels/cpu/attention/tile_simd.h"
#include "kernels/cpu/scratch.h"

#include <omp.h>

#define WORDS 256 /* of a tile */
#define GROUP 16  /* queries: the columns of a tile */
#define CHUNK 32  /* keys: two tiles of scores, one tile of weights for each group */
#define CHUNKS 2  /* chunks per block of keys */
/* Limit for the packed heads in memory at a time. A single head may exceed it. */
#define PACK_BYTES ((size_t)8 << 20)

/* The sizes of one call. */
struct shape {
    int64_t tq, tk, d;
    int64_t steps;  /* steps of 32 channels in a score */
    int64_t slices; /* slices of 16 channels in the output */
    int64_t chunks;
    int64_t groups; /* per block of queries; an even number */
    float factor;   /* scale / ln 2 */
    size_t head_words, block_words;
};

/* What one thread holds for its block of queries. */
struct block {
    uint32_t *q;            /* [groups][steps][16 pairs of channels][16 queries] */
    float *scores;          /* [groups][CHUNKS][2][16 keys][16 queries] */
    uint32_t *weights;      /* [groups][CHUNKS][16 pairs of keys][16 queries] */
    float *o;               /* [slices][groups][16 channels][16 queries] */
    float *largest, *total; /* [groups][16 queries] */
    uint32_t *ragged; /* [slices][16 channels][16 pairs of keys]: a causal query's last chunk of
                         values, without those it must not see */
};

/* One head's q, k and v, each from its first token on. */
struct head {
    const uint16_t *q, *k, *v;
    int64_t q_step, k_step, v_step; /* elements from one token to the next */
    int64_t keys;                   /* of the row */
    uint16_t *y;
    int64_t y_step;
};

static struct head head_of(const struct attention_args *args, const struct shape *s, int64_t item) {
    const int64_t row = item / args->heads, channel = item % args->heads * s->d;
    struct head h = { .q_step = args->q->shape[2],
        .k_step = args->k->shape[2],
        .v_step = args->v->shape[2],
        .keys = attention_keys(args, row),
        .y_step = args->y->shape[2] };
    h.q = (const uint16_t *)args->q->data + row * s->tq * h.q_step + args->q_offset + channel;
    h.k = (const uint16_t *)args->k->data + row * s->tk * h.k_step + args->k_offset + channel;
    h.v = (const uint16_t *)args->v->data + row * s->tk * h.v_step + args->v_offset + channel;
    h.y = (uint16_t *)args->y->data + row * s->tq * h.y_step + channel;
    return h;
}

INLINE int64_t at_most(int64_t x, int64_t limit) {
    return x < limit ? x : limit;
}

/* out [2][steps][16 keys][16 pairs of channels] */
static void pack_keys(const struct shape *s, const struct head *h, int64_t chunk, uint32_t *out) {
    for (int64_t first = chunk * CHUNK; first < (chunk + 1) * CHUNK; first += 16)
        for (int64_t c = 0; c < s->d; c += 32)
            for (int64_t key = first; key < first + 16; key++, out += 16) {
                vu pairs = { 0 };
                if (key < h->keys)
                    pairs = load_pairs(h->k + key * h->k_step + c, at_most(s->d - c, 32));
                store_words(out, pairs);
            }
}

/* out [slices][16 channels][16 pairs of keys]. Keys from `end` on become zeros. */
static void pack_values(
    const struct shape *s, const struct head *h, int64_t chunk, int64_t end, uint32_t *out) {
    for (int64_t c = 0; c < s->d; c += 16, out += WORDS) {
        const uint16_t *v = h->v + c;
        const int64_t channels = at_most(s->d - c, 16);
        vu pairs[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            const int64_t key = chunk * CHUNK + 2 * i;
            vu even = { 0 }, odd = { 0 };
            if (key < end)
                even = load_halves(v + key * h->v_step, channels);
            if (key + 1 < end)
                odd = load_halves(v + (key + 1) * h->v_step, channels);
            pairs[i] = even | odd << 16;
        }
        transpose(pairs);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            store_words(out + 16 * i, pairs[i]);
    }
}

/* out [groups][steps][16 pairs of channels][16 queries]; zeros behind `end`. */
static void pack_queries(
    const struct shape *s, const struct head *h, int64_t first, int64_t end, uint32_t *out) {
    for (int64_t group = 0; group < s->groups; group++, first += GROUP)
        for (int64_t c = 0; c < s->d; c += 32, out += WORDS) {
            const int64_t channels = at_most(s->d - c, 32);
            vu pairs[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) {
                pairs[i] = (vu){ 0 };
                if (first + i < end)
                    pairs[i] = load_pairs(h->q + (first + i) * h->q_step + c, channels);
            }
            transpose(pairs);
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++)
                store_words(out + 16 * i, pairs[i]);
        }
}

/* Computes the scores of a chunk of keys for two groups of queries. */
INLINE void score_tiles(const uint32_t *k, const uint32_t *q, int64_t steps, float *scores) {
    const uint32_t *k1 = k + steps * WORDS, *q1 = q + steps * WORDS;
    float *scores1 = scores + CHUNKS * 2 * WORDS;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (int64_t i = 0; i < steps * WORDS; i += WORDS) {
        tile_load(4, k + i);
        tile_load(6, q + i);
        tile_multiply(0, 4, 6);
        tile_load(7, q1 + i);
        tile_multiply(1, 4, 7);
        tile_load(5, k1 + i);
        tile_multiply(2, 5, 6);
        tile_multiply(3, 5, 7);
    }
    tile_store(0, scores);
    tile_store(1, scores1);
    tile_store(2, scores + WORDS);
    tile_store(3, scores1 + WORDS);
}

INLINE void score_chunks(
    const struct shape *s, struct block *b, const uint32_t *k, int64_t chunks, int64_t steps) {
    for (int64_t g = 0; g < s->groups; g += 2)
        for (int64_t c = 0; c < chunks; c++)
            score_tiles(k + c * 2 * steps * WORDS, b->q + g * steps * WORDS, steps,
                b->scores + (g * CHUNKS + c) * 2 * WORDS);
}

/* o += V^T P^T for two groups of queries and, if `two`, two slices of channels. */
INLINE void output_tiles(const struct shape *s, const uint32_t *const v[CHUNKS],
    const uint32_t *weights, int64_t chunks, bool two, float *o) {
    float *o1 = o + s->groups * WORDS;
    tile_load(0, o);
    tile_load(1, o + WORDS);
    if (two) {
        tile_load(2, o1);
        tile_load(3, o1 + WORDS);
    }
    for (int64_t c = 0; c < chunks; c++) {
        tile_load(4, v[c]);
        tile_load(6, weights + c * WORDS);
        tile_multiply(0, 4, 6);
        tile_load(7, weights + (CHUNKS + c) * WORDS);
        tile_multiply(1, 4, 7);
        if (two) {
            tile_load(5, v[c] + WORDS);
            tile_multiply(2, 5, 6);
            tile_multiply(3, 5, 7);
        }
    }
    tile_store(0, o);
    tile_store(1, o + WORDS);
    if (two) {
        tile_store(2, o1);
        tile_store(3, o1 + WORDS);
    }
}

static void output_chunks(
    const struct shape *s, struct block *b, const uint32_t *const v[CHUNKS], int64_t chunks) {
    for (int64_t slice = 0; slice < s->slices; slice += 2) {
        const uint32_t *at[CHUNKS];
        for (int64_t c = 0; c < chunks; c++)
            at[c] = v[c] + slice * WORDS;
        for (int64_t g = 0; g < s->groups; g += 2) {
            float *o = b->o + (slice * s->groups + g) * WORDS;
            const uint32_t *weights = b->weights + g * CHUNKS * WORDS;
            if (slice + 1 < s->slices)
                output_tiles(s, at, weights, chunks, true, o);
            else
                output_tiles(s, at, weights, chunks, false, o);
        }
    }
}

/* Makes the running values relative to the new maxima. The cheap exponential is not used here,
 * because its error would grow with every block. */
static void rescale(const struct shape *s, struct block *b, int64_t g, vf largest) {
    const vf shrink = vf_exp2((load(b->largest + g * GROUP) - largest) * s->factor);
    store(b->largest + g * GROUP, largest);
    store(b->total + g * GROUP, load(b->total + g * GROUP) * shrink);
    for (int64_t slice = 0; slice < s->slices; slice++) {
        float *o = b->o + (slice * s->groups + g) * WORDS;
        for (int64_t i = 0; i < WORDS; i += 16)
            store(o + i, load(o + i) * shrink);
    }
}

/* Turns the scores of one group of queries and one block of keys into weights, and updates the
 * running values. Scores behind the `keys` that count are overwritten. */
static void soften(
    const struct shape *s, struct block *b, int64_t g, int64_t keys, int64_t chunks) {
    float *scores = b->scores + g * CHUNKS * 2 * WORDS;
    uint32_t *weights = b->weights + g * CHUNKS * WORDS;
    const vf before = load(b->largest + g * GROUP), factor = splat(s->factor * EXPONENT);
    for (int64_t j = keys; j < chunks * CHUNK; j++)
        store(scores + 16 * j, splat(-INFINITY));
    vf most[4] = { before, before, before, before };
    for (int64_t j = 0; j < chunks * CHUNK; j += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            most[i] = vf_max(load(scores + 16 * (j + i)), most[i]);
    const vf largest = vf_max(vf_max(most[0], most[1]), vf_max(most[2], most[3]));
    if (any_larger(largest, before))
        rescale(s, b, g, largest);
    vf sums[2] = { { 0 } };
    vi seen = { 0 };
    for (int64_t j = 0; j < chunks * CHUNK; j += 2) {
        vf pair[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            /* Subtract first, because the product of a large score and the factor could
             * overflow. */
            vf below = load(scores + 16 * (j + i)) - largest;
            pair[i] = cheap_exp2(fused(below, factor, splat(EXPONENT_ONE)), &seen);
            sums[i] += pair[i];
        }
        store_words(weights + 8 * j, pair_of(pair[0], pair[1]));
    }
    const vf total = load(b->total + g * GROUP) + (sums[0] + sums[1]);
    store(b->total + g * GROUP, choose(seen < 0, splat(NAN), total));
}

/* Processes keys [first, first + keys) for all queries of the block. */
static void visit(const struct shape *s, struct block *b, const uint32_t *k, const uint32_t *v,
    int64_t first, int64_t keys, bool ragged) {
    const int64_t chunks = (keys + CHUNK - 1) / CHUNK, chunk = first / CHUNK;
    k += chunk * 2 * s->steps * WORDS;
    if (s->steps == 2) /* head_dim 40 and 64 */
        score_chunks(s, b, k, chunks, 2);
    else if (s->steps == 3) /* 80 */
        score_chunks(s, b, k, chunks, 3);
    else
        score_chunks(s, b, k, chunks, s->steps);
    for (int64_t g = 0; g < s->groups; g++)
        soften(s, b, g, keys, chunks);
    const uint32_t *values[CHUNKS] = { NULL };
    for (int64_t c = 0; c < chunks; c++)
        values[c] = v + (chunk + c) * s->slices * WORDS;
    if (ragged)
        values[chunks - 1] = b->ragged;
    output_chunks(s, b, values, chunks);
}

/* Writes y of queries [first, end). */
static void finish(const struct shape *s, const struct block *b, const struct head *h,
    int64_t first, int64_t end) {
    for (int64_t g = 0; g < s->groups && first < end; g++, first += GROUP) {
        const vf inverse = 1.0f / load(b->total + g * GROUP);
        for (int64_t slice = 0; slice < s->slices; slice++) {
            const float *o = b->o + (slice * s->groups + g) * WORDS;
            const int64_t c = slice * 16, channels = at_most(s->d - c, 16);
            vu y[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++)
                y[i] = (vu)(load(o + 16 * i) * inverse);
            transpose(y);
            for (int64_t i = 0; i < at_most(end - first, GROUP); i++) {
                const int64_t at = (first + i) * h->y_step + c;
                if (channels == 16)
                    store_bf16(h->y + at, (vf)y[i]);
                else
                    store_some(h->y, DTYPE_BF16, at, channels, (vf)y[i]);
            }
        }
    }
}

/* Computes one block, queries [first, end) of one head, from the packed keys and values. */
static void attend(const struct attention_args *args, const struct shape *s, struct block *b,
    const struct head *h, const uint32_t *k, const uint32_t *v, int64_t first, int64_t end) {
    const int64_t keys = args->causal ? at_most(first + 1, h->keys) : h->keys;
    const bool is_ragged = keys < h->keys && keys % CHUNK != 0;
    pack_queries(s, h, first, end, b->q);
    if (is_ragged)
        pack_values(s, h, keys / CHUNK, keys, b->ragged);
    memset(b->o, 0, (size_t)(s->slices * s->groups * WORDS) * sizeof(float));
    for (int64_t i = 0; i < s->groups * GROUP; i++) {
        b->total[i] = 0;
        b->largest[i] = -3.402823466e38f; /* finite: -inf - -inf would be NaN */
    }
    const int64_t block = CHUNKS * CHUNK;
    for (int64_t at = 0; at < keys; at += block)
        visit(s, b, k, v, at, at_most(keys - at, block), is_ragged && keys - at <= block);
    finish(s, b, h, first, end);
}

/* Packs heads [first, first + count), counted over all rows, and computes their attention. Called
 * by every thread of the team; `packed` is shared, `b` is the thread's own. */
static void heads_of_team(const struct attention_args *args, const struct shape *s, struct block *b,
    uint32_t *packed, int64_t first, int64_t count) {
    const int64_t key_words = s->chunks * 2 * s->steps * WORDS;
#pragma omp for
    for (int64_t item = 0; item < count * s->chunks; item++) {
        const int64_t chunk = item % s->chunks;
        const struct head h = head_of(args, s, first + item / s->chunks);
        if (chunk * CHUNK >= h.keys)
            continue;
        uint32_t *k = packed + (size_t)(item / s->chunks) * s->head_words;
        pack_keys(s, &h, chunk, k + chunk * 2 * s->steps * WORDS);
        pack_values(s, &h, chunk, h.keys, k + key_words + chunk * s->slices * WORDS);
    }
    /* A causal query is a block of its own, so that keys it must not see are never touched: a
     * weight of zero would not cancel an infinity. Its tiles are nearly empty, but only the text
     * encoder's 77 tokens are causal. */
    const int64_t per_block = args->causal ? 1 : s->groups * GROUP;
    const int64_t blocks = (s->tq + per_block - 1) / per_block;
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < count * blocks; item++) {
        const struct head h = head_of(args, s, first + item / blocks);
        const uint32_t *k = packed + (size_t)(item / blocks) * s->head_words;
        const int64_t from = item % blocks * per_block;
        attend(args, s, b, &h, k, k + key_words, from, at_most(from + per_block, s->tq));
    }
}

static struct shape shape_of(const struct attention_args *args) {
    struct shape s = { .tq = args->y->shape[1], .tk = args->k->shape[1], .d = args->head_dim };
    s.steps = (s.d + 31) / 32;
    s.slices = (s.d + 15) / 16;
    s.chunks = (s.tk + CHUNK - 1) / CHUNK;
    /* A wide head gets more queries per block, so that its keys and values are read from memory
     * less often. */
    s.groups = args->causal ? 2 : s.d > 256 ? 8 : 2;
    s.factor = args->scale * 0x1.715476p0f;
    s.head_words = (size_t)(s.chunks * (2 * s.steps + s.slices) * WORDS);
    const int64_t group_tiles = s.steps + CHUNKS * 3 + s.slices;
    s.block_words = (size_t)(s.groups * (group_tiles * WORDS + 2 * GROUP) + s.slices * WORDS);
    return s;
}

static struct block block_at(const struct shape *s, float *memory) {
    struct block b = { .scores = memory };
    b.o = b.scores + s->groups * CHUNKS * 2 * WORDS;
    b.largest = b.o + s->groups * s->slices * WORDS;
    b.total = b.largest + s->groups * GROUP;
    b.q = (uint32_t *)(b.total + s->groups * GROUP);
    b.weights = b.q + s->groups * s->steps * WORDS;
    b.ragged = b.weights + s->groups * CHUNKS * WORDS;
    return b;
}

#if defined(TILE_TWIN)
bool attention_tiles_twin(const struct attention_args *args, struct error *err) {
#else
bool attention_tiles(const struct attention_args *args, struct error *err) {
#endif
    static const struct tile_config whole = {
        .palette = 1,
        .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
        .rows = { 16, 16, 16, 16, 16, 16, 16, 16 },
    };
    const struct shape s = shape_of(args);
    const int64_t heads = args->y->shape[0] * args->heads;
    int64_t at_once = (int64_t)(PACK_BYTES / (s.head_words * sizeof(uint32_t)));
    at_once = at_once < 1 ? 1 : at_most(at_once, heads);
    const size_t packed_words = (size_t)at_once * s.head_words;
    const size_t threads = (size_t)omp_get_max_threads();
    /* Both sizes are whole cache lines, so that no row of a tile crosses one. */
    uint32_t *memory = cpu_scratch(
        (packed_words + threads * s.block_words) * sizeof(uint32_t), err);
    if (!memory || cpu_plans())
        return memory != NULL;
#pragma omp parallel
    {
        uint32_t *own = memory + packed_words + (size_t)omp_get_thread_num() * s.block_words;
        struct block b = block_at(&s, (float *)own);
        tile_configure(&whole);
        for (int64_t first = 0; first < heads; first += at_once)
            heads_of_team(args, &s, &b, memory, first, at_most(heads - first, at_once));
        tile_release();
    }
    return true;
}
