/* An exponential moving average of the parameters, as in diffusers' EMAModel:
 *   average -= (1 - decay) (average - parameter)
 * with a decay that rises with the optimizer's steps. In host memory (diffusers' offload_ema). */
#ifndef TRAIN_OPTIMIZER_EMA_H
#define TRAIN_OPTIMIZER_EMA_H

#include <stdbool.h>
#include <stdint.h>

/* The options have diffusers' names and meanings. Zeroed members are not the defaults. */
struct ema_options {
    double decay, min_decay;
    int64_t update_after_step;
    bool use_ema_warmup; /* decay is 1 - (1 + s / inv_gamma)^-power; false: (1 + s) / (10 + s) */
    double inv_gamma, power;
};

/* Returns the decay at optimizer step `step`, from 1. */
double ema_decay(const struct ema_options *options, int64_t step);

/* Updates `count` values for one step. */
void ema_update(double decay, const float *parameters, float *average, int64_t count);

#endif
