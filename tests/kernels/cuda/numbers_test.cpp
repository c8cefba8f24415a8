/* Compares functions that kernels compute with approximations of their own with the same functions
 * in double. */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/attention/attention.cuh"
#include "tests/check.h"

#include <math.h>

/* The promised precision over the whole range, and the results for infinities and NaN. */
static void spared_exponentials() {
    const double allowed = 7.6e-5;
    double worst = 0, at = 0;
    for (int i = 0; i <= 4000000; i++) {
        const float x = (float)(-126.0 * (double)i / 4000000.0);
        const double want = exp2((double)x), error = fabs((double)spared_exp2(x) / want - 1);
        if (error > worst)
            worst = error, at = x;
    }
    printf("spared_exp2: %.3g of itself off at most, at %.9g; allowed %.3g\n", worst, at, allowed);
    CHECK(worst <= allowed && worst > allowed / 2, "%.3g", worst);
    const float tiny = 1.2e-38f;
    CHECK(
        spared_exp2(-INFINITY) <= tiny && spared_exp2(-1e30f) <= tiny && spared_exp2(-140) <= tiny,
        "%g %g", (double)spared_exp2(-INFINITY), (double)spared_exp2(-1e30f));
    CHECK(isnan(spared_exp2(NAN)), "%g of NaN", (double)spared_exp2(NAN));
    /* The largest score's own argument may be a little above 0, because its product is rounded
     * differently. */
    CHECK(fabs((double)spared_exp2(1e-4f) - 1) < 2e-4, "%g", (double)spared_exp2(1e-4f));
}

/* erf has an error of 1.5e-7, which x/2 multiplies; rounding adds to it. */
static void short_gelus() {
    double worst = 0, at = 0;
    for (int i = -2000000; i <= 2000000; i++) {
        const double x = (double)i / 100000, want = x * 0.5 * erfc(-x * 0.70710678118654752);
        const double error = fabs((double)short_gelu((float)x) - want) / fmax(1, fabs(x));
        if (error > worst)
            worst = error, at = x;
    }
    printf("short_gelu: %.3g off at most for each of x, at %.9g; allowed 3e-7\n", worst, at);
    CHECK(worst <= 3e-7, "%.3g", worst);
    CHECK(isnan(short_gelu(NAN)) && short_gelu(INFINITY) == INFINITY && short_gelu(0) == 0, "%g %g",
        (double)short_gelu(NAN), (double)short_gelu(INFINITY));
}

/* The error is a few units in the last place of f16 and bf16, whatever the other of the two values
 * is. */
static void quick_silus() {
    double worst = 0, at = 0;
    for (int i = -300000; i <= 300000; i++) {
        const double x = (double)i / 2000, want = x / (1 + exp(-x));
        float alone[2] = { (float)x, 1 }, both[2] = { (float)-x, (float)x },
              far[2] = { -149, (float)x };
        quick_silu_2(alone);
        quick_silu_2(both);
        quick_silu_2(far);
        const float seen[] = { quick_silu((float)x), alone[0], both[1], far[1] };
        for (float y : seen) {
            const double error = fabs((double)y - want) / fmax(fabs(want), 1e-11);
            if (!(error <= worst))
                worst = error, at = x;
        }
    }
    printf(
        "quick_silu: %.3g of itself, or of 1e-11, off at most, at %.9g; allowed 2e-5\n", worst, at);
    CHECK(worst <= 2e-5, "%.3g", worst);
    float x[2] = { NAN, 1 }, y[2] = { 2, NAN };
    quick_silu_2(x);
    quick_silu_2(y);
    CHECK(isnan(x[0]) && isnan(y[1]), "%g %g", (double)x[0], (double)y[1]);
}

int main(void) {
    quick_silus();
    spared_exponentials();
    short_gelus();
    return check_done();
}
