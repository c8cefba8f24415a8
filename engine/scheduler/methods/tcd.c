/* Strategic stochastic sampling of trajectory consistency models (Zheng et al., 2024): each step
 * goes down to the share 1 - eta of the next timestep and, except the last, noises up to it. */
#include "base/limits.h"
#include "engine/scheduler/methods/distilled.h"

#include <math.h>

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    const struct scheduler_values *values = &config->values;
    const float *alphas_cumprod = schedule->alphas_cumprod;
    int timesteps[STEPS_MAX];
    if (!distilled_timesteps(config, steps, timesteps, err) ||
        !scheduler_plan_allocate(plan, steps, err))
        return false;
    for (int i = 0; i < steps; i++) {
        bool noised = values->eta > 0 && i < steps - 1;
        int prev = i < steps - 1 ? timesteps[i + 1] : 0;
        int s = (int)floorf((float)(1 - values->eta) * (float)prev);
        float alpha_prod_t = alphas_cumprod[timesteps[i]], alpha_prod_s = alphas_cumprod[s];
        float kept = noised ? alphas_cumprod[prev] / alpha_prod_s : 1;
        float root_alpha = sqrtf(alpha_prod_s), root_beta = sqrtf(1.0f - alpha_prod_s);
        struct prediction_weights p = prediction_weights(values->prediction_type, alpha_prod_t);

        struct scheduler_evaluation *evaluation = &plan->evaluations[i];
        noise_schedule_see(schedule, evaluation, timesteps[i]);
        evaluation->draws_noise = noised;
        struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
        update->weights[TERM_SAMPLE] = sqrtf(kept) *
                                       (root_alpha * p.x0_sample + root_beta * p.noise_sample);
        update->weights[TERM_OUTPUT] = sqrtf(kept) *
                                       (root_alpha * p.x0_output + root_beta * p.noise_output);
        update->weights[TERM_NOISE] = sqrtf(1 - kept);
    }
    return true;
}

static const char *const aliases[] = { "TCD", "TCDScheduler", NULL };

const struct scheduler_class scheduler_tcd = {
    .info = {
        .name = "tcd",
        .class_name = "TCDScheduler",
        .display_name = "TCD",
        .description = "For models and LoRAs distilled to trajectory consistency: few steps, eta 0.3.",
        .aliases = aliases,
    },
    .options = { DISTILLED_OPTIONS, [OPTION_ETA] = { true, 0 } },
    .fill = fill,
};
