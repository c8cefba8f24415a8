/* The whole test framework. CHECK counts failures and prints where and what failed; any thread may
 * use it. main returns check_done() after all threads have ended; it prints the summary line. */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int checks_passed, checks_failed;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (condition) {                                                                           \
            __atomic_fetch_add(&checks_passed, 1, __ATOMIC_RELAXED);                               \
        } else {                                                                                   \
            __atomic_fetch_add(&checks_failed, 1, __ATOMIC_RELAXED);                               \
            printf("FAIL %s:%d: %s: ", __FILE__, __LINE__, #condition);                            \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)

/* |a - b| <= tolerance; a NaN fails. */
#define CHECK_NEAR(a, b, tolerance)                                                                \
    CHECK(fabs((double)(a) - (double)(b)) <= (tolerance), "%.9g is not within %g of %.9g",         \
        (double)(a), (double)(tolerance), (double)(b))

#define CHECK_STRING(a, b)                                                                         \
    CHECK((a) && (b) && strcmp((a), (b)) == 0, "\"%s\" is not \"%s\"", (a) ? (a) : "(null)",       \
        (b) ? (b) : "(null)")

#define CHECK_CONTAINS(text, part)                                                                 \
    CHECK(strstr((text), (part)), "\"%s\" does not contain \"%s\"", (text), (part))

/* Returns the larger of two errors. A NaN counts as infinity, so it is never lost. */
static inline double worse_of(double worst, double error) {
    return isnan(error) ? INFINITY : fmax(worst, error);
}

/* main returns this if the device under test cannot be opened; `why` is printed. It is 77, which
 * Meson counts as skipped. In a build with the emulator a missing device is a failure, unless the
 * environment disables the device. */
static inline int check_no_device(const char *why) {
    printf("no device: %s\n", why);
#ifdef TEST_DEVICE_IS_THERE
    const char *capability = getenv("CUDA_EMULATOR_CAPABILITY");
    if (!capability || strcmp(capability, "0") != 0) {
        printf("FAIL: the emulated device must be there\n");
        return 1;
    }
#endif
    return 77;
}

static inline int check_done(void) {
    printf("%d passed, %d failed\n", checks_passed, checks_failed);
    return checks_failed ? 1 : 0;
}

#endif
