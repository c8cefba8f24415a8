/* Shared by DPM2 and its ancestral form. */
#ifndef ENGINE_SCHEDULER_METHODS_DPM2_H
#define ENGINE_SCHEDULER_METHODS_DPM2_H

#include "engine/scheduler/sigmas.h"

/* sqrt(a b), computed as torch's lerp of the logarithms in float32. */
float log_middle(float a, float b);

/* sigma_run_init, with Karras' timesteps rounded as in these two classes of diffusers. The caller
 * passes the timesteps that the evaluations see to sigmas_begin_once. */
bool dpm2_run_init(struct sigma_run *run, const struct scheduler_config *config,
    const struct noise_schedule *schedule, int steps, struct error *err)
    __attribute__((warn_unused_result));

/* Makes the evaluation see a sample of the middle level; for add_noise its level is `next`, as in
 * diffusers. Returns its timestep. */
double dpm2_see_middle(struct scheduler_evaluation *evaluation,
    const struct noise_schedule *schedule, float middle, float next);

/* The update to the middle of a step; a middle of 0 ends the run. */
void dpm2_add_first(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    float sigma, float middle);
/* The update over the whole step: by dt from its start, with the derivative at the middle. */
struct scheduler_update *dpm2_add_second(struct scheduler_evaluation *evaluation,
    enum prediction_type prediction, float middle, float dt);

#define DPM2_OPTIONS                                                                               \
    SIGMA_SPACING_OPTION, SIGMA_SCHEDULE_OPTIONS,                                                  \
        [OPTION_BETA_START] = { true, 0.00085 }, [OPTION_BETA_END] = { true, 0.012 },              \
        [OPTION_PREDICTION_TYPE] = { true, PREDICTION_EPSILON, EPSILON_OR_V }

#endif
