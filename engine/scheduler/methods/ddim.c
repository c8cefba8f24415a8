/* DDIM: from deterministic (eta 0) to ancestral (eta 1) (Song et al., 2021, formulas 12 and 16).
 *
 * As in diffusers, a step goes to t - T / n, not to the next timestep of the list. With trailing
 * and linspace spacing these differ. */
#include "base/limits.h"
#include "engine/scheduler/class.h"

#include <math.h>

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    int timesteps[STEPS_MAX];
    if (!noise_schedule_timesteps(config, steps, timesteps, err) ||
        !scheduler_plan_allocate(plan, steps, err))
        return false;
    const struct scheduler_values *values = &config->values;
    const float *alphas_cumprod = schedule->alphas_cumprod;
    float final_alpha = values->set_alpha_to_one ? 1.0f : alphas_cumprod[0];
    for (int i = 0; i < steps; i++) {
        int t = timesteps[i], prev = t - schedule->num_train_timesteps / steps;
        float alpha_prod_t = alphas_cumprod[t];
        float alpha_prod_prev = prev >= 0 ? alphas_cumprod[prev] : final_alpha;
        float variance = (1.0f - alpha_prod_prev) / (1.0f - alpha_prod_t) *
                         (1.0f - alpha_prod_t / alpha_prod_prev);
        float std = (float)values->eta * sqrtf(variance);
        /* Is 0 if eta is 1 and alpha_prod_t is 0; fmaxf prevents rounding errors from making it
         * NaN. */
        float direction = sqrtf(fmaxf(1.0f - alpha_prod_prev - std * std, 0.0f));
        float root_prev = sqrtf(alpha_prod_prev);
        struct prediction_weights p = prediction_weights(values->prediction_type, alpha_prod_t);

        struct scheduler_evaluation *evaluation = &plan->evaluations[i];
        noise_schedule_see(schedule, evaluation, t);
        evaluation->draws_noise = values->eta > 0;
        struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
        update->weights[TERM_SAMPLE] = root_prev * p.x0_sample + direction * p.noise_sample;
        update->weights[TERM_OUTPUT] = root_prev * p.x0_output + direction * p.noise_output;
        update->weights[TERM_NOISE] = std;
    }
    return true;
}

const struct scheduler_class scheduler_ddim = {
    .info = {
        .name = "ddim",
        .class_name = "DDIMScheduler",
        .display_name = "DDIM",
        .description = "Deterministic at eta 0, ancestral at eta 1; a seed keeps its composition.",
        .aliases = { "DDIM", "DDIMScheduler" },
    },
    .options = {
        WHOLE_SPACING_OPTION,
        [OPTION_ETA] = { true, 0 },
        [OPTION_SET_ALPHA_TO_ONE] = { true, true },
        [OPTION_RESCALE_BETAS_ZERO_SNR] = { true, false },
        [OPTION_CLIP_SAMPLE] = { true, true },
        [OPTION_THRESHOLDING] = { true, false },
    },
    .fill = fill,
};
