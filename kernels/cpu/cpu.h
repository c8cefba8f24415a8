/* For use inside the CPU back end: the parts that kernels/cpu/cpu.c puts together.
 *
 * layers.c does linear and conv2d. The rest is written once with the compiler's vector extensions
 * (simd.h) and compiled once per instruction set. level.h says which code runs where.
 */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/backward.h"

/* Enters linear and conv2d (layers.c) into the table. */
void layers_register(struct kernels *table);

/* The operations of kernels/operations.h that are written with vectors. */
#define SIMD_OPERATIONS(X)                                                                         \
    X(group_norm)                                                                                  \
    X(layer_norm)                                                                                  \
    X(attention)                                                                                   \
    X(embedding)                                                                                   \
    X(add)                                                                                         \
    X(convert)                                                                                     \
    X(low_rank)                                                                                    \
    X(attention_backward)                                                                          \
    X(group_norm_backward)                                                                         \
    X(layer_norm_backward)                                                                         \
    X(activation_backward)                                                                         \
    X(geglu_backward)                                                                              \
    X(concat_backward)                                                                             \
    X(square_pieces)                                                                               \
    X(adamw)                                                                                       \
    X(lion)                                                                                        \
    X(prodigy_sums)                                                                                \
    X(prodigy)                                                                                     \
    X(adafactor)                                                                                   \
    X(low_rank_backward)

/* The functions that are compiled once per instruction set. The entries of the table use every
 * OpenMP thread. */
struct simd {
    const char *name;
    /* y[i] = exp(x[i]) and so on: the building blocks, exposed for the accuracy test. */
    void (*exp)(const float *x, float *y, int64_t n);
    void (*exp2)(const float *x, float *y, int64_t n);
    void (*erf)(const float *x, float *y, int64_t n);
#define ENTRY(operation) bool (*operation)(const struct operation##_args *args, struct error *err);
    SIMD_OPERATIONS(ENTRY)
#undef ENTRY
};

#endif
