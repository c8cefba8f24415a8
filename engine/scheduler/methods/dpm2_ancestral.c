/* DPM2 to a level below the next one, then fresh noise up to it. */
#include "engine/scheduler/methods/dpm2.h"

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    enum prediction_type prediction = config->values.prediction_type;
    struct sigma_run run;
    double seen[2 * STEPS_MAX];
    if (!dpm2_run_init(&run, config, schedule, steps, err) ||
        !scheduler_plan_allocate(plan, 2 * steps - 1, err))
        return false;
    plan->init_noise_sigma = sigma_run_init_noise(&run, config);
    for (int i = 0; i < steps; i++) {
        struct scheduler_evaluation *evaluation = &plan->evaluations[2 * i];
        float sigma = run.sigmas[i];
        struct ancestral_sigmas next = ancestral_step(sigma, run.sigmas[i + 1]);
        float middle = i + 1 < steps ? log_middle(sigma, next.down) : 0;
        sigma_see(evaluation, (float)run.timesteps[i], sigma);
        seen[2 * i] = run.timesteps[i];
        dpm2_add_first(evaluation, prediction, sigma, middle);
        if (i + 1 < steps) {
            seen[2 * i + 1] = dpm2_see_middle(++evaluation, schedule, middle, run.sigmas[i + 1]);
            evaluation->draws_noise = true;
            dpm2_add_second(evaluation, prediction, middle, next.down - sigma)
                ->weights[TERM_NOISE] = next.up;
        }
    }
    return sigmas_begin_once(seen, plan->count, steps, err);
}

static const char *const aliases[] = { "DPM2 a", "KDPM2AncestralDiscreteScheduler", "dpm2_a",
    "k_dpm_2_a", NULL };

const struct scheduler_class scheduler_dpm2_ancestral = {
    .info = {
        .name = "dpm2_ancestral",
        .class_name = "KDPM2AncestralDiscreteScheduler",
        .display_name = "DPM2 a",
        .description = "DPM2 with fresh noise at every step but the last: two evaluations a step.",
        .aliases = aliases,
    },
    .options = { DPM2_OPTIONS },
    .fill = fill,
    .order = 2,
};
