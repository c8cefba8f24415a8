/* AdamW with its two states in 8 bits each, as in bitsandbytes. Values are stored in blocks of 256:
 * the largest magnitude in f32, and each value as an index into a map of 256 numbers, which lie
 * closer together the smaller they are (Dettmers et al. 2021, "8-bit Optimizers via Block-wise
 * Quantization"). Takes a quarter of the memory of f32 states.
 *
 *   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g g;  p *= 1 - lr weight_decay;
 *   p -= lr / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
 * computed in f32; m and v are read from and written to 8 bits. Host memory. */
#ifndef TRAIN_OPTIMIZER_ADAMW_8BIT_H
#define TRAIN_OPTIMIZER_ADAMW_8BIT_H

#include "base/error.h"

#include <stdint.h>

#define ADAMW_8BIT_BLOCK 256

/* The states, borrowed; zeros at the beginning. */
struct adamw_8bit {
    uint8_t *m, *v;               /* 256 per block, indices into the signed and unsigned map */
    float *m_largest, *v_largest; /* one per block */
};

struct adamw_8bit_step {
    double lr, beta1, beta2, eps, weight_decay, gradient_scale;
    int64_t step;          /* from 1 */
    double gradient_limit; /* gradients are clipped to +-limit; 0: no clipping */
};
/* Steps `count` parameters, whose states begin at block `block`. */
void adamw_8bit_step(const struct adamw_8bit *states, int64_t block, float *parameters,
    const float *gradients, int64_t count, const struct adamw_8bit_step *step);

/* Fills in a map, ascending, as bitsandbytes' create_dynamic_map does. */
void adamw_8bit_map(bool is_signed, float map[256]);

#endif
