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
/* Rows like `from`'s, that have `channels` channels from `offset` on. */
bool check_row_add(const struct check *k, const char *name, const struct tensor *t, int64_t offset,
    int64_t channels, const char *from_name, const struct tensor *from);
/* The memory of `y` and `x` does not overlap; with `may_be_same` they may be the same memory. An
 * absent x (NULL) is fine. */
bool check_apart(const struct check *k, const struct tensor *y, const char *name,
    const struct tensor *x, bool may_be_same);
/* The same of an output with another name. */
bool check_output_apart(const struct check *k, const char *output_name, const struct tensor *output,
    const char *name, const struct tensor *x, bool may_be_same);

bool check_activation_kind(const struct check *k, enum activation activation);
/* Present, packed for this table, and of this kind. */
bool check_weight(const struct check *k, const struct packed *weight, bool is_conv);
/* y follows from x by a convolution to n channels, in `dtype`, and they lie apart. */
bool check_conv_output(const struct check *k, enum conv_kind kind, const struct tensor *x,
    int64_t n, enum dtype dtype, const struct tensor *y);
/* A low-rank term for outputs of so many channels. */
bool check_term(const struct check *k, const struct low_rank_term *t, int64_t channels);

/* What one operation's wrapper asks of its arguments, where another's asks it too. */
bool attention_is_right(const struct check *k, const struct attention_args *a);

/* bool NAME_is_right(k, args), for the operations of training (compute_backward.c). */
#define CHECK(name) bool name##_is_right(const struct check *k, const struct name##_args *a);
TRAINING_OPERATIONS(CHECK)
#undef CHECK

/* What struct compute counts of a call of one of them: multiplications and additions. */
double training_flops(enum operation operation, const void *args);

#endif
