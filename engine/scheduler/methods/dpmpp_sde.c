/* DPM++ SDE, diffusers' DPMSolverSDEScheduler: DPM-Solver++ (2S) with an ancestral step to the
 * middle in log sigma, and another one over the whole step with the prediction made there. The
 * noise is the image's Brownian motion.
 *
 * Slot 0: the sample that a step started from. */
#include "engine/scheduler/sigmas.h"

#include <math.h>

#define SLOT_START 0

/* Steps from level `from`, where the sample is in term `start`, down to level `down`, then adds
 * noise `up`: sqrt(down^2 + up^2) = to. x0 is predicted from this evaluation's sample, at level
 * `at`. */
static void step_to(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    int start, float from, float at, float to) {
    struct ancestral_sigmas level = ancestral_step_eta(from, to, 1);
    float t = -round_log(from), ancestral_t = -round_log(level.down);
    float x0 = -expm1f(t - ancestral_t);
    struct prediction_weights p = sigma_prediction_weights(prediction, at);
    evaluation->draws_noise = true;
    evaluation->brownian_from = from;
    evaluation->brownian_to = to;
    struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
    update->weights[TERM_SAMPLE] = x0 * p.x0_sample;
    update->weights[TERM_OUTPUT] = x0 * p.x0_output;
    update->weights[start] += round_exp(-ancestral_t) / round_exp(-t);
    update->weights[TERM_NOISE] = level.up;
}

/* Adds both evaluations of a step. Returns the timestep of the second one, the step's middle. */
static double add_step(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    const struct noise_schedule *schedule, const struct sigma_run *run, int i) {
    /* Goes to the logarithm and back, to round as diffusers does. */
    float t = -round_log(run->sigmas[i]), t_next = -round_log(run->sigmas[i + 1]);
    float from = round_exp(-t), to = round_exp(-t_next),
          middle = round_exp(-(t + (t_next - t) * 0.5f));
    double sigma = (double)run->sigmas[i], next = (double)run->sigmas[i + 1];
    double between = timestep_of_sigma(schedule, sqrt(sigma * next));
    sigma_see(&evaluation[0], (float)run->timesteps[i], run->sigmas[i]);
    scheduler_keep(&evaluation[0], SLOT_START, TERM_SAMPLE);
    step_to(&evaluation[0], prediction, TERM_SAMPLE, from, run->sigmas[i], middle);
    sigma_see(&evaluation[1], (float)between, middle);
    evaluation[1].noise = run->sigmas[i + 1]; /* add_noise in diffusers ignores the middle */
    step_to(&evaluation[1], prediction, TERM_SLOT + SLOT_START, from, middle, to);
    return between;
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    enum prediction_type prediction = config->values.prediction_type;
    struct sigma_run run;
    double seen[2 * STEPS_MAX];
    if (!sigma_run_init(&run, config, schedule, SIGMAS_SPACED_DOUBLE, steps, err) ||
        !sigma_run_falls(&run, err) || !scheduler_plan_allocate(plan, 2 * steps - 1, err))
        return false;
    plan->init_noise_sigma = sigma_run_init_noise(&run, config);
    sigma_run_span(&run, &plan->brownian_low, &plan->brownian_high);
    for (int i = 0; i < steps - 1; i++) {
        seen[2 * i] = run.timesteps[i];
        seen[2 * i + 1] = add_step(&plan->evaluations[2 * i], prediction, schedule, &run, i);
    }
    seen[2 * steps - 2] = run.timesteps[steps - 1];
    /* At sigma 0 the sample is the prediction of x0. */
    struct scheduler_evaluation *last = &plan->evaluations[plan->count - 1];
    struct prediction_weights p = sigma_prediction_weights(prediction, run.sigmas[steps - 1]);
    sigma_see(last, (float)run.timesteps[steps - 1], run.sigmas[steps - 1]);
    struct scheduler_update *update = scheduler_add_update(last, TERM_SAMPLE);
    update->weights[TERM_SAMPLE] = p.x0_sample;
    update->weights[TERM_OUTPUT] = p.x0_output;
    return sigmas_begin_once(seen, plan->count, steps, err);
}

const struct scheduler_class scheduler_dpmpp_sde = {
    .info = {
        .name = "dpmpp_sde",
        .class_name = "DPMSolverSDEScheduler",
        .display_name = "DPM++ SDE",
        .description = "Two evaluations a step and Brownian noise: much detail in few steps.",
        .aliases = { "DPM++ SDE", "DPMSolverSDEScheduler" },
    },
    .options = {
        SIGMA_SPACING_OPTION,
        SIGMA_SCHEDULE_OPTIONS,
        [OPTION_PREDICTION_TYPE] = { true, PREDICTION_EPSILON,
            .words = 1 << PREDICTION_EPSILON | 1 << PREDICTION_V },
        [OPTION_BETA_START] = { true, 0.00085 },
        [OPTION_BETA_END] = { true, 0.012 },
    },
    .fill = fill,
    .order = 2,
};
