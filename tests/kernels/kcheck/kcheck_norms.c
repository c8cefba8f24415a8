/* group_norm, layer_norm and attention. */
#include "tests/kernels/kcheck/kcheck.h"

#include "kernels/cpu/level.h"

#include <string.h>

struct norm_case {
    int64_t rows, h, w, c;
    int groups;
    bool silu;
    float offset; /* the inputs' mean */
    enum when when;
    int64_t more; /* of the c channels, those in a second tensor */
};

static void run_group_norm(
    struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    const struct norm_case *p = s->params;
    struct tensor x = subject_row(s, 0, row);
    op_group_norm(c, &(struct group_norm_args){
                         &x, &s->inputs[1].t, &s->inputs[2].t, p->groups, 1e-5f, p->silu, y });
}

/* Inputs: x, gamma, beta, more; output: joined. A table that cannot join concatenates first. */
static void run_group_norm_joined(
    struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    const struct norm_case *p = s->params;
    const bool joins = c->kernels->joins;
    struct tensor x = subject_row(s, 0, row), more = subject_row(s, 3, row);
    struct tensor joined = subject_row(s, 4, row);
    if (!joins)
        op_concat(c, &(struct concat_args){ &x, &more, &joined });
    op_group_norm(
        c, &(struct group_norm_args){ joins ? &x : &joined, &s->inputs[1].t, &s->inputs[2].t,
               p->groups, 1e-5f, p->silu, y, joins ? &more : NULL, joins ? &joined : NULL });
}

static void run_layer_norm(
    struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    struct tensor x = subject_row(s, 0, row);
    op_layer_norm(c, &(struct layer_norm_args){ &x, &s->inputs[1].t, &s->inputs[2].t, 1e-5f, y });
}

static void check_norm_case(struct kcheck *k, const struct norm_case *p, enum dtype dtype) {
    struct subject s;
    bool group = p->groups > 0;
    if (!subject_start(k, &s, group ? "group_norm" : "layer_norm",
            "%lldx%lldx%lldx%lld in %d%s mean %g more %lld %s", (long long)p->rows, (long long)p->h,
            (long long)p->w, (long long)p->c, p->groups, p->silu ? " silu" : "", (double)p->offset,
            (long long)p->more, dtype_name(dtype)))
        return;
    struct tensor x = tensor_4d(NULL, dtype, p->rows, p->h, p->w, p->c - p->more), more = x;
    more.shape[3] = p->more;
    s.y = tensor_4d(NULL, dtype, p->rows, p->h, p->w, p->c);
    subject_input(k, &s, x, 1, p->offset);
    subject_input(k, &s, tensor_1d(NULL, DTYPE_F32, p->c), 0.5f, 1);
    subject_input(k, &s, tensor_1d(NULL, DTYPE_F32, p->c), 1, 0);
    if (p->more) {
        subject_input(k, &s, more, 2, -p->offset);
        subject_output(k, &s, s.y, true, false, (struct tolerance){ 0, "a copy" });
    }
    s.in_place = p->more ? 0 : 1;
    s.run = p->more ? run_group_norm_joined : group ? run_group_norm : run_layer_norm;
    s.params = p;
    s.tolerance = tolerance_for(s.op, dtype, dtype);
    s.bytes = (double)tensor_bytes(&s.y) * (group ? 3 : 2);
    subject_check(k, &s);
}

static void check_norm_cases(struct kcheck *k, const struct norm_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!is_time_for(k, cases[i].when))
            continue;
        check_norm_case(k, &cases[i], DTYPE_F32);
        check_norm_case(k, &cases[i], DTYPE_BF16);
        if (has_weights(k, DTYPE_F16))
            check_norm_case(k, &cases[i], DTYPE_F16);
    }
}

