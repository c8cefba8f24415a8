/* The gradient of attention.c's y = softmax(scale q k^T) v:
 *
 *   p = softmax(scale q k^T);  D = sum over d of dy y;  ds = p (dy v^T - D);
 *   dv = p^T dy;  dq = scale ds k;  dk = scale ds^T q.
 *
 * A block of BLOCK_Q queries computes its scores against all keys once and keeps them as weights e
 * = 2^(s - max s). These weights are not divided by the query's sum of weights, as p is; the
 * query's dy is divided by that sum instead. Then it walks over blocks of BLOCK_K keys. Each block
 * of keys needs four products: dy v^T, and the block's terms of dq, dk and dv. The weights are the
 * only array that has an element for each query of the block and each of all keys.
 *
 * dk and dv are sums over queries. The blocks of a head are divided into groups, at most
 * GROUPS_MAX; their number depends on the head's size only. Each group has its own sums, which are
 * added in order at the end, so the bits are the same with any number of threads. PACK_BYTES limits
 * how many packed heads, with their sums, are in memory at a time.
 */
#include "kernels/cpu/attention/attention_blocks.h"
#include "kernels/cpu/scratch.h"

#include <omp.h>

#define GROUP_BLOCKS 8 /* minimum blocks per group, unless the head has fewer */
#define GROUPS_MAX 8
#define PACK_BYTES ((size_t)64 << 20) /* a single head may exceed it */

/* The sizes of one call. */
struct shape {
    int64_t tq, tk, d;
    int64_t d_padded;              /* d rounded up to whole vectors */
    int64_t panels, keys_padded;   /* of keys */
    int64_t groups, group_queries; /* the last group may have fewer */
    bool to_keys;                  /* dk and dv are wanted */
    size_t packed_floats;          /* per head: k and v in panels, k in rows */
    size_t sums_floats;            /* per group: dk, then dv */
    size_t head_floats, block_floats;
};

/* One head: its packed keys and values. */
struct head {
    int64_t row, number, keys;
    const float *k, *v;  /* [panel][d][PANEL] */
    const float *k_rows; /* [key][d_padded] */
};

/* What one thread holds for its block of queries. */
struct block {
    float *q, *dy;           /* [BLOCK_Q / TILE_Q][d][TILE_Q] */
    float *q_rows, *dy_rows; /* [BLOCK_Q][d_padded] */
    float *dq;               /* the same */
    float *ds;               /* [BLOCK_Q][BLOCK_K] */
    float *weights;          /* [BLOCK_Q][keys_padded] */
};

static struct shape shape_of(const struct attention_backward_args *args) {
    struct shape s = { .tq = args->q->shape[1],
        .tk = args->k->shape[1],
        .d = args->head_dim,
        .to_keys = args->dk != NULL };
    s.d_padded = (s.d + LANES - 1) / LANES * LANES;
    s.panels = (s.tk + PANEL - 1) / PANEL;
    s.keys_padded = s.panels * PANEL;
    const int64_t blocks = (s.tq + BLOCK_Q - 1) / BLOCK_Q;
    s.groups = blocks / GROUP_BLOCKS < 1            ? 1
               : blocks / GROUP_BLOCKS > GROUPS_MAX ? GROUPS_MAX
                                                    : blocks / GROUP_BLOCKS;
    s.group_queries = (blocks + s.groups - 1) / s.groups * BLOCK_Q;
    s.packed_floats = (size_t)(s.keys_padded * (2 * s.d + s.d_padded));
    s.sums_floats = s.to_keys ? (size_t)(2 * s.tk * s.d_padded) : 0;
    s.head_floats = s.packed_floats + (size_t)s.groups * s.sums_floats;
    s.head_floats = (s.head_floats + 15) / 16 * 16;
    s.block_floats = (size_t)(BLOCK_Q * (2 * s.d + 3 * s.d_padded + BLOCK_K + s.keys_padded));
    s.block_floats = (s.block_floats + 15) / 16 * 16;
    return s;
}

static int64_t row_keys(const struct attention_backward_args *args, int64_t row) {
    return args->lengths ? ((const int32_t *)args->lengths->data)[row] : args->k->shape[1];
}

