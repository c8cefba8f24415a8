/* Attention in bf16, by pairs of elements. Compiled for AVX512_BF16 and, as a twin, for every
 * processor. */
#ifndef KERNELS_CPU_ATTENTION_ATTENTION_PAIRS_H
#define KERNELS_CPU_ATTENTION_ATTENTION_PAIRS_H

#include "kernels/kernels.h"

#if defined(__AVX512BF16__)
#define PAIRS(name) name##_pairs
#else
#define PAIRS(name) name##_pairs_twin
#endif

/* Whether the entries below can compute this call: bf16, a positive scale, no causal mask. */
static inline bool attention_pairs_takes(const struct attention_args *args) {
    return args->y->dtype == DTYPE_BF16 && args->scale > 0 && !args->causal;
}

/* The table's entry for attention (kernels/kernels.h); the twin is plain C, for tests. */
bool attention_pairs(const struct attention_args *args, struct error *err);
bool attention_pairs_twin(const struct attention_args *args, struct error *err);

#endif
