/* Attention on tiles (kernels/cpu/attention/attention_tiles.c), run on the tiles' twin and
 * compared with the reference at the shapes of Stable Diffusion 1.5 and at odd shapes. Every key
 * counts with its exact weight; a row's bits do not depend on the other rows or on the number of
 * threads; NaN and infinities appear where the reference has them. Then the twin with AVX-512
 * vectors and the real tiles, if the processor has them, must give the same bits. --quick runs
 * small shapes only. */
#include "kernels/compute/compute.h"
#include "kernels/cpu/attention/amx.h"
#include "kernels/cpu/attention/tile_simd.h"
#include "tests/check.h"
#include "tests/kernels/narrow.h"
#include "tests/kernels/random_tensor.h"

#include <omp.h>
#include <stdlib.h>

/* The weights are rounded to bf16 as operands of the second product, and y is rounded to bf16 at
 * the end. Each rounding is off by up to 2^-8, or 1.6e-3 in the mean square. The weights'
 * exponential is off by 7e-4. */
#define BOUND 4e-3

struct attention_case {
    int64_t rows, tq, tk;
    int heads, d;
    bool causal, fused; /* fused: q, k, v are parts of one projection */
    float size;         /* of q and k: larger makes sharper weights */
};

typedef bool attention(const struct attention_args *args, struct error *err);

#if defined(__x86_64__)
bool attention_tiles_wide(const struct attention_args *args, struct error *err);
#endif

/* The implementations that must give the twin's bits, if this machine runs them. */
static attention *same[2];
static const char *same_names[2];
static int same_count;

static double value(const struct tensor *t, int64_t i) {
    return (double)bf16_to_f32(((const uint16_t *)t->data)[i]);
}

/* The tensors of one case: q, k, v (with fused, all in q) and outputs. */
struct example {
    struct attention_case c;
    struct tensor q, k, v, want, got, other;
};

static struct example example_of(struct attention_case c) {
    struct example e = { .c = c };
    const int64_t width = (int64_t)c.heads * c.d;
    if (c.fused) {
        e.q = random_tensor(tensor_3d(NULL, DTYPE_BF16, c.rows, c.tq, 3 * width), c.size);
    } else {
        e.q = random_tensor(tensor_3d(NULL, DTYPE_BF16, c.rows, c.tq, width + 1), c.size);
        e.k = random_tensor(tensor_3d(NULL, DTYPE_BF16, c.rows, c.tk, width + 3), c.size);
        e.v = random_tensor(tensor_3d(NULL, DTYPE_BF16, c.rows, c.tk, width + 5), 1);
    }
    const struct tensor y = tensor_3d(NULL, DTYPE_BF16, c.rows, c.tq, width);
    e.want = random_tensor(y, 0);
    e.got = random_tensor(y, 0);
    e.other = random_tensor(y, 0);
    return e;
}

static void example_finish(struct example *e) {
    struct tensor *all[] = { &e->q, &e->k, &e->v, &e->want, &e->got, &e->other };
    for (int i = 0; i < 6; i++)
        free(all[i]->data);
}

/* Runs rows [first, first + count) into y, which is filled with NaN before. */
static void run(attention *entry, const struct example *e, int64_t first, int64_t count,
    const struct tensor *y) {
    const struct attention_case *c = &e->c;
    const int64_t width = (int64_t)c->heads * c->d;
    struct tensor q = tensor_rows(&e->q, first, count), k = q, v = q;
    struct tensor to = tensor_rows(y, first, count);
    if (!c->fused) {
        k = tensor_rows(&e->k, first, count);
        v = tensor_rows(&e->v, first, count);
    }
    const struct attention_args args = { &q, &k, &v, c->fused ? 0 : 1, c->fused ? width : 0,
        c->fused ? 2 * width : 3, c->heads, c->d, 1 / sqrtf((float)c->d), c->causal, &to };
    struct error err = { 0 };
    memset(to.data, 0xff, tensor_bytes(&to));
    CHECK(attention_tiles_takes(&args), "not taken");
    CHECK(entry(&args, &err), "%s", err.message);
}