/* Packs one panel of keys and values: k and v as panels, k also as rows. */
static void pack_panel(const struct attention_backward_args *args, const struct shape *s,
    int64_t row, int64_t head, int64_t panel, float *packed) {
    const enum dtype dtype = args->q->dtype;
    const int64_t keys = row_keys(args, row);
    const int64_t k_step = args->k->shape[2], v_step = args->v->shape[2];
    const int64_t k_at = row * s->tk * k_step + args->k_offset + head * s->d;
    const int64_t v_at = row * s->tk * v_step + args->v_offset + head * s->d;
    float *v = packed + s->keys_padded * s->d, *k_rows = v + s->keys_padded * s->d;
    if (panel * PANEL >= keys)
        return;
    pack_keys(s->d, args->k->data, dtype, k_at, k_step, panel, keys, packed + panel * PANEL * s->d);
    pack_keys(s->d, args->v->data, dtype, v_at, v_step, panel, keys, v + panel * PANEL * s->d);
    pack_values(s->d, s->d_padded, args->k->data, dtype, k_at, k_step, panel, keys,
        k_rows + panel * PANEL * s->d_padded);
}

/* out[0..count)[0..d_padded) = rows of t, with zeros behind d. */
static void take_rows(
    const struct shape *s, const struct tensor *t, int64_t at, int64_t count, float *out) {
    const size_t size = dtype_size(t->dtype);
    for (int64_t i = 0; i < count; i++, out += s->d_padded) {
        convert_elements(out, DTYPE_F32,
            (const char *)t->data + (size_t)(at + i * t->shape[2]) * size, t->dtype, s->d);
        memset(out + s->d, 0, (size_t)(s->d_padded - s->d) * sizeof(float));
    }
}

/* out[tile][d][TILE_Q] = `rows`, in the layout of pack_queries. */
static void pack_rows(const struct shape *s, const float *rows, int64_t count, float *out) {
    for (int64_t i = 0; i < (count + TILE_Q - 1) / TILE_Q * TILE_Q; i++) {
        float *to = out + i / TILE_Q * s->d * TILE_Q + i % TILE_Q;
        for (int64_t j = 0; j < s->d; j++)
            to[j * TILE_Q] = i < count ? rows[i * s->d_padded + j] : 0.0f;
    }
}

/* to[BLOCK_Q][stride] = rows . panels, for `keys` keys. */
static void score_block(const struct shape *s, const float *rows, const float *panels, int64_t keys,
    int64_t count, float *to, int64_t stride) {
    for (int64_t j = 0; j < keys; j += PANEL)
        for (int64_t tile = 0; tile < (count + TILE_Q - 1) / TILE_Q; tile++)
            score_tile(rows + tile * s->d * TILE_Q, panels + j * s->d, s->d,
                to + tile * TILE_Q * stride + j, stride);
}

/* Turns the scores of one query into weights, in place, and returns their sum. Only the first
 * `seen` of the `keys` scores count; the others become weight 0. */
static float soften(float *scores, int64_t seen, int64_t keys) {
    const int64_t vectors = (keys + LANES - 1) / LANES;
    for (int64_t j = seen; j < vectors * LANES; j++)
        scores[j] = -INFINITY;
    vf most = load(scores), sum = { 0 };
    for (int64_t j = 1; j < vectors; j++)
        most = vf_max(load(scores + j * LANES), most);
    /* Finite, because -inf - -inf would be NaN. */
    const float largest = fmaxf(max_of(most), -3.402823466e38f);
    for (int64_t j = 0; j < vectors; j++) {
        vf weight = vf_exp2(load(scores + j * LANES) - largest);
        store(scores + j * LANES, weight);
        sum += weight;
    }
    return sum_of(sum);
}

/* Prepares queries [first, first + count): computes their weights for all keys, divides dy by the
 * sum of its query's weights, and clears dq. */
static void begin_block(const struct attention_backward_args *args, const struct shape *s,
    struct block *b, const struct head *h, int64_t first, int64_t count, int64_t seen) {
    const int64_t q_step = args->q->shape[2], dy_step = args->dy->shape[2];
    const int64_t q_at = (h->row * s->tq + first) * q_step + args->q_offset + h->number * s->d;
    const int64_t dy_at = (h->row * s->tq + first) * dy_step + h->number * s->d;
    pack_queries(s->d, args->q->data, args->q->dtype, q_at, q_step, count,
        args->scale * 0x1.715476p0f, b->q);
    take_rows(s, args->q, q_at, count, b->q_rows);
    take_rows(s, args->dy, dy_at, count, b->dy_rows);
    score_block(s, b->q, h->k, seen, count, b->weights, s->keys_padded);
    for (int64_t i = 0; i < count; i++) {
        int64_t own = args->causal && first + i + 1 < seen ? first + i + 1 : seen;
        float inverse = 1.0f / soften(b->weights + i * s->keys_padded, own, seen);
        for (int64_t c = 0; c < s->d; c++)
            b->dy_rows[i * s->d_padded + c] *= inverse;
    }
    pack_rows(s, b->dy_rows, count, b->dy);
    memset(b->dq, 0, (size_t)(count * s->d_padded) * sizeof(float));
}

