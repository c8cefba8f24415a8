/* Tests the tiles' twin in plain C (kernels/cpu/attention/tile_twin.h). Every output of its product
 * must have the same bits as if tdpbf16ps were computed step by step as in Intel's manual, with the
 * C library's fused multiply-add. With --hardware, it must have the same bits as the processor's
 * own result. Any NaN equals any other.
 *
 * Operands have every size that tiles can have. Their numbers come from several ranges, each of
 * which tests another part of the rounding. */
#include "kernels/cpu/attention/amx.h"
#include "kernels/cpu/attention/tile_twin.h"
#include "tests/check.h"

#define ROUNDS 30000

/* The operands of one product. */
struct operands {
    struct tile_config config; /* tile 0: c, 1: a, 2: b */
    uint16_t a[16][32], b[16][32];
    uint32_t c[16][16];
};

enum range {
    RANGE_ORDINARY,
    RANGE_CANCELLING, /* the second half cancels the first, except for one bit */
    RANGE_WIDE,       /* terms of very different sizes */
    RANGE_SUBNORMAL,  /* some inputs are subnormal */
    RANGE_UNDERFLOW,  /* sums around the smallest normal number */
    RANGE_OVERFLOW,
    RANGE_ANY, /* any bits, also infinities and NaN */
    RANGES
};

static const char *const names[RANGES] = { "ordinary", "cancelling", "wide", "subnormal",
    "underflow", "overflow", "any bits" };

static uint32_t random_word(void) {
    static uint64_t state = 7;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* The upper half of a float, with a random sign and mantissa. */
static uint16_t random_half(unsigned first_exponent, unsigned exponents) {
    const unsigned exponent = first_exponent + random_word() % exponents;
    return (uint16_t)((random_word() & 0x807f) | exponent << 7);
}

static uint16_t element_of(enum range range) {
    switch (range) {
    case RANGE_ORDINARY:
    case RANGE_CANCELLING:
        return random_half(122, 10);
    case RANGE_WIDE:
        return random_half(92, 70);
    case RANGE_SUBNORMAL:
        return random_half(0, 130);
    case RANGE_UNDERFLOW:
        return random_half(58, 8);
    case RANGE_OVERFLOW:
        return random_half(184, 9);
    default:
        return (uint16_t)random_word();
    }
}

static uint32_t sum_so_far_of(enum range range) {
    static const unsigned first[RANGES] = { 120, 120, 100, 0, 0, 244, 0 };
    static const unsigned count[RANGES] = { 12, 12, 56, 20, 8, 11, 256 };
    return (uint32_t)random_half(first[range], count[range]) << 16 | (random_word() & 0xffff);
}

static void fill(struct operands *o, enum range range) {
    const int rows = 1 + (int)(random_word() % 16), columns = 1 + (int)(random_word() % 16);
    const int pairs = 1 + (int)(random_word() % 16);
    *o = (struct operands){ .config = { .palette = 1 } };
    o->config.rows[0] = o->config.rows[1] = (uint8_t)rows;
    o->config.rows[2] = (uint8_t)pairs;
    o->config.row_bytes[0] = o->config.row_bytes[2] = (uint16_t)(4 * columns);
    o->config.row_bytes[1] = (uint16_t)(4 * pairs);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 32; j++) {
            o->a[i][j] = element_of(range);
            o->b[i][j] = element_of(range);
        }
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            o->c[i][j] = sum_so_far_of(range);
    if (range != RANGE_CANCELLING)
        return;
    const int half = pairs / 2;
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 2 * half; j++)
            o->a[i][2 * half + j] = o->a[i][j] ^ 0x8000;
    for (int l = 0; l < half; l++)
        memcpy(o->b[half + l], o->b[l], sizeof(o->b[l]));
    if (half > 0)
        o->a[random_word() % 16][random_word() % (unsigned)(2 * half)] ^= 1;
}

/* Flushes subnormal numbers to zero and keeps the sign. */
static float flush(float x) {
    return fpclassify(x) == FP_SUBNORMAL ? copysignf(0.0f, x) : x;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return flush(x);
}

static void by_the_manual(const struct operands *o, uint32_t y[16][16]) {
    for (int i = 0; i < o->config.rows[0]; i++)
        for (int j = 0; j < o->config.row_bytes[0] / 4; j++) {
            float sums[2] = { 0, 0 };
            for (int l = 0; l < o->config.rows[2]; l++)
                for (int member = 0; member < 2; member++) {
                    const float a = float_of((uint32_t)o->a[i][2 * l + member] << 16);
                    const float b = float_of((uint32_t)o->b[l][2 * j + member] << 16);
                    sums[member] = flush(fmaf(a, b, sums[member]));
                }
            const float sum = flush(float_of(o->c[i][j]) + flush(sums[0] + sums[1]));
            memcpy(&y[i][j], &sum, sizeof(sum));
        }
}

static void by_the_twin(const struct operands *o, uint32_t y[16][16]) {
    twin_configure(&o->config);
    twin_load(0, o->c);
    twin_load(1, o->a);
    twin_load(2, o->b);
    twin_multiply(0, 1, 2);
    twin_store(0, y);
    twin_release();
}

static void by_the_processor(const struct operands *o, uint32_t y[16][16]) {
#if defined(__x86_64__)
    tile_configure(&o->config);
    tile_load(0, o->c);
    tile_load(1, o->a);
    tile_load(2, o->b);
    tile_multiply(0, 1, 2);
    tile_store(0, y);
    tile_release();
#else
    (void)o, (void)y;
#endif
}

static bool is_nan(uint32_t bits) {
    return (bits & 0x7fffffff) > 0x7f800000;
}

int main(int argc, char **argv) {
    const bool hardware = argc > 1 && strcmp(argv[1], "--hardware") == 0;
    if (hardware && !amx_permitted()) {
        puts("no AMX here");
        return 77;
    }
    long outputs[RANGES] = { 0 }, other[RANGES] = { 0 }, all = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const enum range range = (enum range)(round % RANGES);
        static struct operands o;
        static uint32_t want[16][16], got[16][16];
        fill(&o, range);
        memset(want, 0xa5, sizeof(want));
        memset(got, 0xa5, sizeof(got));
        (hardware ? by_the_processor : by_the_manual)(&o, want);
        by_the_twin(&o, got);
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 16; j++) {
                /* Outside of the configured size, memory must stay unchanged. */
                outputs[range] += i < o.config.rows[0] && j < o.config.row_bytes[0] / 4;
                if (want[i][j] == got[i][j] || (is_nan(want[i][j]) && is_nan(got[i][j])))
                    continue;
                if (other[range]++ == 0)
                    printf("%s, %d pairs: %08x where %08x is right, onto %08x\n", names[range],
                        o.config.rows[2], got[i][j], want[i][j], o.c[i][j]);
            }
    }
    for (int range = 0; range < RANGES; range++) {
        CHECK(other[range] == 0, "%s: %ld of %ld outputs have other bits", names[range],
            other[range], outputs[range]);
        all += outputs[range];
    }
    CHECK(all > 1000000, "only %ld outputs", all);
    printf("%ld outputs with the bits of the %s\n", all, hardware ? "processor" : "manual");
    return check_done();
}
