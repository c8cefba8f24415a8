/* Euler's method in sigma-space (Karras et al., 2022, algorithm 2 without churn). The ancestral
 * form goes down to a level below the next one, then adds fresh noise to reach the next one. Its
 * last step draws noise with weight 0, as in diffusers. */
#include "engine/scheduler/sigmas.h"

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    const bool ancestral = config->kind == SCHEDULER_EULER_ANCESTRAL;
    struct sigma_run run;
    if (!sigma_run_init(&run, config, schedule, SIGMAS_SPACED, steps, err) ||
        !scheduler_plan_allocate(plan, steps, err))
        return false;
    plan->init_noise_sigma = sigma_run_init_noise(&run, config);
    for (int i = 0; i < steps; i++) {
        struct scheduler_evaluation *evaluation = &plan->evaluations[i];
        float sigma = run.sigmas[i];
        struct ancestral_sigmas next = { .down = run.sigmas[i + 1] };
        if (ancestral)
            next = ancestral_step(sigma, run.sigmas[i + 1]);
        sigma_see(evaluation, (float)run.timesteps[i], sigma);
        evaluation->draws_noise = ancestral;
        struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
        update->weights[TERM_SAMPLE] = 1;
        update->weights[TERM_NOISE] = next.up;
        sigma_add_derivative(update, config->values.prediction_type, sigma, next.down - sigma);
    }
    return true;
}

const struct scheduler_class scheduler_euler = {
    .info = {
        .name = "euler",
        .class_name = "EulerDiscreteScheduler",
        .display_name = "Euler",
        .description = "The plainest first-order method: no fresh noise, good from 20 steps on.",
        .aliases = { "Euler", "EulerDiscreteScheduler", "k_euler" },
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

const struct scheduler_class scheduler_euler_ancestral = {
    .info = {
        .name = "euler_ancestral",
        .class_name = "EulerAncestralDiscreteScheduler",
        .display_name = "Euler a",
        .description = "Euler with fresh noise at every step: the picture changes with the steps.",
        .aliases = { "Euler a", "EulerAncestral", "EulerAncestralDiscreteScheduler", "euler_a", "k_euler_a" },
    },
    .options = {
        SIGMA_SPACING_OPTION,
        SIGMA_SCHEDULE_OPTION_LIST(.not_filed = true),
        [OPTION_PREDICTION_TYPE] = { true, PREDICTION_EPSILON, EPSILON_OR_V },
        [OPTION_RESCALE_BETAS_ZERO_SNR] = { true, false },
    },
    .fill = fill,
};
