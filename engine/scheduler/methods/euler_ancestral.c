/* Euler's method to a level below the next one, then fresh noise up to it. The last step draws
 * noise with weight 0, as in diffusers. */
#include "engine/scheduler/sigmas.h"

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    struct sigma_run run;
    if (!sigma_run_init(&run, config, schedule, SIGMAS_SPACED, steps, err) ||
        !scheduler_plan_allocate(plan, steps, err))
        return false;
    plan->init_noise_sigma = sigma_run_init_noise(&run, config);
    for (int i = 0; i < steps; i++) {
        float sigma = run.sigmas[i];
        struct ancestral_sigmas next = ancestral_step(sigma, run.sigmas[i + 1]);
        struct scheduler_evaluation *evaluation = &plan->evaluations[i];
        sigma_see(evaluation, (float)run.timesteps[i], sigma);
        evaluation->draws_noise = true;
        struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
        update->weights[TERM_SAMPLE] = 1;
        update->weights[TERM_NOISE] = next.up;
        sigma_add_derivative(update, config->values.prediction_type, sigma, next.down - sigma);
    }
    return true;
}

static const char *const aliases[] = { "Euler a", "EulerAncestral",
    "EulerAncestralDiscreteScheduler", "euler_a", "k_euler_a", NULL };

const struct scheduler_class scheduler_euler_ancestral = {
    .info = {
        .name = "euler_ancestral",
        .class_name = "EulerAncestralDiscreteScheduler",
        .display_name = "Euler a",
        .description = "Euler with fresh noise at every step: the picture changes with the steps.",
        .aliases = aliases,
    },
    .options = {
        SIGMA_SPACING_OPTION,
        SIGMA_SCHEDULE_OPTION_LIST(.not_filed = true),
        [OPTION_PREDICTION_TYPE] = { true, PREDICTION_EPSILON, EPSILON_OR_V },
        [OPTION_RESCALE_BETAS_ZERO_SNR] = { true, false },
    },
    .fill = fill,
};