/* rest[i] = D of query i, divided by the sum of its weights. */
static void find_rest(const struct attention_backward_args *args, const struct shape *s,
    const struct block *b, const struct head *h, int64_t first, int64_t count, float *rest) {
    const int64_t at = (h->row * s->tq + first) * args->y->shape[2] + h->number * s->d;
    for (int64_t i = 0; i < count; i++) {
        float sum = 0;
        for (int64_t c = 0; c < s->d; c++)
            sum += b->dy_rows[i * s->d_padded + c] *
                   element(args->y->data, args->y->dtype, at + i * args->y->shape[2] + c);
        rest[i] = sum;
    }
}

/* o[0..rows)[d_padded] += w v, in tiles of TILE_O rows. */
static void add_product(const struct shape *s, struct weights w, const float *v, int64_t inner,
    int64_t rows, float *o) {
    int64_t i = 0;
    for (; i + TILE_O <= rows; i += TILE_O)
        output_rows((struct weights){ w.p + i * w.by_row, w.by_row, w.by_key }, v, s->d_padded,
            inner, TILE_O, o + i * s->d_padded);
    for (; i < rows; i++)
        output_rows((struct weights){ w.p + i * w.by_row, w.by_row, w.by_key }, v, s->d_padded,
            inner, 1, o + i * s->d_padded);
}

/* Adds what keys [at, at + keys) contribute to dq of `count` queries and, unless `sums` is NULL, to
 * the group's sums of dk and dv. */
static void visit(const struct shape *s, struct block *b, const struct head *h, int64_t at,
    int64_t keys, int64_t count, const float *rest, float *sums) {
    const int64_t stride = s->keys_padded;
    const float *weights = b->weights + at;
    score_block(s, b->dy, h->v + at * s->d, keys, count, b->ds, BLOCK_K);
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < keys; j += LANES)
            store(b->ds + i * BLOCK_K + j,
                load(weights + i * stride + j) * (load(b->ds + i * BLOCK_K + j) - rest[i]));
    add_product(
        s, (struct weights){ b->ds, BLOCK_K, 1 }, h->k_rows + at * s->d_padded, keys, count, b->dq);
    if (!sums)
        return;
    float *dk = sums + at * s->d_padded, *dv = dk + s->tk * s->d_padded;
    add_product(s, (struct weights){ b->ds, 1, BLOCK_K }, b->q_rows, count, keys, dk);
    add_product(s, (struct weights){ weights, 1, stride }, b->dy_rows, count, keys, dv);
}

/* to[0..d) (+)= from * factor */
static void put_row(const struct shape *s, struct tensor *to, int64_t at, const float *from,
    float factor, bool accumulate) {
    const enum dtype dtype = to->dtype;
    for (int64_t c = 0; c < s->d; c += LANES)
        store_up_to(to->data, dtype, at + c, s->d - c, accumulate, load(from + c) * factor);
}

/* Processes one group of a head's queries. */
static void run_group(const struct attention_backward_args *args, const struct shape *s,
    struct block *b, const struct head *h, int64_t group, float *sums) {
    const int64_t begin = group * s->group_queries, dq_step = args->dq->shape[2];
    const int64_t end = begin + s->group_queries < s->tq ? begin + s->group_queries : s->tq;
    if (sums)
        memset(sums, 0, s->sums_floats * sizeof(float));
    for (int64_t first = begin; first < end; first += BLOCK_Q) {
        const int64_t count = end - first < BLOCK_Q ? end - first : BLOCK_Q;
        const int64_t seen = args->causal && first + count < h->keys ? first + count : h->keys;
        float rest[BLOCK_Q];
        begin_block(args, s, b, h, first, count, seen);
        find_rest(args, s, b, h, first, count, rest);
        for (int64_t at = 0; at < seen; at += BLOCK_K)
            visit(s, b, h, at, seen - at < BLOCK_K ? seen - at : BLOCK_K, count, rest, sums);
        for (int64_t i = 0; i < count; i++)
            put_row(s, args->dq,
                (h->row * s->tq + first + i) * dq_step + args->q_offset + h->number * s->d,
                b->dq + i * s->d_padded, args->scale, args->accumulate);
    }
}

