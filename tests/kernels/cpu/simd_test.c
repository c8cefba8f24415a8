/* The vector exp, 2^x and erf, compared with the C library in double precision, at the current
 * instruction set; and their results for NaN and infinities. */
#include "kernels/cpu/level.h"
#include "tests/check.h"

#define N 200000

static float x[N], y[N];

static void fill(double from, double to) {
    for (int i = 0; i < N; i++)
        x[i] = (float)(from + (to - from) * (double)i / (N - 1));
}

/* Returns the largest |y - f(x)| / |f(x)|. */
static double worst_relative(double (*f)(double)) {
    double worst = 0;
    for (int i = 0; i < N; i++) {
        double want = f((double)x[i]), error = want != 0 ? fabs((double)y[i] / want - 1) : y[i];
        worst = !(error <= worst) ? error : worst;
    }
    return worst;
}

int main(void) {
    const struct simd *simd = cpu_level()->simd;
    fill(-87, 88);
    simd->exp(x, y, N);
    double worst = worst_relative(exp);
    printf("%s: exp %.3g", simd->name, worst);
    CHECK(worst < 2e-7, "exp is off by %g", worst);
    fill(-126, 127);
    simd->exp2(x, y, N);
    worst = worst_relative(exp2);
    printf(", exp2 %.3g", worst);
    CHECK(worst < 2.4e-7, "exp2 is off by %g", worst);
    fill(-6, 6);
    simd->erf(x, y, N);
    worst = worst_relative(erf);
    printf(", erf %.3g relative error at worst\n", worst);
    CHECK(worst < 1.3e-7, "erf is off by %g", worst);

    const float special[4] = { NAN, INFINITY, -INFINITY, 0 };
    simd->exp(special, y, 4);
    CHECK(isnan(y[0]) && y[1] == INFINITY && y[2] == 0 && y[3] == 1, "exp of %g is %g", special[1],
        y[1]);
    simd->exp2(special + 2, y, 2);
    CHECK(y[0] == 0 && y[1] == 1, "2^-inf is %g, 2^0 is %g", y[0], y[1]);
    simd->exp2(special, y, 1);
    CHECK(isnan(y[0]), "2^NaN is %g", y[0]);
    simd->erf(special, y, 4);
    CHECK(isnan(y[0]) && y[1] == 1 && y[2] == -1 && y[3] == 0, "erf of infinity is %g", y[1]);
    return check_done();
}
