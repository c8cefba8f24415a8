/* DPM-Solver++ multistep (Lu et al., 2022): dpmpp_2m for the probability flow unless algorithm_type
 * says otherwise; dpmpp_2m_sde for the SDE, with fresh noise at every step. */
#include "engine/scheduler/methods/multistep.h"

#include <math.h>

#define ORDER_MAX 3

/* The weights of a step: of the sample, of D0 = m0 (the newest prediction of x0), of the first and
 * second divided differences of the predictions over lambda, and of fresh noise. */
struct step_weights {
    float sample, d[ORDER_MAX], noise;
};

/* Order 2 has two versions; order 3 uses the second. */
static bool is_midpoint(const struct scheduler_values *values, int order) {
    return order < 3 && values->solver_type == SOLVER_MIDPOINT;
}

/* Lu et al., "DPM-Solver++": the integral of the interpolated prediction; h is the step in
 * lambda. */
static struct step_weights flow_weights(
    const struct level *from, const struct level *to, bool midpoint) {
    float h = to->lambda - from->lambda, decay = round_exp(-h) - 1.0f;
    return (struct step_weights){
        .sample = to->sigma / from->sigma,
        .d = { -(to->alpha * decay),
            midpoint ? -0.5f * (to->alpha * decay) : to->alpha * (decay / h + 1.0f),
            -(to->alpha * ((decay + h) / (h * h) - 0.5f)) },
    };
}

static struct step_weights sde_weights(
    const struct level *from, const struct level *to, bool midpoint) {
    float h = to->lambda - from->lambda, fresh = 1.0f - round_exp(-2.0f * h);
    return (struct step_weights){
        .sample = to->sigma / from->sigma * round_exp(-h),
        .d = { to->alpha * fresh,
            midpoint ? 0.5f * (to->alpha * fresh) : to->alpha * (fresh / (-2.0f * h) + 1.0f),
            to->alpha * ((fresh - 2.0f * h) / (4.0f * h * h) - 0.5f) },
        .noise = to->sigma * sqrtf(fresh),
    };
}

/* Converts weights of the divided differences to those of the predictions, newest first. lambdas[0]
 * is the end of the step; the predictions' lambdas follow, newest first. */
static void weigh_predictions(
    const struct step_weights *step, const float *lambdas, int order, double out[ORDER_MAX]) {
    double h = lambdas[0] - lambdas[1];
    double newer = 0, older = 0; /* of m0 - m1 and m1 - m2 */
    if (order > 1) {
        double r0 = (lambdas[1] - lambdas[2]) / h;
        newer = step->d[1] / r0;
        if (order > 2) {
            double r1 = (lambdas[2] - lambdas[3]) / h;
            double second = (step->d[1] * r0 + step->d[2]) / (r0 + r1);
            newer += second / r0;
            older = -second / r1;
        }
    }
    out[0] = step->d[0] + newer;
    out[1] = older - newer;
    out[2] = -older;
}

/* Whether step i of count is the last one and has order 1, whatever the order of the others. */
static bool ends_with_euler(const struct scheduler_values *values, int i, int count) {
    return i == count - 1 &&
           (values->euler_at_final || values->final_sigmas_type == FINAL_SIGMA_ZERO);
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    const bool sde = config->kind == SCHEDULER_DPMPP_2M_SDE ||
                     config->values.algorithm_type == ALGORITHM_SDE_DPMSOLVERPP;
    const struct scheduler_values *values = &config->values;
    struct slot_ring ring = { .size = ORDER_MAX };
    struct sigma_run run;
    if (!multistep_run_init(&run, config, schedule, SIGMAS_WHOLE, steps, err) ||
        !scheduler_plan_allocate(plan, steps, err))
        return false;
    for (int i = plan->first_step; i < steps; i++) {
        struct scheduler_evaluation *evaluation = &plan->evaluations[i];
        struct level from = level_of(run.sigmas[i]), to = level_of(run.sigmas[i + 1]);
        int order = multistep_order(values, plan->first_step, i, steps, false);
        if (ends_with_euler(values, i, steps))
            order = 1;
        float lambdas[ORDER_MAX + 1];
        for (int k = 0; k <= order; k++)
            lambdas[k] = level_of(run.sigmas[i + 1 - k]).lambda;
        struct step_weights step = sde ? sde_weights(&from, &to, is_midpoint(values, order))
                                       : flow_weights(&from, &to, is_midpoint(values, order));
        double weights[ORDER_MAX];
        weigh_predictions(&step, lambdas, order, weights);

        level_see(evaluation, (float)run.timesteps[i], &from);
        evaluation->draws_noise = sde;
        struct prediction_weights p = prediction_weights_of(
            values->prediction_type, from.alpha, from.sigma);
        struct scheduler_update *update = slot_ring_push(&ring, evaluation);
        update->weights[TERM_SAMPLE] = p.x0_sample;
        update->weights[TERM_OUTPUT] = p.x0_output;
        update = scheduler_add_update(evaluation, TERM_SAMPLE);
        update->weights[TERM_SAMPLE] = step.sample;
        update->weights[TERM_NOISE] = step.noise;
        for (int k = 0; k < order; k++)
            update->weights[slot_ring_term(&ring, k)] = (float)weights[k];
    }
    return true;
}

/* The options of both classes. */
#define DPM_MULTISTEP_OPTIONS                                                                      \
    WHOLE_SIGMA_OPTIONS,                                                                           \
        [OPTION_RESCALE_BETAS_ZERO_SNR] = { true, false },                                         \
        [OPTION_FINAL_SIGMAS_TYPE] = { true, FINAL_SIGMA_ZERO },                                   \
        [OPTION_USE_LU_LAMBDAS] = { true, false }, [OPTION_SOLVER_ORDER] = { true, 2 },            \
        [OPTION_SOLVER_TYPE] = { true, SOLVER_MIDPOINT,                                            \
            .words = 1 << SOLVER_MIDPOINT | 1 << SOLVER_HEUN,                                      \
            .foreign = 1 << SOLVER_BH1 | 1 << SOLVER_BH2 | 1 << SOLVER_LOGRHO },                   \
        [OPTION_LOWER_ORDER_FINAL] = { true, true }, [OPTION_EULER_AT_FINAL] = { true, false },    \
        [OPTION_THRESHOLDING] = { true, false }

const struct scheduler_class scheduler_dpmpp_2m = {
    .info = {
        .name = "dpmpp_2m",
        .class_name = "DPMSolverMultistepScheduler",
        .display_name = "DPM++ 2M",
        .description = "Second-order multistep, no fresh noise: good pictures in 20 steps.",
        .aliases = { "DPM++ 2M", "DPMSolverMultistepScheduler" },
    },
    .options = {
        DPM_MULTISTEP_OPTIONS,
        [OPTION_ALGORITHM_TYPE] = { true, ALGORITHM_DPMSOLVERPP,
            .words = 1 << ALGORITHM_DPMSOLVERPP | 1 << ALGORITHM_SDE_DPMSOLVERPP },
    },
    .fill = fill,
};

const struct scheduler_class scheduler_dpmpp_2m_sde = {
    .info = {
        .name = "dpmpp_2m_sde",
        .class_name = "DPMSolverMultistepScheduler",
        .display_name = "DPM++ 2M SDE",
        .description = "DPM++ 2M with fresh noise at every step.",
        .aliases = { "DPM++ 2M SDE" },
    },
    .options = { DPM_MULTISTEP_OPTIONS },
    .fill = fill,
};
