/* The twin of the pair operations gives the same bits as AVX512_BF16: over two million outputs each
 * for ordinary numbers, sums that cancel, subnormal numbers, overflowing numbers, and random bit
 * patterns. Any NaN equals any other, because no code reads a NaN's payload. Skipped if the
 * processor has no AVX512_BF16. */
#include "tests/kernels/cpu/pairs_ops.h"

#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N (1 << 19)

enum numbers { ORDINARY, CANCELLING, SUBNORMAL, OVERFLOWING, ANY_BITS, KINDS };

static const char *const names[KINDS] = { "ordinary", "cancelling", "subnormal", "overflowing",
    "any bits" };

static uint64_t state = 88172645463325252u;

static uint32_t bits(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

static float from_bits(uint32_t x) {
    float y;
    memcpy(&y, &x, sizeof(y));
    return y;
}

/* A random number of either sign; its exponent is one of `span` from `low` on. */
static uint32_t number(int low, int span) {
    uint32_t exponent = (uint32_t)(low + 127 + (int)(bits() % (uint32_t)span));
    return (bits() & 0x807fffff) | exponent << 23;
}

static uint32_t draw(enum numbers kind) {
    switch (kind) {
    case SUBNORMAL:
        return bits() % 4 ? number(-66, 6) : bits() & 0x807fffff;
    case OVERFLOWING:
        return number(60, 6);
    case ANY_BITS:
        return bits();
    default:
        return number(-6, 12);
    }
}

static uint32_t draw_pair(enum numbers kind) {
    return draw(kind) >> 16 | (draw(kind) & 0xffff0000);
}

static int64_t differences(const uint32_t *x, const uint32_t *y) {
    int64_t count = 0;
    for (int i = 0; i < N; i++)
        count += x[i] != y[i] && !(isnan(from_bits(x[i])) && isnan(from_bits(y[i])));
    return count;
}

static uint32_t nan_free(uint32_t pair) {
    uint32_t high = pair >> 16, low = pair & 0xffff;
    high = (high & 0x7fff) > 0x7f80 ? 0x7fc0 : high;
    low = (low & 0x7fff) > 0x7f80 ? 0x7fc0 : low;
    return high << 16 | low;
}

int main(void) {
#if defined(HAS_HARDWARE)
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw")) {
        printf("no AVX512_BF16 here\n");
        return 77;
    }
    static uint32_t a[N], b[N];
    static float sum[N], hardware[N], twin[N];
    for (int kind = 0; kind < KINDS; kind++) {
        for (int i = 0; i < N; i++) {
            a[i] = draw_pair(kind);
            b[i] = draw_pair(kind);
            sum[i] = from_bits(draw(kind));
            if (kind == CANCELLING) {
                /* Cancels all but the last bits: the second product undoes the first, or the sum
                 * does. */
                b[i] = bits() % 2 ? (a[i] << 16 | a[i] >> 16) ^ 0x8000 : b[i];
                sum[i] = -from_bits(a[i] << 16) * from_bits(b[i] << 16);
            }
        }
        dots_hardware(sum, a, b, N, hardware);
        dots_twin(sum, a, b, N, twin);
        int64_t off = differences((uint32_t *)hardware, (uint32_t *)twin);
        printf("products, %s: %lld of %d differ\n", names[kind], (long long)off, N);
        CHECK(off == 0, "%s: %lld products differ", names[kind], (long long)off);

        for (int i = 0; i < N; i++)
            hardware[i] = from_bits(draw(kind));
        roundings_hardware(sum, hardware, N, a);
        roundings_twin(sum, hardware, N, b);
        for (int i = 0; i < N; i++) {
            a[i] = nan_free(a[i]);
            b[i] = nan_free(b[i]);
        }
        off = 0;
        for (int i = 0; i < N; i++)
            off += a[i] != b[i];
        printf("roundings, %s: %lld of %d differ\n", names[kind], (long long)off, N);
        CHECK(off == 0, "%s: %lld roundings differ", names[kind], (long long)off);
    }
    return check_done();
#else
    printf("no AVX512_BF16 on this kind of machine\n");
    return 77;
#endif
}
