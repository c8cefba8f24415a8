/* What DPM2 and its ancestral form share. */
#ifndef ENGINE_SCHEDULER_DPM2_H
#define ENGINE_SCHEDULER_DPM2_H

#include "engine/scheduler/sigmas.h"

/* sqrt(a b), as torch's lerp of the logarithms in float32. */
float log_middle(float a, float b);

/* sigma_run_init, with Karras' timesteps rounded, as diffusers does in these two classes. What the
 * evaluations see is for sigmas_begin_once. */
bool dpm2_run_init(struct sigma_run *run, const struct scheduler_config *config,
    const struct noise_schedule *schedule, int steps, struct error *err)
    __attribute__((warn_unused_result));

/* The evaluation sees a sample of the middle level; add_noise has the level `next` for it, as in
 * diffusers. Returns its timestep. */
double dpm2_see_middle(struct scheduler_evaluation *evaluation,
    const struct noise_schedule *schedule, float middle, float next);

/* To the middle of a step; a middle of 0 ends the run. */
void dpm2_add_first(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    float sigma, float middle);
/* The whole step, by dt from where it started, with the derivative of the middle. */
struct scheduler_update *dpm2_add_second(struct scheduler_evaluation *evaluation,
    enum prediction_type prediction, float middle, float dt);

#define DPM2_OPTIONS                                                                               \
    SIGMA_SPACING_OPTION, SIGMA_SCHEDULE_OPTIONS,                                                  \
        [OPTION_BETA_START] = { true, 0.00085 }, [OPTION_BETA_END] = { true, 0.012 },              \
        [OPTION_PREDICTION_TYPE] = { true, PREDICTION_EPSILON, EPSILON_OR_V }

#endif
