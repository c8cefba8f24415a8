/* DPM-Solver-2 in sigma-space: a step with the derivative at its middle in log sigma (Karras et
 * al., 2022, algorithm 2 with rho 1/2, as in k-diffusion). Two evaluations per step, but one for
 * the last step, which ends without noise. */
#include "engine/scheduler/methods/dpm2.h"

#include "engine/scheduler/sigmas.h"

#include <math.h>

#define SLOT_START 0
#define SLOT_DERIVATIVE 1

float log_middle(float a, float b) {
    float x = round_log(a), y = round_log(b);
    return round_exp(y - (y - x) * 0.5f);
}

bool dpm2_run_init(struct sigma_run *run, const struct scheduler_config *config,
    const struct noise_schedule *schedule, int steps, struct error *err) {
    if (!sigma_run_init(run, config, schedule, SIGMAS_SPACED_SEEN, steps, err))
        return false;
    for (int i = 0; config->values.use_karras_sigmas && i < steps; i++)
        run->timesteps[i] = rint(run->timesteps[i]);
    return true;
}

double dpm2_see_middle(struct scheduler_evaluation *evaluation,
    const struct noise_schedule *schedule, float middle, float next) {
    double timestep = timestep_of_sigma(schedule, (double)middle);
    sigma_see(evaluation, (float)timestep, middle);
    evaluation->noise = next;
    return timestep;
}

void dpm2_add_first(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    float sigma, float middle) {
    if (middle > 0)
        scheduler_keep(evaluation, SLOT_START, TERM_SAMPLE);
    sigma_derive(evaluation, prediction, sigma, SLOT_DERIVATIVE, SLOT_DERIVATIVE);
    struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
    update->weights[TERM_SAMPLE] = 1;
    update->weights[TERM_SLOT + SLOT_DERIVATIVE] = middle - sigma;
}

struct scheduler_update *dpm2_add_second(struct scheduler_evaluation *evaluation,
    enum prediction_type prediction, float middle, float dt) {
    sigma_derive(evaluation, prediction, middle, SLOT_DERIVATIVE, SLOT_DERIVATIVE);
    struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
    update->weights[TERM_SLOT + SLOT_START] = 1;
    update->weights[TERM_SLOT + SLOT_DERIVATIVE] = dt;
    return update;
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    enum prediction_type prediction = config->values.prediction_type;
    struct sigma_run run;
    double seen[2 * STEPS_MAX];
    if (!dpm2_run_init(&run, config, schedule, steps, err) ||
        !scheduler_plan_allocate(plan, 2 * steps - 1, err))
        return false;
    plan->init_noise_sigma = sigma_run_init_noise(&run, config);
    for (int i = 0; i < steps; i++) {
        struct scheduler_evaluation *evaluation = &plan->evaluations[2 * i];
        float sigma = run.sigmas[i], next = run.sigmas[i + 1];
        float middle = i + 1 < steps ? log_middle(next, sigma) : 0;
        sigma_see(evaluation, (float)run.timesteps[i], sigma);
        seen[2 * i] = run.timesteps[i];
        dpm2_add_first(evaluation, prediction, sigma, middle);
        if (i + 1 < steps) {
            seen[2 * i + 1] = dpm2_see_middle(++evaluation, schedule, middle, next);
            dpm2_add_second(evaluation, prediction, middle, next - sigma);
        }
    }
    return sigmas_begin_once(seen, plan->count, steps, err);
}

static const char *const aliases[] = { "DPM2", "KDPM2DiscreteScheduler", "k_dpm_2", NULL };

const struct scheduler_class scheduler_dpm2 = {
    .info = {
        .name = "dpm2",
        .class_name = "KDPM2DiscreteScheduler",
        .display_name = "DPM2",
        .description = "Second order by the middle of each step, no fresh noise: two evaluations a step.",
        .aliases = aliases,
    },
    .options = { DPM2_OPTIONS },
    .fill = fill,
    .order = 2,
};
