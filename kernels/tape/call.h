/* One call of an operation, kept: its arguments and its tensors, by value.
 *
 * The calls of a forward pass are those that the wrappers of compute.h handed over; those of the
 * backward pass are made of them (adjoint.c). Addresses in them are planned ones (plan.h)
 * until the tape has its memory. */
#ifndef KERNELS_TAPE_CALL_H
#define KERNELS_TAPE_CALL_H

#include "kernels/compute.h"
#include "kernels/tape/intervals.h"

#define CALL_MAX_TENSORS 10

union call_args {
#define MEMBER(name) struct name##_args name;
    ALL_OPERATIONS(MEMBER)
#undef MEMBER
};

struct call {
    enum operation operation;
    union call_args args; /* its tensors are those below */
    struct tensor tensors[CALL_MAX_TENSORS];
    int tensor_count;
    /* Owned; of low_rank and low_rank_backward: */
    struct low_rank_term *terms;
    struct low_rank_row *rows; /* all of them have the same terms */
    struct low_rank_gradient *gradients;
};

/* Copies the arguments of an operation. ERROR_UNSUPPORTED for one that a tape does not take. */
bool call_create(enum operation operation, const void *args, struct call **out, struct error *err)
    __attribute__((warn_unused_result));
void call_destroy(struct call *call); /* NULL is fine */

/* Calls its op_NAME. */
void call_run(const struct call *call, struct compute *c);

/* What a call of a forward pass writes, whole. */
const struct tensor *call_output(const struct call *call);
/* How many tensors it reads, and which; its output is among them if it adds to it. */
int call_inputs(const struct call *call, const struct tensor *inputs[CALL_MAX_TENSORS]);

static inline struct interval tensor_interval(const struct tensor *t) {
    const uintptr_t begin = (uintptr_t)t->data;
    return (struct interval){ begin, begin + tensor_bytes(t) };
}

static inline bool tensor_is_same(const struct tensor *a, const struct tensor *b) {
    return a && b && a->data == b->data && tensor_bytes(a) == tensor_bytes(b);
}

#endif
