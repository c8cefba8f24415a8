/* DEIS (Zhang and Chen, 2023), log-rho version: interpolates the latest noise predictions by a
 * polynomial in the logarithm of rho = sigma / alpha, and integrates this polynomial exactly.
 *
 * If a step begins at a sigma in the thousands (cosine betas), the weights are in the thousands too
 * and nearly cancel, which leaves rounding errors. Therefore the updates are the reference's
 * operations one by one. */
#include "engine/scheduler/methods/multistep.h"

#include <math.h>

#define ORDER_MAX 3 /* also the number of slots, used as a ring */
#define SLOT_X0 ORDER_MAX

/* The antiderivatives over t of the basis polynomials in log t, which are 1 at log b and 0 at log c
 * (and log d). Over a short step their differences are small, so float32 and the order of
 * diffusers' operations matter. */
static float linear_integral(float t, float b, float c) {
    return t * (-round_log(c) + round_log(t) - 1.0f) / (round_log(b) - round_log(c));
}

static float quadratic_integral(float t, float b, float c, float d) {
    float lt = round_log(t), lc = round_log(c), ld = round_log(d);
    float numerator = t * (lc * (ld - lt + 1.0f) - ld * lt + ld + lt * lt - 2.0f * lt + 2.0f);
    return numerator / ((round_log(b) - lc) * (round_log(b) - ld));
}

/* Computes the weights of the predictions in the integral from rho[1] to rho[0]. out[k] belongs to
 * the prediction at rho[1 + k]. */
static void integrate_basis(const float rho[ORDER_MAX + 1], int order, float out[ORDER_MAX]) {
    const float *at = rho + 1;
    for (int k = 0; k < order; k++) {
        float b = at[k], c = at[(k + 1) % order], d = at[(k + 2) % order];
        out[k] = order == 2
                     ? linear_integral(rho[0], b, c) - linear_integral(at[0], b, c)
                     : quadratic_integral(rho[0], b, c, d) - quadratic_integral(at[0], b, c, d);
    }
}

/* slot = (sample - alpha x0) / sigma */
static void keep_noise(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    const struct level *at, struct slot_ring *ring) {
    int x0 = TERM_OUTPUT;
    struct scheduler_update *update;
    if (prediction != PREDICTION_SAMPLE) {
        x0 = TERM_SLOT + SLOT_X0;
        update = scheduler_add_update(evaluation, x0);
        update->weights[TERM_SAMPLE] = prediction == PREDICTION_V ? at->alpha : 1;
        update->weights[TERM_OUTPUT] = -at->sigma;
        update->divisor = prediction == PREDICTION_V ? 1 : at->alpha;
    }
    update = slot_ring_push(ring, evaluation);
    update->weights[TERM_SAMPLE] = 1;
    update->weights[x0] = -at->alpha;
    update->divisor = at->sigma;
}

/* sample = alpha_to (sample / alpha_from + w0 n0 + w1 n1 ...), newest prediction first */
static void step_over(struct scheduler_evaluation *evaluation, const struct level *from,
    const struct level *to, const float *weights, int order, const struct slot_ring *ring) {
    struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
    update->weights[TERM_SAMPLE] = 1;
    update->divisor = from->alpha;
    for (int k = 0; k < order; k++) {
        update = scheduler_add_update(evaluation, TERM_SAMPLE);
        update->weights[TERM_SAMPLE] = 1;
        update->weights[slot_ring_term(ring, k)] = weights[k];
    }
    scheduler_add_update(evaluation, TERM_SAMPLE)->weights[TERM_SAMPLE] = to->alpha;
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    const struct scheduler_values *values = &config->values;
    struct slot_ring ring = { .size = ORDER_MAX };
    struct sigma_run run;
    struct scheduler_config ending = *config;
    ending.values.final_sigmas_type =
        FINAL_SIGMA_MIN; /* a run always ends at the table's first sigma */
    if (!multistep_run_init(&run, &ending, schedule, SIGMAS_WHOLE_REPEATED, steps, err) ||
        !scheduler_plan_allocate(plan, steps, err))
        return false;
    for (int i = plan->first_step; i < steps; i++) {
        struct scheduler_evaluation *evaluation = &plan->evaluations[i];
        struct level from = level_of(run.sigmas[i]), to = level_of(run.sigmas[i + 1]);
        int order = multistep_order(values, plan->first_step, i, steps, false);
        level_see(evaluation, (float)run.timesteps[i], &from);
        keep_noise(evaluation, values->prediction_type, &from, &ring);
        if (order == 1) {
            struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
            update->weights[TERM_SAMPLE] = to.alpha / from.alpha;
            update->weights[slot_ring_term(&ring, 0)] = -(
                to.sigma * (round_exp(to.lambda - from.lambda) - 1.0f));
            continue;
        }
        float rho[ORDER_MAX + 1], weights[ORDER_MAX];
        for (int k = 0; k <= order; k++) {
            struct level level = level_of(run.sigmas[i + 1 - k]);
            rho[k] = level.sigma / level.alpha;
        }
        integrate_basis(rho, order, weights);
        step_over(evaluation, &from, &to, weights, order, &ring);
    }
    return true;
}

const struct scheduler_class scheduler_deis = {
    .info = {
        .name = "deis",
        .class_name = "DEISMultistepScheduler",
        .display_name = "DEIS",
        .description = "Exponential integrator, second-order multistep, no fresh noise.",
        .aliases = { "DEIS", "DEISMultistepScheduler" },
    },
    .options = {
        WHOLE_SIGMA_OPTIONS,
        [OPTION_SOLVER_ORDER] = { true, 2 },
        [OPTION_SOLVER_TYPE] = { true, SOLVER_LOGRHO, .words = 1 << SOLVER_LOGRHO,
            .foreign = 1 << SOLVER_MIDPOINT | 1 << SOLVER_HEUN | 1 << SOLVER_BH1 |
                       1 << SOLVER_BH2 },
        [OPTION_ALGORITHM_TYPE] = { true, ALGORITHM_DEIS, .words = 1 << ALGORITHM_DEIS,
            .foreign = 1 << ALGORITHM_DPMSOLVER | 1 << ALGORITHM_DPMSOLVERPP },
        [OPTION_LOWER_ORDER_FINAL] = { true, true },
        [OPTION_THRESHOLDING] = { true, false },
    },
    .fill = fill,
};
