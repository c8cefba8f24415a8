/* A copy of one call of an operation: its arguments and its tensors, by value.
 *
 * The wrappers of compute.h hand over the calls of a forward pass. The calls of the backward pass
 * are made from them (adjoint.c). The addresses in all these calls are planned addresses (plan.h)
 * until the tape has its memory.
 */
#ifndef KERNELS_TAPE_CALL_H
#define KERNELS_TAPE_CALL_H

#include "kernels/compute/compute.h"
#include "kernels/tape/intervals.h"

#define CALL_MAX_TENSORS 10

union call_args {
#define MEMBER(name) struct name##_args name;
    ALL_OPERATIONS(MEMBER)
#undef MEMBER
};

struct call {
    enum operation operation;
    union call_args args; /* its pointers point to the tensors below */
    struct tensor tensors[CALL_MAX_TENSORS];
    int tensor_count;
    /* Owned; for low_rank and low_rank_backward: */
    struct low_rank_term *terms;
    struct low_rank_row *rows; /* all of them have the same terms */
    struct low_rank_gradient *gradients;
};

/* Copies the arguments of an operation. ERROR_UNSUPPORTED if a tape does not support the
 * operation. */
bool call_create(enum operation operation, const void *args, struct call **out, struct error *err)
    __attribute__((warn_unused_result));
void call_destroy(struct call *call); /* NULL is fine */

/* Calls the operation's op_NAME. */
void call_run(const struct call *call, struct compute *c);

/* Returns the tensor that a call of a forward pass writes. The call writes all of it. */
const struct tensor *call_output(const struct call *call);
/* Lists the tensors that a call of a forward pass reads and returns their number. The output is
 * among them if the call adds to it. */
int call_inputs(const struct call *call, const struct tensor *inputs[CALL_MAX_TENSORS]);

static inline struct interval tensor_interval(const struct tensor *t) {
    const uintptr_t begin = (uintptr_t)t->data;
    return (struct interval){ begin, begin + tensor_bytes(t) };
}

static inline bool tensor_is_same(const struct tensor *a, const struct tensor *b) {
    return a && b && a->data == b->data && tensor_bytes(a) == tensor_bytes(b);
}

#endif
