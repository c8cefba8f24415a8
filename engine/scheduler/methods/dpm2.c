/* DPM2 and DPM2 ancestral: DPM-Solver-2 in sigma-space. A step uses the derivative at its middle in
 * log sigma (Karras et al., 2022, algorithm 2 with rho 1/2, as in k-diffusion). There are two
 * evaluations per step, but only one in the last step, which ends without noise. The ancestral form
 * goes down to a level below the next one, then adds fresh noise to reach the next one. */
#include "engine/scheduler/sigmas.h"

#include <math.h>

#define SLOT_START 0
#define SLOT_DERIVATIVE 1

/* sqrt(a b), computed as torch's lerp of the logarithms in float32. */
static float log_middle(float a, float b) {
    float x = round_log(a), y = round_log(b);
    return round_exp(y - (y - x) * 0.5f);
}

/* sigma_run_init, with Karras' timesteps rounded as in these two classes of diffusers. */
static bool run_init(struct sigma_run *run, const struct scheduler_config *config,
    const struct noise_schedule *schedule, int steps, struct error *err) {
    if (!sigma_run_init(run, config, schedule, SIGMAS_SPACED_SEEN, steps, err))
        return false;
    for (int i = 0; config->values.use_karras_sigmas && i < steps; i++)
        run->timesteps[i] = rint(run->timesteps[i]);
    return true;
}

/* Makes the evaluation see a sample of the middle level. The evaluation's `noise`, which only
 * add_noise uses, is that of `next`, as in diffusers. Returns the middle's timestep. */
static double see_middle(struct scheduler_evaluation *evaluation,
    const struct noise_schedule *schedule, float middle, float next) {
    double timestep = timestep_of_sigma(schedule, (double)middle);
    sigma_see(evaluation, (float)timestep, middle);
    evaluation->noise = next;
    return timestep;
}

/* The update to the middle of a step; a middle of 0 ends the run. */
static void add_first(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    float sigma, float middle) {
    if (middle > 0)
        scheduler_keep(evaluation, SLOT_START, TERM_SAMPLE);
    sigma_derive(evaluation, prediction, sigma, SLOT_DERIVATIVE, SLOT_DERIVATIVE);
    struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
    update->weights[TERM_SAMPLE] = 1;
    update->weights[TERM_SLOT + SLOT_DERIVATIVE] = middle - sigma;
}

/* The update over the whole step: from the step's start by dt, with the derivative at the
 * middle. */
static struct scheduler_update *add_second(struct scheduler_evaluation *evaluation,
    enum prediction_type prediction, float middle, float dt) {
    sigma_derive(evaluation, prediction, middle, SLOT_DERIVATIVE, SLOT_DERIVATIVE);
    struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
    update->weights[TERM_SLOT + SLOT_START] = 1;
    update->weights[TERM_SLOT + SLOT_DERIVATIVE] = dt;
    return update;
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    const bool ancestral = config->kind == SCHEDULER_DPM2_ANCESTRAL;
    enum prediction_type prediction = config->values.prediction_type;
    struct sigma_run run;
    double seen[2 * STEPS_MAX];
    if (!run_init(&run, config, schedule, steps, err) ||
        !scheduler_plan_allocate(plan, 2 * steps - 1, err))
        return false;
    plan->init_noise_sigma = sigma_run_init_noise(&run, config);
    for (int i = 0; i < steps; i++) {
        struct scheduler_evaluation *evaluation = &plan->evaluations[2 * i];
        float sigma = run.sigmas[i], next = run.sigmas[i + 1], middle = 0;
        struct ancestral_sigmas level = { .down = next };
        if (ancestral)
            level = ancestral_step(sigma, next);
        if (i + 1 < steps)
            middle = ancestral ? log_middle(sigma, level.down) : log_middle(next, sigma);
        sigma_see(evaluation, (float)run.timesteps[i], sigma);
        seen[2 * i] = run.timesteps[i];
        add_first(evaluation, prediction, sigma, middle);
        if (i + 1 < steps) {
            seen[2 * i + 1] = see_middle(++evaluation, schedule, middle, next);
            evaluation->draws_noise = ancestral;
            add_second(evaluation, prediction, middle, level.down - sigma)->weights[TERM_NOISE] =
                level.up;
        }
    }
    return sigmas_begin_once(seen, plan->count, steps, err);
}

#define DPM2_OPTIONS                                                                               \
    SIGMA_SPACING_OPTION, SIGMA_SCHEDULE_OPTIONS,                                                  \
        [OPTION_BETA_START] = { true, 0.00085 }, [OPTION_BETA_END] = { true, 0.012 },              \
        [OPTION_PREDICTION_TYPE] = { true, PREDICTION_EPSILON, EPSILON_OR_V }

const struct scheduler_class scheduler_dpm2 = {
    .info = {
        .name = "dpm2",
        .class_name = "KDPM2DiscreteScheduler",
        .display_name = "DPM2",
        .description = "Second order by the middle of each step, no fresh noise: two evaluations a step.",
        .aliases = { "DPM2", "KDPM2DiscreteScheduler", "k_dpm_2" },
    },
    .options = { DPM2_OPTIONS },
    .fill = fill,
    .order = 2,
};

const struct scheduler_class scheduler_dpm2_ancestral = {
    .info = {
        .name = "dpm2_ancestral",
        .class_name = "KDPM2AncestralDiscreteScheduler",
        .display_name = "DPM2 a",
        .description = "DPM2 with fresh noise at every step but the last: two evaluations a step.",
        .aliases = { "DPM2 a", "KDPM2AncestralDiscreteScheduler", "dpm2_a", "k_dpm_2_a" },
    },
    .options = { DPM2_OPTIONS },
    .fill = fill,
    .order = 2,
};
