/* The operations, listed once: those of a model, and those of training.
 *
 * These lists generate everything that follows from an operation's name: its member of struct
 * kernels (kernels.h), its op_NAME wrapper (compute.h), the declaration of each back end's entry,
 * its place in that back end's table, and the list that kcheck runs through. A name that is added
 * here and nowhere else fails to compile or to link until it has
 *  - struct NAME_args, with the formula, in kernels.h (for training: in backward.h);
 *  - NAME_is_right, the check of its arguments, in compute.c (compute_backward.c);
 *  - reference_NAME in kernels/reference/ and cuda_NAME in kernels/cuda/;
 *  - check_NAME in tests/kernels/kcheck/kcheck_*.c.
 * The CPU uses the reference's operation until kernels/cpu/ has its own (SIMD_OPERATIONS in
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
    X(blend)                                                                                       \
    X(convert)                                                                                     \
    X(noise)                                                                                       \
    X(low_rank)                                                                                    \
    X(geglu)

#define TRAINING_OPERATIONS(X)                                                                     \
    X(linear_backward)                                                                             \
    X(conv2d_backward)                                                                             \
    X(group_norm_backward)                                                                         \
    X(layer_norm_backward)                                                                         \
    X(attention_backward)                                                                          \
    X(embedding_backward)                                                                          \
    X(activation_backward)                                                                         \
    X(geglu_backward)                                                                              \
    X(concat_backward)                                                                             \
    X(low_rank_backward)                                                                           \
    X(dropout)                                                                                     \
    X(mse)                                                                                         \
    X(square_pieces)                                                                               \
    X(adamw)                                                                                       \
    X(lion)                                                                                        \
    X(prodigy_sums)                                                                                \
    X(prodigy)                                                                                     \
    X(adafactor)

#define ALL_OPERATIONS(X) OPERATIONS(X) TRAINING_OPERATIONS(X)

/* OPERATION_linear and so on. */
enum operation {
#define OPERATION(name) OPERATION_##name,
    ALL_OPERATIONS(OPERATION)
#undef OPERATION
};

/* The bit of an operation in a mask. */
#define OPERATION_BIT(name) (UINT64_C(1) << OPERATION_##name)

#endif
