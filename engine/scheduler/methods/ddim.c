/* DDIM: from deterministic (eta 0) to ancestral (eta 1) (Song et al., 2021, formulas 12 and 16).
 *
 * As in diffusers, a step goes to t - T / n, not to the next timestep of the list. With trailing
 * and linspace spacing these differ.
 *
 * DDIM CFG++ (Chung et al., 2024, "CFG++: Manifold-constrained Classifier Free Guidance") predicts
 * x0 with guidance, and adds the noise that is predicted without the prompt. Its guidance is from 0
 * to 1. As in AUTOMATIC1111, that is guidance_scale / 12.5. */
#include "base/limits.h"
#include "engine/scheduler/class.h"

#include <math.h>

#define CFGPP_FACTOR (1 / 12.5f)

/* noise_term: whose noise a step adds, TERM_OUTPUT or TERM_UNCONDITIONAL. */
static bool fill_steps(enum scheduler_term noise_term, const struct scheduler_config *config,
    const struct noise_schedule *schedule, int steps, struct scheduler_plan *plan,
    struct error *err) {
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
        const double x0 = root_prev * p.x0_output, noise = direction * p.noise_output;
        update->weights[TERM_SAMPLE] = root_prev * p.x0_sample + direction * p.noise_sample;
        update->weights[TERM_OUTPUT] = x0;
        update->weights[noise_term] = noise_term == TERM_OUTPUT ? x0 + noise : noise;
        update->weights[TERM_NOISE] = std;
    }
    return true;
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    return fill_steps(TERM_OUTPUT, config, schedule, steps, plan, err);
}

static bool fill_cfgpp(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    plan->guidance_factor = CFGPP_FACTOR;
    plan->must_guide = true;
    return fill_steps(TERM_UNCONDITIONAL, config, schedule, steps, plan, err);
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

const struct scheduler_class scheduler_ddim_cfgpp = {
    .info = {
        .name = "ddim_cfgpp",
        .class_name = "ddim_cfgpp",
        .display_name = "DDIM CFG++",
        .description = "DDIM that adds the noise predicted without the prompt; guidance from 0 to 12.5.",
        .aliases = { "DDIM CFG++" },
    },
    .options = {
        WHOLE_SPACING_OPTION,
        [OPTION_ETA] = { true, 0 },
        [OPTION_SET_ALPHA_TO_ONE] = { true, true },
        [OPTION_CLIP_SAMPLE] = { true, true },
        [OPTION_THRESHOLDING] = { true, false },
    },
    .fill = fill_cfgpp,
};