static bool same_bits(const struct tensor *a, const struct tensor *b) {
    return memcmp(a->data, b->data, tensor_bytes(a)) == 0;
}

static int class_of(double x) {
    return isnan(x) ? 1 : isinf(x) ? (x > 0 ? 2 : 3) : 0;
}

/* Counts the elements that differ in being finite, NaN, +infinity or -infinity. */
static int64_t other_classes(const struct tensor *a, const struct tensor *b) {
    int64_t count = 0;
    for (int64_t i = 0; i < tensor_elements(a); i++)
        count += class_of(value(a, i)) != class_of(value(b, i));
    return count;
}

/* Whether the bits are the same, except in the payload of NaN: instructions copy it from either
 * operand. */
static bool same_numbers(const struct tensor *a, const struct tensor *b) {
    for (int64_t i = 0; i < tensor_elements(a); i++)
        if (((const uint16_t *)a->data)[i] != ((const uint16_t *)b->data)[i] &&
            !(isnan(value(a, i)) && isnan(value(b, i))))
            return false;
    return true;
}

/* Returns |got - want| / |want| over the finite elements. *worst is the largest difference of one
 * element, relative to that element's size plus the typical size. */
static double distance(const struct tensor *got, const struct tensor *want, double *worst) {
    const int64_t n = tensor_elements(want);
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        const double w = value(want, i), d = value(got, i) - w;
        if (class_of(w) || class_of(w + d))
            continue;
        difference += d * d;
        size += w * w;
    }
    const double typical = sqrt(size / (double)n);
    *worst = 0;
    for (int64_t i = 0; i < n; i++) {
        const double w = value(want, i), d = fabs(value(got, i) - w);
        if (d / (fabs(w) + typical) > *worst)
            *worst = d / (fabs(w) + typical);
    }
    return size > 0 ? sqrt(difference / size) : sqrt(difference);
}

static void describe(const struct attention_case *c, char text[128]) {
    snprintf(text, 128, "%lldx%lld to %lld, %d of %d%s%s, size %g", (long long)c->rows,
        (long long)c->tq, (long long)c->tk, c->heads, c->d, c->causal ? " causal" : "",
        c->fused ? " fused" : "", (double)c->size);
}

/* Computes `want` and `got` and compares them. Then compares every implementation that must have
 * the twin's bits. */
static void compare(struct example *e, const char *what) {
    char text[128];
    double worst;
    describe(&e->c, text);
    run(kernels_reference()->attention, e, 0, e->c.rows, &e->want);
    run(attention_tiles_twin, e, 0, e->c.rows, &e->got);
    const int64_t strange = other_classes(&e->want, &e->got);
    CHECK(strange == 0, "%s%s: %lld elements of another class", text, what, (long long)strange);
    const double error = distance(&e->got, &e->want, &worst);
    CHECK(error <= BOUND && worst <= 8 * BOUND, "%s%s: distance %.3g, allowed %.3g; worst %.3g",
        text, what, error, BOUND, worst);
    printf("%s%s: distance %.3g, worst %.3g\n", text, what, error, worst);
    for (int i = 0; i < same_count; i++) {
        run(same[i], e, 0, e->c.rows, &e->other);
        CHECK(
            same_numbers(&e->other, &e->got), "%s%s: other bits on %s", text, what, same_names[i]);
    }
}

/* Computes one row alone, then all rows with two more threads than before. Both results must have
 * the bits of `got`. */
static void check_bits(struct example *e) {
    char text[128];
    describe(&e->c, text);
    memcpy(e->other.data, e->got.data, tensor_bytes(&e->got));
    run(attention_tiles_twin, e, e->c.rows - 1, 1, &e->other);
    CHECK(same_bits(&e->other, &e->got), "%s: other bits in a row alone", text);
    const int threads = omp_get_max_threads();
    omp_set_num_threads(threads + 2);
    run(attention_tiles_twin, e, 0, e->c.rows, &e->other);
    omp_set_num_threads(threads);
    CHECK(same_bits(&e->other, &e->got), "%s: other bits on %d threads", text, threads + 2);
}

