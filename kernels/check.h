/* What the wrappers of kernels/compute.c say when an argument is wrong. Each function returns false
 * after putting the sticky error, which names the operation, the argument and both shapes. */
#ifndef KERNELS_CHECK_H
#define KERNELS_CHECK_H

#include "kernels/compute.h"

/* One operation under check. */
struct check {
    struct compute *c;
    const char *op;
};

bool check_fail(const struct check *k, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Present, on the table's device, `rank_min..rank_max` dimensions, each at least 1. */
bool check_tensor(
    const struct check *k, const char *name, const struct tensor *t, int rank_min, int rank_max);
/* check_tensor, and f32, bf16 or, where the table has f16 weights, f16. */
bool check_activation(
    const struct check *k, const char *name, const struct tensor *t, int rank_min, int rank_max);
/* `t` has the dtype `dtype`, which is that of `like_name` or what the operation fixes (NULL). */
bool check_dtype(const struct check *k, const char *name, const struct tensor *t, enum dtype dtype,
    const char *like_name);
/* Same shape and dtype as `like`. */
bool check_like(const struct check *k, const char *name, const struct tensor *t,
    const char *like_name, const struct tensor *like);
/* Exactly this shape; `from` is the tensor from which it follows. */
bool check_shape(const struct check *k, const char *name, const struct tensor *t,
    const struct tensor *want, const char *from_name, const struct tensor *from);
/* The memory of `y` and `x` does not overlap; with `may_be_same` they may be the same memory. An
 * absent x (NULL) is fine. */
bool check_apart(const struct check *k, const struct tensor *y, const char *name,
    const struct tensor *x, bool may_be_same);

#endif
