/* DDPM: ancestral sampling with the posterior of the forward process (Ho et al., 2020, formula 7).
 */
#include "base/limits.h"
#include "engine/scheduler/class.h"

#include <math.h>

static float noise_weight(
    enum variance_type type, float beta_prod_t, float beta_prod_prev, float current_beta) {
    float variance = fmaxf(beta_prod_prev / beta_prod_t * current_beta, 1e-20f);
    switch (type) {
    case VARIANCE_FIXED_SMALL_LOG:
        return expf(0.5f * logf(variance));
    case VARIANCE_FIXED_LARGE:
        return sqrtf(current_beta);
    default:
        return sqrtf(variance);
    }
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    int timesteps[STEPS_MAX];
    if (!noise_schedule_timesteps(config, steps, timesteps, err) ||
        !scheduler_plan_allocate(plan, steps, err))
        return false;
    for (int i = 0; i < steps; i++) {
        int t = timesteps[i];
        float alpha_prod_t = schedule->alphas_cumprod[t];
        float alpha_prod_prev = i + 1 < steps ? schedule->alphas_cumprod[timesteps[i + 1]] : 1.0f;
        float beta_prod_t = 1.0f - alpha_prod_t, beta_prod_prev = 1.0f - alpha_prod_prev;
        float current_alpha = alpha_prod_t / alpha_prod_prev;
        float current_beta = 1.0f - current_alpha;
        float x0_weight = sqrtf(alpha_prod_prev) * current_beta / beta_prod_t;
        float sample_weight = sqrtf(current_alpha) * beta_prod_prev / beta_prod_t;
        struct prediction_weights p = prediction_weights(
            config->values.prediction_type, alpha_prod_t);

        struct scheduler_evaluation *evaluation = &plan->evaluations[i];
        noise_schedule_see(schedule, evaluation, t);
        evaluation->draws_noise = t > 0;
        struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
        update->weights[TERM_SAMPLE] = x0_weight * p.x0_sample + sample_weight;
        update->weights[TERM_OUTPUT] = x0_weight * p.x0_output;
        if (t > 0)
            update->weights[TERM_NOISE] = noise_weight(
                config->values.variance_type, beta_prod_t, beta_prod_prev, current_beta);
    }
    return true;
}

const struct scheduler_class scheduler_ddpm = {
    .info = {
        .name = "ddpm",
        .class_name = "DDPMScheduler",
        .display_name = "DDPM",
        .description = "The original ancestral sampler: fresh noise at every step, needs many steps.",
        .aliases = { "DDPM", "DDPMScheduler" },
    },
    .options = {
        WHOLE_SPACING_OPTION,
        [OPTION_RESCALE_BETAS_ZERO_SNR] = { true, false },
        [OPTION_VARIANCE_TYPE] = { true, VARIANCE_FIXED_SMALL },
        [OPTION_CLIP_SAMPLE] = { true, true },
        [OPTION_THRESHOLDING] = { true, false },
    },
    .fill = fill,
};