static void put(struct tensor *t, float x) {
    const int64_t first_row = tensor_elements(t) / t->shape[0];
    const int64_t i = (int64_t)((double)(random_float() + 1) / 2 * (double)(first_row - 1));
    ((uint16_t *)t->data)[i] = f32_to_bf16(x);
}

static void check_case(struct attention_case c) {
    struct example e = example_of(c);
    compare(&e, "");
    check_bits(&e);
    if (c.rows * c.heads * c.tq * c.tk * c.d < 3000000 && c.size < 1e6f) {
        struct tensor *inputs[] = { &e.q, &e.k, &e.v };
        /* A very small weight is 0 in f32, and 0 times an infinite value is NaN. The reference
         * computes in double, where the weight is not 0. */
        const int specials = c.fused ? 1 : c.size > 4 ? 2 : 3;
        put(&e.q, NAN);
        compare(&e, ", NaN");
        for (int i = 0; i < specials; i++) {
            put(inputs[i], INFINITY);
            put(inputs[i], -INFINITY);
            compare(&e, ", infinities");
        }
        put(inputs[specials - 1], NAN);
        compare(&e, ", NaN and infinities");
    }
    example_finish(&e);
}

/* All weights are equal and only one key has a value, so a key that is missing or counted twice
 * changes the result. */
static void check_every_key_counts(void) {
    double worst = 0;
    for (int64_t tk = 1; tk <= 140; tk++) {
        const struct attention_case c = { 1, 3, tk, 1, 1, false, false, 0 };
        struct example e = example_of(c);
        for (int64_t key = tk - 1; key >= 0; key -= 1 + tk / 8) {
            memset(e.v.data, 0, tensor_bytes(&e.v));
            ((uint16_t *)e.v.data)[key * 6 + 3] = f32_to_bf16((float)tk);
            run(attention_tiles_twin, &e, 0, 1, &e.got);
            for (int64_t i = 0; i < 3; i++)
                worst = fmax(worst, fabs(value(&e.got, i) - 1));
        }
        example_finish(&e);
    }
    CHECK(worst <= 0x1p-8, "a key's share is off by %g", worst);
    printf("1 to 140 keys: a key's share off by %g at most\n", worst);
}

/* One query's maximum grows with every block of keys, so its whole group is rescaled every time.
 * For the other queries all keys are equal, so the first half of the keys must still weigh one
 * half. */
static void check_rescaling(void) {
    const struct attention_case c = { 1, 16, 4096, 1, 1, false, false, 0 };
    struct example e = example_of(c);
    ((uint16_t *)e.q.data)[1] = f32_to_bf16(1);
    for (int64_t key = 0; key < c.tk; key++) {
        ((uint16_t *)e.k.data)[key * 4] = f32_to_bf16((float)key / 64);
        ((uint16_t *)e.v.data)[key * 6 + 3] = f32_to_bf16(key < c.tk / 2 ? 1 : 0);
    }
    run(attention_tiles_twin, &e, 0, 1, &e.got);
    double worst = 0;
    for (int64_t i = 1; i < c.tq; i++)
        worst = fmax(worst, fabs(value(&e.got, i) / 0.5 - 1));
    CHECK(worst <= 0x1p-8, "the first half of the keys is off by %g", worst);
    printf("the first half of 4096 keys is off by %g after 64 new maxima\n", worst);
    example_finish(&e);
}