void check_group_norm(struct kcheck *k) {
    static const struct norm_case cases[] = {
        { 3, 1, 1, 1, 1, false, 0, QUICK },
        { 3, 5, 7, 6, 3, true, 0, QUICK },
        { 3, 3, 3, 17, 17, false, 0, QUICK },
        { 3, 4, 5, 33, 11, true, 0, QUICK },
        { 2, 3, 3, 1030, 1, true, 0, QUICK }, /* a line has more words than a block has threads */
        { 3, 8, 8, 64, 32, true, 100, QUICK },
        { 3, 11, 13, 96, 4, true, -3, QUICK },
        /* Two source tensors that share one word, or one group; also wide words. */
        { 3, 5, 7, 6, 3, true, 0, QUICK, 1 },
        { 3, 3, 3, 17, 17, false, 0, QUICK, 9 },
        { 2, 8, 8, 192, 32, true, 0, QUICK, 64 },
        { 2, 16, 22, 96, 4, true, 3, QUICK, 32 },  /* uses a cluster if the device has them */
        { 2, 38, 64, 96, 1, false, 0, QUICK, 32 }, /* too large for one cluster */
        { 2, 64, 66, 20, 2, true, 0.5f, QUICK }, /* whole turns of loads, then a turn without any */
        { 3, 9, 8, 1920, 32, true, 0, CHANNELS, 640 },
        { 2, 40, 32, 960, 32, true, 0.5f, SLOW, 320 },
        { 3, 64, 64, 320, 32, true, 0.5f, SLOW },
        { 2, 16, 16, 1280, 32, true, 0, SLOW },
        { 2, 16, 16, 2560, 32, true, 0, SLOW },
        { 2, 32, 32, 960, 32, false, 1000, SLOW },
        { 1, 128, 128, 128, 32, true, 0, SLOW },
        { 2, 64, 64, 320, 32, true, 0, BENCH },
        { 2, 32, 32, 640, 32, true, 0, BENCH },
        { 2, 16, 16, 1280, 32, true, 0, BENCH },
        { 1, 512, 512, 128, 32, true, 0, BENCH },
    };
    check_norm_cases(k, cases, sizeof(cases) / sizeof(cases[0]));
}

void check_layer_norm(struct kcheck *k) {
    static const struct norm_case cases[] = {
        { 3, 1, 1, 1, 0, false, 0, QUICK },
        { 3, 1, 5, 7, 0, false, 0, QUICK },
        { 3, 1, 5, 17, 0, false, 0, QUICK },
        { 3, 1, 7, 320, 0, false, 100, QUICK },
        { 3, 1, 77, 768, 0, false, 0, SLOW },
        { 2, 1, 4096, 320, 0, false, 0, SLOW },
        { 2, 1, 256, 1280, 0, false, 0, SLOW },
        { 2, 1, 4096, 320, 0, false, 0, BENCH },
        { 2, 1, 1024, 640, 0, false, 0, BENCH },
        { 2, 1, 256, 1280, 0, false, 0, BENCH },
    };
    check_norm_cases(k, cases, sizeof(cases) / sizeof(cases[0]));
}

struct attention_case {
    int64_t rows, tq, tk;
    int heads, d;
    bool causal, fused; /* fused: q, k, v are parts of one projection */
    float size;         /* of q and k: larger makes sharper weights */
    enum when when;
    bool eights;    /* offsets and strides are multiples of 8 channels, as in real models */
    int lengths[3]; /* keys of each row, or 0: all; NaN lies behind them */
};

/* Returns a row's own number of keys. */
static int64_t keys_of(const struct attention_case *p, int64_t row) {
    return p->lengths[0] ? p->lengths[row] : p->tk;
}

static void run_attention(
    struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    const struct attention_case *p = s->params;
    struct tensor q = subject_row(s, 0, row), k, v;
    k = p->fused ? q : subject_row(s, 1, row);
    v = p->fused ? q : subject_row(s, 2, row);
    /* A row alone gets exactly its own keys, and no length. */
    const struct tensor lengths = subject_row(s, p->fused ? 1 : 3, -1);
    if (row >= 0)
        k.shape[1] = v.shape[1] = keys_of(p, row);
    int64_t width = (int64_t)p->heads * p->d;
    float scale = p->d == 40 ? 0.158113883f : p->d > 100 ? 0.0625f : 0.125f;
    int64_t unit = p->eights ? 8 : 1;
    op_attention(c, &(struct attention_args){ &q, &k, &v, p->fused ? 0 : unit, p->fused ? width : 0,
                        p->fused ? 2 * width : 3 * unit, p->heads, p->d, scale, p->causal, y,
                        p->lengths[0] && row < 0 ? &lengths : NULL });
}

