/* DPM++ 2S ancestral, k-diffusion's sample_dpmpp_2s_ancestral: DPM-Solver++ (2S) down to the
 * ancestral level, then fresh noise.
 *
 * Slot 0: the sample that a step started from. */
#include "engine/scheduler/sigmas.h"

#include <math.h>

#define SLOT_START 0

/* sample = start_weight * start + x0_weight * x0 + noise_weight * noise. x0 is predicted from this
 * evaluation's sample, at level `at`. */
static void step_by(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    int start, float start_weight, float at, float x0_weight, float noise_weight) {
    struct prediction_weights p = sigma_prediction_weights(prediction, at);
    struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
    update->weights[TERM_SAMPLE] = x0_weight * p.x0_sample;
    update->weights[TERM_OUTPUT] = x0_weight * p.x0_output;
    update->weights[start] += start_weight;
    update->weights[TERM_NOISE] = noise_weight;
}

/* Adds one step from sigma to the ancestral level: the first evaluation goes half of the way in
 * -log sigma, the second all of it. If the ancestral level is 0 in float32, one step of Euler's
 * method goes there. Returns the number of evaluations. */
static int add_step(struct scheduler_evaluation *evaluation, const struct scheduler_config *config,
    const struct noise_schedule *schedule, const struct sigma_run *run, int i) {
    enum prediction_type prediction = config->values.prediction_type;
    struct ancestral_sigmas level = ancestral_step_eta(
        run->sigmas[i], run->sigmas[i + 1], (float)config->values.eta);
    sigma_see(&evaluation[0], (float)run->timesteps[i], run->sigmas[i]);
    if (level.down == 0) {
        evaluation[0].draws_noise = true;
        step_by(&evaluation[0], prediction, TERM_SAMPLE, 0, run->sigmas[i], 1, level.up);
        return 1;
    }
    float t = -round_log(run->sigmas[i]), t_next = -round_log(level.down), h = t_next - t;
    float middle = round_exp(-(t + 0.5f * h)), from = round_exp(-t);
    scheduler_keep(&evaluation[0], SLOT_START, TERM_SAMPLE);
    step_by(&evaluation[0], prediction, TERM_SAMPLE, middle / from, run->sigmas[i],
        -expm1f(-h * 0.5f), 0);
    sigma_see(&evaluation[1], (float)timestep_of_sigma(schedule, (double)middle), middle);
    evaluation[1].draws_noise = true;
    step_by(&evaluation[1], prediction, TERM_SLOT + SLOT_START, round_exp(-t_next) / from, middle,
        -expm1f(-h), level.up);
    return 2;
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    struct sigma_run run;
    if (!sigma_run_init(&run, config, schedule, SIGMAS_SPACED_SEEN, steps, err) ||
        !scheduler_plan_allocate(plan, 2 * steps - 1, err))
        return false;
    plan->init_noise_sigma = sigma_run_init_noise(&run, config);
    struct scheduler_evaluation *last = &plan->evaluations[2 * plan->first_step];
    for (int i = plan->first_step; i < steps - 1; i++)
        last += add_step(last, config, schedule, &run, i);
    plan->count = (int)(last - plan->evaluations) + 1;
    /* At sigma 0 the sample is the prediction of x0. */
    float sigma = run.sigmas[steps - 1];
    sigma_see(last, (float)run.timesteps[steps - 1], sigma);
    step_by(last, config->values.prediction_type, TERM_SAMPLE, 0, sigma, 1, 0);
    return true;
}

const struct scheduler_class scheduler_dpmpp_2s_ancestral = {
    .info = {
        .name = "dpmpp_2s_ancestral",
        .class_name = "sample_dpmpp_2s_ancestral",
        .display_name = "DPM++ 2S ancestral",
        .description = "Two evaluations a step, fresh noise after each; k-diffusion's.",
        .aliases = { "DPM++ 2S a", "DPM++ 2S ancestral", "dpmpp_2s_a" },
    },
    .options = {
        SIGMA_SPACING_OPTION,
        SIGMA_SCHEDULE_OPTIONS,
        [OPTION_ETA] = { true, 1 },
    },
    .fill = fill,
    .order = 2,
};