/* Compares the weights' exponential with the C library. */
static void check_exponential(void) {
    double worst = 0;
    vi seen = { 0 };
    for (int i = 0; i <= 1100000; i++) {
        const float x = (float)i * -1e-4f;
        const vf got = cheap_exp2(splat(x * EXPONENT + EXPONENT_ONE), &seen);
        worst = fmax(worst, fabs((double)got[i % 16] / exp2((double)x) - 1));
    }
    CHECK(worst < 6.8e-4, "the exponential is off by %g", worst);
    CHECK(seen[0] >= 0, "numbers were taken for NaN");
    printf("the weights' exponential is off by %.3g at most\n", worst);
    const float none[] = { -111.5f, -125.5f, -126.5f, -1000, -1e30f, -INFINITY };
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        const vf got = cheap_exp2(splat(none[i] * EXPONENT + EXPONENT_ONE), &seen);
        CHECK(got[0] == 0 && seen[0] >= 0, "2^%g is %g", (double)none[i], (double)got[0]);
    }
    const vf got = cheap_exp2(splat(NAN), &seen);
    CHECK(got[0] == 0 && seen[0] < 0, "2^NaN is %g", (double)got[0]);
}

/* Keys that a causal query must not see do not affect it, even if they are infinite. */
static void check_causal(void) {
    const struct attention_case c = { 1, 77, 77, 2, 64, true, false, 1 };
    struct example e = example_of(c);
    run(attention_tiles_twin, &e, 0, 1, &e.got);
    const int64_t width = c.heads * c.d, from = 40;
    for (int64_t key = from; key < c.tk; key++)
        for (int64_t i = 0; i < width; i++) {
            ((uint16_t *)e.v.data)[key * (width + 5) + 3 + i] = f32_to_bf16(INFINITY);
            ((uint16_t *)e.k.data)[key * (width + 3) + i] = f32_to_bf16(NAN);
        }
    run(attention_tiles_twin, &e, 0, 1, &e.other);
    CHECK(memcmp(e.got.data, e.other.data, (size_t)(from * width) * 2) == 0,
        "a query was touched by a later key");
    for (int64_t i = from * width; i < c.tq * width; i++)
        CHECK(isnan(value(&e.other, i)), "element %lld is %g", (long long)i, value(&e.other, i));
    example_finish(&e);
}

static void put_nan_behind(const struct tensor *t, const int32_t *lengths) {
    for (int64_t row = 0; row < t->shape[0]; row++) {
        const struct tensor tokens = tensor_rows(t, row, 1);
        for (int64_t i = lengths[row] * t->shape[2]; i < t->shape[1] * t->shape[2]; i++)
            ((uint16_t *)tokens.data)[i] = 0x7fff;
    }
}

/* A row whose length is below the tensor's number of keys gets the same bits as with a tensor of
 * exactly that many keys, whatever lies behind them. */
static void check_lengths(void) {
    const struct attention_case c = { 3, 20, 140, 2, 40, false, false, 2 };
    for (int32_t keys = 1; keys <= c.tk; keys += keys < 66 ? 1 : 13) {
        struct example e = example_of(c);
        int32_t lengths[3] = { keys, (int32_t)c.tk, keys / 2 + 1 };
        const struct tensor tensor = tensor_1d(lengths, DTYPE_I32, 3);
        const struct attention_args all = { &e.q, &e.k, &e.v, 1, 0, 3, c.heads, c.d, 0.2f, false,
            &e.got, &tensor };
        struct error err = { 0 };
        put_nan_behind(&e.k, lengths);
        put_nan_behind(&e.v, lengths);
        memset(e.got.data, 0xff, tensor_bytes(&e.got));
        CHECK(attention_tiles_twin(&all, &err), "%s", err.message);
        for (int64_t row = 0; row < 3; row++) {
            struct tensor q = tensor_rows(&e.q, row, 1), k = tensor_rows(&e.k, row, 1);
            struct tensor v = tensor_rows(&e.v, row, 1), y = tensor_rows(&e.other, row, 1);
            k.shape[1] = v.shape[1] = lengths[row];
            const struct attention_args alone = { &q, &k, &v, 1, 0, 3, c.heads, c.d, 0.2f, false,
                &y, NULL };
            CHECK(attention_tiles_twin(&alone, &err), "%s", err.message);
        }
        CHECK(same_bits(&e.got, &e.other), "other bits with lengths %d, %d and %d", lengths[0],
            lengths[1], lengths[2]);
        for (int i = 0; i < same_count; i++) {
            struct attention_args same_args = all;
            same_args.y = &e.want;
            CHECK(same[i](&same_args, &err), "%s", err.message);
            CHECK(same_bits(&e.got, &e.want), "other bits with lengths on %s", same_names[i]);
        }
        example_finish(&e);
    }
}

