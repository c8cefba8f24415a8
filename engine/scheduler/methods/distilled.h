/* Shared by schedulers of distilled models, which visit some of the timesteps that the model was
 * distilled on, whatever the spacing. */
#ifndef ENGINE_SCHEDULER_METHODS_DISTILLED_H
#define ENGINE_SCHEDULER_METHODS_DISTILLED_H

#include "engine/scheduler/class.h"

/* Fills out[0..steps), descending. ERROR_INVALID for more steps than the grid has, or for a grid
 * finer than the training's. */
bool distilled_timesteps(const struct scheduler_config *config, int steps, int *out,
    struct error *err) __attribute__((warn_unused_result));

#define DISTILLED_OPTIONS                                                                          \
    [OPTION_TIMESTEP_SPACING] = { .lacks = true }, [OPTION_STEPS_OFFSET] = { .lacks = true },      \
    [OPTION_BETA_START] = { true, 0.00085 }, [OPTION_BETA_END] = { true, 0.012 },                  \
    [OPTION_BETA_SCHEDULE] = { true, BETA_SCALED_LINEAR },                                         \
    [OPTION_ORIGINAL_INFERENCE_STEPS] = { true, 50 }, [OPTION_TIMESTEP_SCALING] = { true, 10 },    \
    [OPTION_RESCALE_BETAS_ZERO_SNR] = { true, false }, [OPTION_CLIP_SAMPLE] = { true, false },     \
    [OPTION_THRESHOLDING] = { true, false }

#endif
