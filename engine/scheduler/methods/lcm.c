/* Multistep sampling of latent consistency models (Luo et al., 2023): each step predicts x0 and,
 * except the last, noises it again. */
#include "base/limits.h"
#include "engine/scheduler/methods/distilled.h"

#include <math.h>

#define SIGMA_DATA 0.5f

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    int timesteps[STEPS_MAX];
    if (!distilled_timesteps(config, steps, timesteps, err) ||
        !scheduler_plan_allocate(plan, steps, err))
        return false;
    for (int i = 0; i < steps; i++) {
        bool last = i == steps - 1;
        float alpha_prod_t = schedule->alphas_cumprod[timesteps[i]];
        float alpha_prod_prev = last ? 1.0f : schedule->alphas_cumprod[timesteps[i + 1]];
        float scaled = (float)timesteps[i] * (float)config->values.timestep_scaling;
        float squares = scaled * scaled + SIGMA_DATA * SIGMA_DATA;
        float c_skip = SIGMA_DATA * SIGMA_DATA / squares, c_out = scaled / sqrtf(squares);
        struct prediction_weights p = prediction_weights(
            config->values.prediction_type, alpha_prod_t);

        struct scheduler_evaluation *evaluation = &plan->evaluations[i];
        noise_schedule_see(schedule, evaluation, timesteps[i]);
        evaluation->draws_noise = !last;
        struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
        update->weights[TERM_SAMPLE] = sqrtf(alpha_prod_prev) * (c_out * p.x0_sample + c_skip);
        update->weights[TERM_OUTPUT] = sqrtf(alpha_prod_prev) * c_out * p.x0_output;
        update->weights[TERM_NOISE] = sqrtf(1.0f - alpha_prod_prev);
    }
    return true;
}

static const char *const aliases[] = { "LCM", "LCMScheduler", NULL };

const struct scheduler_class scheduler_lcm = {
    .info = {
        .name = "lcm",
        .class_name = "LCMScheduler",
        .display_name = "LCM",
        .description = "For models and LoRAs distilled to latent consistency: 1 to 8 steps, fresh noise.",
        .aliases = aliases,
    },
    .options = { DISTILLED_OPTIONS },
    .fill = fill,
};
