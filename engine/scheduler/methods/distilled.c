/* Schedulers of distilled models. They use only timesteps on which the model was distilled, and
 * have no timestep_spacing. */
#include "base/limits.h"
#include "engine/scheduler/class.h"

#include <math.h>
#include <stdio.h>

#define DISTILLED_OPTIONS                                                                          \
    [OPTION_TIMESTEP_SPACING] = { .lacks = true }, [OPTION_STEPS_OFFSET] = { .lacks = true },      \
    [OPTION_BETA_START] = { true, 0.00085 }, [OPTION_BETA_END] = { true, 0.012 },                  \
    [OPTION_BETA_SCHEDULE] = { true, BETA_SCALED_LINEAR },                                         \
    [OPTION_ORIGINAL_INFERENCE_STEPS] = { true, 50 }, [OPTION_TIMESTEP_SCALING] = { true, 10 },    \
    [OPTION_RESCALE_BETAS_ZERO_SNR] = { true, false }, [OPTION_CLIP_SAMPLE] = { true, false },     \
    [OPTION_THRESHOLDING] = { true, false }

/* Fills out[0..steps), descending. ERROR_INVALID for more steps than the grid has, or for a grid
 * finer than the training's. */
static bool distilled_timesteps(
    const struct scheduler_config *config, int steps, int *out, struct error *err) {
    int total = config->values.num_train_timesteps;
    int grid = config->values.original_inference_steps;
    if (grid > total) {
        char value[16];
        snprintf(value, sizeof(value), "%d", grid);
        return error_field(err, "scheduler.original_inference_steps", value,
            "1 to %d, the model's training timesteps", total);
    }
    if (steps > grid)
        return scheduler_refuse_steps(
            err, steps, "1 to %d, which original_inference_steps is", grid);
    double stride = (double)grid / steps;
    for (int i = 0; i < steps; i++)
        out[i] = (grid - (int)floor(i * stride)) * (total / grid) - 1;
    return true;
}

/* Multistep sampling of latent consistency models (Luo et al., 2023): each step predicts x0 and,
 * except the last, noises it again. */
#define SIGMA_DATA 0.5f

static bool fill_lcm(const struct scheduler_config *config, const struct noise_schedule *schedule,
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

const struct scheduler_class scheduler_lcm = {
    .info = {
        .name = "lcm",
        .class_name = "LCMScheduler",
        .display_name = "LCM",
        .description = "For models and LoRAs distilled to latent consistency: 1 to 8 steps, fresh noise.",
        .aliases = { "LCM", "LCMScheduler" },
    },
    .options = { DISTILLED_OPTIONS },
    .fill = fill_lcm,
};

/* Strategic stochastic sampling of trajectory consistency models (Zheng et al., 2024). Each step
 * goes down to 1 - eta times the next timestep. Except in the last step, noise then raises the
 * sample to the next timestep. */
static bool fill_tcd(const struct scheduler_config *config, const struct noise_schedule *schedule,
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

const struct scheduler_class scheduler_tcd = {
    .info = {
        .name = "tcd",
        .class_name = "TCDScheduler",
        .display_name = "TCD",
        .description = "For models and LoRAs distilled to trajectory consistency: few steps, eta 0.3.",
        .aliases = { "TCD", "TCDScheduler" },
    },
    .options = { DISTILLED_OPTIONS, [OPTION_ETA] = { true, 0 } },
    .fill = fill_tcd,
};
