/* The operations, listed once.
 *
 * What follows from an operation's name is made from this list: its member of struct kernels
 * (kernels.h), its op_NAME wrapper (compute.h), the declaration of each back end's entry and its
 * place in that back end's table, and what kcheck goes through. A name that is added here and
 * nowhere else fails to compile or to link until it has
 *  - struct NAME_args, with the formula, in kernels.h;
 *  - NAME_is_right, the check of its arguments, in compute.c;
 *  - reference_NAME in kernels/reference/ and cuda_NAME in kernels/cuda/;
 *  - check_NAME in tests/kernels/kcheck_*.c.
 * On the CPU an operation is the reference's until kernels/cpu/ has one (SIMD_OPERATIONS in
 * kernels/cpu/cpu.h).
 */
#ifndef KERNELS_OPERATIONS_H
#define KERNELS_OPERATIONS_H

#define OPERATIONS(X)                                                                              \
    X(linear)                                                                                      \
    X(conv2d)                                                                                      \
    X(group_norm)                                                                                  \
    X(layer_norm)                                                                                  \
    X(attention)                                                                                   \
    X(embedding)                                                                                   \
    X(timestep_embedding)                                                                          \
    X(add)                                                                                         \
    X(concat)                                                                                      \
    X(combine)                                                                                     \
    X(convert)                                                                                     \
    X(noise)                                                                                       \
    X(low_rank)                                                                                    \
    X(geglu)

/* OPERATION_linear and so on. */
enum operation {
#define OPERATION(name) OPERATION_##name,
    OPERATIONS(OPERATION)
#undef OPERATION
};

#endif
