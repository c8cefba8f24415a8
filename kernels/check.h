/* The checks of arguments by the wrappers of kernels/compute/compute.c. Each function returns true
 * if the argument is right. Otherwise it sets the sticky error, which names the operation, the
 * argument and the shapes, and returns false. */
#ifndef KERNELS_CHECK_H
#define KERNELS_CHECK_H

#include "kernels/compute/compute.h"

/* The operation whose arguments are checked. */
struct check {
    struct compute *c;
    const char *op;
};

bool check_fail(const struct check *k, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* `t` is present, has memory on the table's device, and has rank_min to rank_max dimensions of at
 * least 1. */
bool check_tensor(
    const struct check *k, const char *name, const struct tensor *t, int rank_min, int rank_max);
/* Checks what check_tensor checks, and that the dtype is f32 or bf16, or f16 if the table takes f16
 * weights. */
bool check_activation(
    const struct check *k, const char *name, const struct tensor *t, int rank_min, int rank_max);
/* `t` has `dtype`. `like_name` names the tensor that the dtype comes from, or is NULL if the
 * operation fixes it. */
bool check_dtype(const struct check *k, const char *name, const struct tensor *t, enum dtype dtype,
    const char *like_name);
/* `t` has the shape and dtype of `like`. */
bool check_like(const struct check *k, const char *name, const struct tensor *t,
    const char *like_name, const struct tensor *like);
/* `t` has the shape and dtype of `want`, which follow from the tensor `from`. */
bool check_shape(const struct check *k, const char *name, const struct tensor *t,
    const struct tensor *want, const char *from_name, const struct tensor *from);
/* `t` has as many rows as `from`, each with `channels` channels from `offset` on. */
bool check_row_add(const struct check *k, const char *name, const struct tensor *t, int64_t offset,
    int64_t channels, const char *from_name, const struct tensor *from);
/* `y` and `x` do not overlap in memory; with `may_be_same` they may be the same memory. `x` may be
 * NULL. */
bool check_apart(const struct check *k, const struct tensor *y, const char *name,
    const struct tensor *x, bool may_be_same);
/* check_apart for an output with a name other than y. */
bool check_output_apart(const struct check *k, const char *output_name, const struct tensor *output,
    const char *name, const struct tensor *x, bool may_be_same);

bool check_activation_kind(const struct check *k, enum activation activation);
/* The weight is present, packed for this table, and a convolution or a linear layer as `is_conv`
 * says. */
bool check_weight(const struct check *k, const struct packed *weight, bool is_conv);
/* y has the shape of a convolution of x to n channels, in `dtype`, and does not overlap x. */
bool check_conv_output(const struct check *k, enum conv_kind kind, const struct tensor *x,
    int64_t n, enum dtype dtype, const struct tensor *y);
/* The term fits an output of `channels` channels. */
bool check_term(const struct check *k, const struct low_rank_term *t, int64_t channels);

/* Checks the arguments of op_attention; the check of its backward uses this too. */
bool attention_is_right(const struct check *k, const struct attention_args *a);

/* Declares bool NAME_is_right(k, args) for each operation of training (compute_backward.c). */
#define CHECK(name) bool name##_is_right(const struct check *k, const struct name##_args *a);
TRAINING_OPERATIONS(CHECK)
#undef CHECK

/* Returns the multiplications and additions that struct compute counts for a call of a training
 * operation. */
double training_flops(enum operation operation, const void *args);

#endif
