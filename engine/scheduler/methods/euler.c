/* Euler's method in sigma-space (Karras et al., 2022, algorithm 2 without churn). */
#include "engine/scheduler/sigmas.h"

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    struct sigma_run run;
    if (!sigma_run_init(&run, config, schedule, SIGMAS_SPACED, steps, err) ||
        !scheduler_plan_allocate(plan, steps, err))
        return false;
    plan->init_noise_sigma = sigma_run_init_noise(&run, config);
    for (int i = 0; i < steps; i++) {
        struct scheduler_evaluation *evaluation = &plan->evaluations[i];
        sigma_see(evaluation, (float)run.timesteps[i], run.sigmas[i]);
        struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
        update->weights[TERM_SAMPLE] = 1;
        sigma_add_derivative(update, config->values.prediction_type, run.sigmas[i],
            run.sigmas[i + 1] - run.sigmas[i]);
    }
    return true;
}

static const char *const aliases[] = { "Euler", "EulerDiscreteScheduler", "k_euler", NULL };

const struct scheduler_class scheduler_euler = {
    .info = {
        .name = "euler",
        .class_name = "EulerDiscreteScheduler",
        .display_name = "Euler",
        .description = "The plainest first-order method: no fresh noise, good from 20 steps on.",
        .aliases = aliases,
    },
    .options = {
        SIGMA_SPACING_OPTION,
        SIGMA_SCHEDULE_OPTIONS,
        [OPTION_FINAL_SIGMAS_TYPE] = { true, FINAL_SIGMA_ZERO },
        [OPTION_RESCALE_BETAS_ZERO_SNR] = { true, false },
        [OPTION_INTERPOLATION_TYPE] = { true, INTERPOLATION_LINEAR },
        [OPTION_TIMESTEP_TYPE] = { true, TIMESTEP_DISCRETE, 1 << TIMESTEP_DISCRETE },
    },
    .fill = fill,
};
