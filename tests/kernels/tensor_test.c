/* Tests conversions against bit patterns written by hand from IEEE 754 and against ldexp. Also
 * tests shapes. */
#include "kernels/tensor.h"
#include "tests/check.h"
#include "tests/kernels/narrow.h"

#include <stdlib.h>

static uint32_t bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

static void f16_widens_every_pattern(void) {
    int wrong = 0;
    for (uint32_t h = 0; h < 0x10000; h++) {
        int exponent = (int)(h >> 10 & 31), fraction = (int)(h & 1023);
        float got = f16_to_f32((uint16_t)h);
        bool right;
        if (exponent == 31 && fraction)
            right = isnan(got);
        else {
            double want = exponent == 31 ? INFINITY
                          : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                         : ldexp(fraction, -24);
            right = (double)got == (h & 0x8000 ? -want : want) && !!signbit(got) == (h >> 15 == 1);
        }
        wrong += !right;
    }
    CHECK(wrong == 0, "%d of 65536 f16 patterns widen wrongly", wrong);
}

static void f16_narrows_to_nearest_even(void) {
    static const struct {
        double value;
        uint16_t want;
    } cases[] = {
        { 0.0, 0x0000 },
        { -0.0, 0x8000 },
        { 1.0, 0x3c00 },
        { -2.0, 0xc000 },
        { 65504.0, 0x7bff },
        { 65519.99, 0x7bff },
        { 65520.0, 0x7c00 },
        { 65536.0, 0x7c00 },
        { 1e30, 0x7c00 },
        { -INFINITY, 0xfc00 },
        { 0x1p-14, 0x0400 },
        { 0x1p-24, 0x0001 },
        { 0x1p-25, 0x0000 }, /* tie to even: zero */
        { 0x1.000002p-25, 0x0001 },
        { 0x3p-25, 0x0002 }, /* tie between 1 and 2: 2 */
        { 0x5p-25, 0x0002 }, /* tie between 2 and 3: 2 */
        { 0x1.ff8p-15, 0x03ff },
        { 0x1.ffcp-15, 0x0400 }, /* tie: up into the normal numbers */
        { 1.0 + 0x1p-11, 0x3c00 },
        { 1.0 + 0x3p-11, 0x3c02 },
        { 1.0 + 0x1.002p-11, 0x3c01 },
        { 0x1p-126, 0x0000 },
        { -0x1p-149, 0x8000 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint16_t got = f32_to_f16((float)cases[i].value);
        CHECK(got == cases[i].want, "f16 of %a is 0x%04x, not 0x%04x", cases[i].value, got,
            cases[i].want);
    }
    CHECK(isnan(f16_to_f32(f32_to_f16(NAN))), "NaN stays NaN");
    CHECK(isnan(f16_to_f32(f32_to_f16(from_bits(0x7f800001)))), "a NaN with a low payload too");
    CHECK(f32_to_f16(from_bits(0xffc00000)) >> 15 == 1, "NaN keeps its sign");
    int wrong = 0;
    for (uint32_t h = 0; h < 0x10000; h++)
        if ((h & 0x7fff) <= 0x7c00)
            wrong += f32_to_f16(f16_to_f32((uint16_t)h)) != h;
    CHECK(wrong == 0, "%d f16 numbers do not survive the round trip", wrong);
}

static void bf16_rounds_to_nearest_even(void) {
    static const struct {
        uint32_t value;
        uint16_t want;
    } cases[] = {
        { 0x3f800000, 0x3f80 },
        { 0x3f808000, 0x3f80 }, /* tie to even: down */
        { 0x3f818000, 0x3f82 }, /* tie to even: up */
        { 0x3f808001, 0x3f81 },
        { 0x3f807fff, 0x3f80 },
        { 0x7f7fffff, 0x7f80 }, /* to infinity */
        { 0xff800000, 0xff80 },
        { 0x80000000, 0x8000 },
        { 0x00000001, 0x0000 },
        { 0x00008000, 0x0000 },
        { 0x00008001, 0x0001 },
        { 0x00018000, 0x0002 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint16_t got = f32_to_bf16(from_bits(cases[i].value));
        CHECK(got == cases[i].want, "bf16 of bits 0x%08x is 0x%04x, not 0x%04x", cases[i].value,
            got, cases[i].want);
    }
    CHECK(isnan(bf16_to_f32(f32_to_bf16(from_bits(0x7f800001)))), "NaN stays NaN");
    CHECK(isnan(bf16_to_f32(f32_to_bf16(from_bits(0x7fffffff)))), "NaN does not round away");
    int wrong = 0;
    for (uint32_t h = 0; h < 0x10000; h++)
        wrong += bits(bf16_to_f32((uint16_t)h)) != h << 16;
    CHECK(wrong == 0, "%d bf16 patterns widen wrongly", wrong);
}

/* The bulk loop (with vectors) against the scalar functions, for every pair of types; the length is
 * not a multiple of a vector. */
static void bulk_conversion_equals_scalar(void) {
    enum { N = 1027 };
    float f[N], f2[N];
    uint16_t h[N], b[N], h2[N];
    for (int i = 0; i < N; i++) {
        f[i] = from_bits((uint32_t)i * 4181 * 1021);
        h[i] = f32_to_f16(f[i]);
        b[i] = f32_to_bf16(f[i]);
    }
    int wrong[6] = { 0 };
    convert_elements(h2, DTYPE_F16, f, DTYPE_F32, N);
    for (int i = 0; i < N; i++)
        wrong[0] += h2[i] != h[i];
    convert_elements(h2, DTYPE_BF16, f, DTYPE_F32, N);
    for (int i = 0; i < N; i++)
        wrong[1] += h2[i] != b[i];
    convert_elements(f2, DTYPE_F32, h, DTYPE_F16, N);
    for (int i = 0; i < N; i++)
        wrong[2] += bits(f2[i]) != bits(f16_to_f32(h[i]));
    convert_elements(f2, DTYPE_F32, b, DTYPE_BF16, N);
    for (int i = 0; i < N; i++)
        wrong[3] += bits(f2[i]) != bits(bf16_to_f32(b[i]));
    convert_elements(h2, DTYPE_BF16, h, DTYPE_F16, N);
    for (int i = 0; i < N; i++)
        wrong[4] += h2[i] != f32_to_bf16(f16_to_f32(h[i]));
    convert_elements(h2, DTYPE_F16, b, DTYPE_BF16, N);
    for (int i = 0; i < N; i++)
        wrong[5] += h2[i] != f32_to_f16(bf16_to_f32(b[i]));
    for (int i = 0; i < 6; i++)
        CHECK(wrong[i] == 0, "bulk conversion %d: %d of %d differ", i, wrong[i], N);
}

static void shapes_views_and_names(void) {
    float data[24] = { 0 };
    struct tensor t = tensor_4d(data, DTYPE_F32, 2, 3, 2, 2);
    char text[64];
    CHECK_STRING(tensor_describe(&t, text, sizeof(text)), "f32 [2][3][2][2]");
    CHECK(tensor_elements(&t) == 24 && tensor_bytes(&t) == 96, "sizes");
    struct tensor row = tensor_rows(&t, 1, 1);
    CHECK(row.data == data + 12 && row.shape[0] == 1, "row 1 starts at element 12");
    struct tensor view = tensor_view_2d(&t, 6, 4);
    CHECK(view.rank == 2 && view.data == data && !tensor_same_shape(&t, &view), "a view");
    char small[8];
    CHECK(strlen(tensor_describe(&t, small, sizeof(small))) == 7, "\"%s\" is cut", small);
    CHECK_STRING(dtype_name(DTYPE_BF16), "bf16");
    CHECK(dtype_size(DTYPE_I64) == 8 && dtype_size(DTYPE_F16) == 2, "dtype sizes");
    CHECK(dtype_size(DTYPE_F64) == 8 && strcmp(dtype_name(DTYPE_F64), "f64") == 0, "f64");
}

int main(void) {
    f16_widens_every_pattern();
    f16_narrows_to_nearest_even();
    bf16_rounds_to_nearest_even();
    bulk_conversion_equals_scalar();
    shapes_views_and_names();
    return check_done();
}