/* Adds the lengths, and NaN behind them in keys and values. */
static void add_lengths(struct subject *s, const struct attention_case *p) {
    struct buffer *lengths = &s->inputs[s->input_count++];
    *lengths = buffer_create(tensor_1d(NULL, DTYPE_I32, p->rows), 0);
    for (int64_t row = 0; row < p->rows; row++) {
        ((int32_t *)lengths->t.data)[row] = (int32_t)keys_of(p, row);
        for (int i = 1; i <= 2; i++) {
            const struct tensor t = subject_row(s, i, row);
            const size_t key_bytes = tensor_bytes(&t) / (size_t)p->tk;
            memset((char *)t.data + (size_t)keys_of(p, row) * key_bytes, 0xff,
                (size_t)(p->tk - keys_of(p, row)) * key_bytes);
        }
    }
}

/* If the second product has bf16 or f16 operands (tensor cores, tiles, pairs), the softmax's
 * weights are rounded to that type. Each weight then has a random error of up to half a unit in the
 * last place. Because values have either sign, their weighted sum has a relative error of the same
 * size. scripts/parity compares whole models with diffusers' own bf16 error. */
static struct tolerance attention_tolerance(const struct kernels *table, enum dtype dtype) {
    static const struct tolerance bf16 = { 4e-3, "weights rounded to bf16 (2^-9), then y" };
    static const struct tolerance f16 = { 5e-4, "weights rounded to f16 (2^-12), then y" };
    const bool rounded = table->device == DEVICE_CUDA ||
                         (table->device == DEVICE_CPU && cpu_level()->attention);
    if (rounded && dtype != DTYPE_F32)
        return dtype == DTYPE_BF16 ? bf16 : f16;
    return tolerance_for("attention", dtype, dtype);
}

static void check_attention_case(
    struct kcheck *k, const struct attention_case *p, enum dtype dtype) {
    struct subject s;
    if (!subject_start(k, &s, "attention", "%lldx%lld to %lld %d heads of %d%s%s%s size %g %s",
            (long long)p->rows, (long long)p->tq, (long long)p->tk, p->heads, p->d,
            p->causal ? " causal" : "",
            p->fused    ? " fused"
            : p->eights ? " eights"
                        : "",
            p->lengths[0] ? " lengths" : "", (double)p->size, dtype_name(dtype)))
        return;
    int64_t width = (int64_t)p->heads * p->d;
    if (p->fused) {
        subject_input(k, &s, tensor_3d(NULL, dtype, p->rows, p->tq, 3 * width), p->size, 0);
    } else {
        /* The tensors are wider than needed, and the heads start at an offset. */
        int64_t unit = p->eights ? 8 : 1;
        subject_input(k, &s, tensor_3d(NULL, dtype, p->rows, p->tq, width + unit), p->size, 0);
        subject_input(k, &s, tensor_3d(NULL, dtype, p->rows, p->tk, width + 2 * unit), p->size, 0);
        subject_input(k, &s, tensor_3d(NULL, dtype, p->rows, p->tk, width + 5 * unit), 1, 0);
    }
    if (p->lengths[0])
        add_lengths(&s, p);
    s.y = tensor_3d(NULL, dtype, p->rows, p->tq, width);
    s.run = run_attention;
    s.params = p;
    s.tolerance = attention_tolerance(k->table, dtype);
    s.flops = 4.0 * (double)(p->rows * p->tq * p->tk) * (double)width;
    subject_check(k, &s);
}

