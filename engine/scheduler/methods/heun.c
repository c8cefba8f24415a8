/* Heun's method: Euler's step, then the same step with the mean of the derivatives at both ends
 * (Karras et al., 2022, algorithm 1). Each step takes two evaluations, except the last, which takes
 * one and ends without noise. */
#include "engine/scheduler/sigmas.h"

#define SLOT_START 0
#define SLOT_DERIVATIVE 1
#define SLOT_X0 2

/* sample = start + derivative dt */
static void step_by(struct scheduler_evaluation *evaluation, int start, int derivative, float dt) {
    struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
    update->weights[start] = 1;
    update->weights[TERM_SLOT + derivative] = dt;
}

static void add_first(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    float sigma, float dt, bool last) {
    if (!last)
        scheduler_keep(evaluation, SLOT_START, TERM_SAMPLE);
    sigma_derive(evaluation, prediction, sigma, SLOT_X0, SLOT_DERIVATIVE);
    step_by(evaluation, TERM_SAMPLE, SLOT_DERIVATIVE, dt);
}

static void add_second(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    float sigma, float dt) {
    sigma_derive(evaluation, prediction, sigma, SLOT_X0, SLOT_X0);
    struct scheduler_update *mean = scheduler_add_update(evaluation, TERM_SLOT + SLOT_DERIVATIVE);
    mean->weights[TERM_SLOT + SLOT_DERIVATIVE] = mean->weights[TERM_SLOT + SLOT_X0] = 1;
    mean->divisor = 2;
    step_by(evaluation, TERM_SLOT + SLOT_START, SLOT_DERIVATIVE, dt);
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    enum prediction_type prediction = config->values.prediction_type;
    struct sigma_run run;
    if (!sigma_run_init(&run, config, schedule, SIGMAS_SPACED, steps, err) ||
        !scheduler_plan_allocate(plan, 2 * steps - 1, err))
        return false;
    plan->init_noise_sigma = sigma_run_init_noise(&run, config);
    for (int i = 0; i < steps; i++) {
        struct scheduler_evaluation *evaluation = &plan->evaluations[2 * i];
        float sigma = run.sigmas[i], next = run.sigmas[i + 1];
        bool last = i == steps - 1;
        sigma_see(evaluation, (float)run.timesteps[i], sigma);
        add_first(evaluation, prediction, sigma, next - sigma, last);
        if (!last) {
            sigma_see(++evaluation, (float)run.timesteps[i + 1], next);
            add_second(evaluation, prediction, next, next - sigma);
        }
    }
    return true;
}

const struct scheduler_class scheduler_heun = {
    .info = {
        .name = "heun",
        .class_name = "HeunDiscreteScheduler",
        .display_name = "Heun",
        .description = "Second order, no fresh noise: two evaluations a step, good from 10 steps on.",
        .aliases = { "Heun", "HeunDiscreteScheduler", "k_heun" },
    },
    .options = {
        SIGMA_SPACING_OPTION,
        SIGMA_SCHEDULE_OPTIONS,
        [OPTION_BETA_START] = { true, 0.00085 },
        [OPTION_BETA_END] = { true, 0.012 },
        [OPTION_CLIP_SAMPLE] = { true, false },
    },
    .fill = fill,
    .order = 2,
};
