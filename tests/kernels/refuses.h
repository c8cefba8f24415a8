/* Macros for what the operations' wrappers refuse and accept, used by compute_test.c and
 * compute_backward_test.c. */
#ifndef TESTS_KERNELS_REFUSES_H
#define TESTS_KERNELS_REFUSES_H

#include "kernels/compute/compute.h"
#include "tests/check.h"

static float memory[1 << 16];

static struct compute fresh(void) {
    return (struct compute){ .kernels = kernels_reference() };
}

/* Calls op_OP on a copy of GOOD with CHANGE applied; the error's message must contain TEXT. */
#define REFUSES(op, good, change, text)                                                            \
    do {                                                                                           \
        struct compute c_ = fresh();                                                               \
        struct op##_args a = good;                                                                 \
        change;                                                                                    \
        op_##op(&c_, &a);                                                                          \
        CHECK(c_.error.code == ERROR_INTERNAL, "%s: code %d, want: %s", #op, c_.error.code, text); \
        CHECK_CONTAINS(c_.error.message, text);                                                    \
    } while (0)

#define ACCEPTS(op, good, change)                                                                  \
    do {                                                                                           \
        struct compute c_ = fresh();                                                               \
        struct op##_args a = good;                                                                 \
        change;                                                                                    \
        op_##op(&c_, &a);                                                                          \
        CHECK(compute_ok(&c_), "%s: %s", #op, c_.error.message);                                   \
    } while (0)

static struct tensor f32_2d(int at, int64_t a, int64_t b) {
    return tensor_2d(memory + at, DTYPE_F32, a, b);
}

static struct tensor f32_4d(int at, int64_t a, int64_t b, int64_t c, int64_t d) {
    return tensor_4d(memory + at, DTYPE_F32, a, b, c, d);
}

#endif