static void check_takes(void) {
    struct tensor y = tensor_3d(NULL, DTYPE_BF16, 1, 1, 8);
    struct attention_args args = { .y = &y, .heads = 1, .head_dim = 8, .scale = 0.5f };
    CHECK(attention_tiles_takes(&args), "bf16 is not taken");
    y.dtype = DTYPE_F32;
    CHECK(!attention_tiles_takes(&args), "f32 is taken");
    y.dtype = DTYPE_BF16;
    const float scales[] = { 0, -0.5f, NAN, INFINITY, 1e-30f, 1e30f };
    for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++) {
        args.scale = scales[i];
        CHECK(!attention_tiles_takes(&args), "a scale of %g is taken", (double)scales[i]);
    }
}

int main(int argc, char **argv) {
    static const struct attention_case small[] = {
        { 3, 1, 1, 1, 1, false, false, 1 }, { 3, 5, 3, 2, 7, false, false, 1 },
        { 3, 7, 7, 3, 8, true, true, 2 }, { 2, 31, 33, 2, 40, false, false, 1 },
        { 2, 33, 64, 1, 40, false, false, 4 },
        { 2, 32, 65, 2, 16, false, false, 20 }, /* weights down to 2^-126 and below */
        { 2, 17, 130, 1, 33, false, false, 9 },
        { 2, 40, 31, 1, 17, true, false, 3 }, /* causal, with more queries than keys */
        { 2, 31, 90, 1, 12, true, false, 3 }, { 2, 65, 65, 2, 24, false, true, 1 },
        { 2, 50, 77, 2, 40, false, false, 1 }, { 2, 20, 77, 1, 80, false, false, 1 },
        { 2, 16, 77, 2, 160, false, false, 1 }, { 1, 77, 77, 2, 64, true, true, 1 },
        { 1, 140, 70, 1, 512, false, false, 1 }, /* 8 groups of queries */
        { 1, 5, 5, 1, 600, false, true, 1 },
        { 2, 20, 70, 1, 40, false, false, 1e15f }, /* scores of 1e30 */
    };
    static const struct attention_case large[] = {
        { 1, 4096, 4096, 1, 40, false, true, 2 }, { 2, 1024, 1024, 1, 80, false, true, 1 },
        { 2, 256, 256, 8, 160, false, true, 1 }, { 2, 64, 64, 8, 160, false, true, 1 },
        { 2, 4096, 77, 1, 40, false, false, 1 }, { 2, 1024, 77, 8, 80, false, false, 1 },
        { 2, 256, 77, 8, 160, false, false, 1 }, { 2, 64, 77, 8, 160, false, false, 1 },
        { 2, 77, 77, 12, 64, true, true, 1 }, { 1, 1024, 1024, 1, 512, false, true, 1 },
        { 2, 300, 1500, 2, 40, false, false, 5 }, /* many new maxima */
    };
    const bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bf16")) {
        same_names[same_count] = "the vectors of AVX-512";
        same[same_count++] = attention_tiles_wide;
    }
    if (amx_permitted()) {
        same_names[same_count] = "tiles";
        same[same_count++] = attention_tiles;
    }
#endif
    check_takes();
    check_exponential();
    check_every_key_counts();
    check_rescaling();
    check_causal();
    check_lengths();
    for (size_t i = 0; i < sizeof(small) / sizeof(small[0]); i++)
        check_case(small[i]);
    for (size_t i = 0; !quick && i < sizeof(large) / sizeof(large[0]); i++)
        check_case(large[i]);
    printf("the twin's bits also on:");
    for (int i = 0; i < same_count; i++)
        printf(" %s%s", same_names[i], i + 1 < same_count ? "," : "");
    printf(same_count ? "\n" : " nothing else here\n");
    return check_done();
}