/* Writes dk and dv of one key: the groups' sums, added in order. Keys beyond the row's length get
 * zeros. */
static void put_key(const struct attention_backward_args *args, const struct shape *s,
    const struct head *h, int64_t key, float *sums) {
    struct tensor *const to[] = { args->dk, args->dv };
    const int64_t offsets[] = { args->k_offset, args->v_offset };
    for (int i = 0; i < 2; i++) {
        float *sum = sums + (i * s->tk + key) * s->d_padded;
        for (int64_t c = 0; c < s->d_padded; c += LANES) {
            vf all = { 0 };
            for (int64_t g = 0; key < h->keys && g < s->groups; g++)
                all += load(sum + g * (int64_t)s->sums_floats + c);
            store(sum + c, all);
        }
        if (key < h->keys || !args->accumulate)
            put_row(s, to[i],
                (h->row * s->tk + key) * to[i]->shape[2] + offsets[i] + h->number * s->d, sum,
                i ? 1.0f : args->scale, args->accumulate);
    }
}

static struct head head_of(const struct attention_backward_args *args, const struct shape *s,
    const float *packed, int64_t which) {
    struct head h = { .row = which / args->heads, .number = which % args->heads, .k = packed };
    h.keys = row_keys(args, h.row);
    h.v = h.k + s->keys_padded * s->d;
    h.k_rows = h.v + s->keys_padded * s->d;
    return h;
}

/* Computes heads [first, first + count), counted over all rows. Called by every thread of the
 * team. */
static void heads_of_team(const struct attention_backward_args *args, const struct shape *s,
    struct block *b, float *memory, int64_t first, int64_t count) {
#pragma omp for
    for (int64_t item = 0; item < count * s->panels; item++) {
        int64_t which = first + item / s->panels;
        pack_panel(args, s, which / args->heads, which % args->heads, item % s->panels,
            memory + (size_t)(item / s->panels) * s->head_floats);
    }
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < count * s->groups; item++) {
        float *own = memory + (size_t)(item / s->groups) * s->head_floats;
        const struct head h = head_of(args, s, own, first + item / s->groups);
        float *sums = own + s->packed_floats + (size_t)(item % s->groups) * s->sums_floats;
        run_group(args, s, b, &h, item % s->groups, s->to_keys ? sums : NULL);
    }
#pragma omp for
    for (int64_t item = 0; item < (s->to_keys ? count * s->tk : 0); item++) {
        float *own = memory + (size_t)(item / s->tk) * s->head_floats;
        const struct head h = head_of(args, s, own, first + item / s->tk);
        put_key(args, s, &h, item % s->tk, own + s->packed_floats);
    }
}

bool NAME(attention_backward)(const struct attention_backward_args *args, struct error *err) {
    const struct shape s = shape_of(args);
    const int64_t heads = args->q->shape[0] * args->heads;
    int64_t at_once = (int64_t)(PACK_BYTES / (s.head_floats * sizeof(float)));
    at_once = at_once < 1 ? 1 : at_once > heads ? heads : at_once;
    const size_t shared_floats = (size_t)at_once * s.head_floats;
    const size_t threads = (size_t)omp_get_max_threads();
    float *memory = cpu_scratch((shared_floats + threads * s.block_floats) * sizeof(float), err);
    if (!memory || cpu_plans())
        return memory != NULL;
#pragma omp parallel
    {
        struct block b = { .q = memory + shared_floats +
                                (size_t)omp_get_thread_num() * s.block_floats };
        b.dy = b.q + BLOCK_Q * s.d;
        b.q_rows = b.dy + BLOCK_Q * s.d;
        b.dy_rows = b.q_rows + BLOCK_Q * s.d_padded;
        b.dq = b.dy_rows + BLOCK_Q * s.d_padded;
        b.ds = b.dq + BLOCK_Q * s.d_padded;
        b.weights = b.ds + BLOCK_Q * BLOCK_K;
        for (int64_t first = 0; first < heads; first += at_once)
            heads_of_team(
                args, &s, &b, memory, first, heads - first < at_once ? heads - first : at_once);
    }
    return true;
}