void check_attention(struct kcheck *k) {
    static const struct attention_case cases[] = {
        { 3, 1, 1, 1, 1, false, false, 1, QUICK },
        { 3, 5, 3, 2, 7, false, false, 1, QUICK },
        { 3, 7, 7, 3, 8, true, true, 2, QUICK },
        { 3, 47, 127, 2, 40, false, false, 1, QUICK },
        { 3, 48, 128, 2, 40, false, false, 4, QUICK },
        { 3, 49, 129, 1, 40, false, false, 20, QUICK },
        { 3, 97, 97, 2, 24, false, true, 1, QUICK },
        { 3, 7, 257, 1, 40, false, false, 4, QUICK }, /* more than one block of keys */
        { 3, 50, 601, 2, 12, false, false, 9, QUICK },
        { 3, 300, 300, 1, 8, true, true, 9, QUICK },
        { 3, 77, 77, 2, 64, true, true, 1, QUICK },
        { 3, 33, 131, 1, 17, false, false, 3, QUICK },
        { 3, 131, 33, 1, 33, true, false, 3, QUICK },
        { 3, 16, 77, 2, 160, false, false, 1, QUICK },
        { 2, 50, 77, 2, 40, false, false, 1, QUICK, true }, /* all keys in one block */
        { 2, 130, 70, 1, 40, false, false, 9, QUICK, true },
        { 2, 33, 150, 2, 40, false, false, 1, QUICK,
            true }, /* flat weights: one key too many would show */
        { 2, 20, 70, 1, 40, false, false, 1e15f, QUICK, true }, /* scores of 1e30 */
        { 3, 20, 231, 2, 40, false, false, 2, QUICK, true, { 77, 231, 154 } },
        { 3, 9, 70, 1, 12, false, false, 1, QUICK, false, { 1, 33, 32 } },
        { 3, 33, 200, 2, 24, false, false, 3, QUICK, true, { 80, 81, 7 } },
        { 3, 70, 70, 2, 16, true, false, 2, QUICK, false, { 70, 5, 64 } },
        { 3, 130, 308, 1, 40, false, false, 9, QUICK, false, { 256, 257, 255 } },
        { 2, 17, 77, 2, 64, false, false, 2, CHANNELS, true },
        { 3, 17, 154, 2, 64, false, false, 2, CHANNELS, true, { 77, 154, 79 } },
        { 2, 20, 154, 1, 80, false, false, 1, CHANNELS, true, { 77, 154 } },
        { 2, 19, 154, 1, 160, false, false, 2, CHANNELS, true, { 77, 154 } },
        { 2, 20, 77, 1, 80, false, false, 1, CHANNELS, true },
        { 2, 19, 80, 1, 160, false, false, 2, CHANNELS, true },
        { 2, 70, 70, 2, 40, false, true, 1, CHANNELS },
        { 2, 70, 131, 2, 64, false, false, 1, CHANNELS, true },
        { 2, 70, 70, 2, 80, false, true, 1, CHANNELS },
        { 2, 67, 67, 2, 160, false, true, 1, CHANNELS },
        { 2, 40, 70, 1, 512, false, false, 1, CHANNELS, true },
        { 2, 33, 33, 2, 48, false, true, 3, CHANNELS },
        { 1, 40, 40, 1, 264, false, true, 1, CHANNELS },
        { 1, 5, 5, 1, 600, false, true, 1, CHANNELS },
        { 2, 77, 77, 12, 64, true, true, 1, SLOW },
        { 2, 1024, 1024, 1, 40, false, true, 3, SLOW },
        { 2, 4096, 77, 2, 40, false, false, 1, SLOW },
        { 2, 256, 256, 2, 160, false, true, 1, SLOW },
        { 2, 512, 512, 2, 80, false, true, 1, SLOW },
        { 1, 4096, 4096, 1, 40, false, true, 2, SLOW },
        { 1, 1024, 1024, 1, 512, false, true, 1, SLOW },
        { 2, 4096, 4096, 8, 40, false, true, 1, BENCH },
        { 2, 1024, 1024, 8, 80, false, true, 1, BENCH },
        { 2, 256, 256, 8, 160, false, true, 1, BENCH },
        { 2, 64, 64, 8, 160, false, true, 1, BENCH },
        { 2, 4096, 77, 8, 40, false, false, 1, BENCH },
        { 2, 1024, 77, 8, 80, false, false, 1, BENCH },
        { 2, 256, 77, 8, 160, false, false, 1, BENCH },
        { 1, 4096, 4096, 1, 512, false, true, 1, BENCH },
        { 2, 77, 77, 12, 64, true, true, 1, BENCH },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (!is_time_for(k, cases[i].when))
            continue;
        check_attention_case(k, &cases[i], DTYPE_F32);
        check_attention_case(k, &cases[i], DTYPE_BF16);
        if (has_weights(k, DTYPE_F16))
            check_attention_case(k, &cases[i], DTYPE_F16);
    }
}
