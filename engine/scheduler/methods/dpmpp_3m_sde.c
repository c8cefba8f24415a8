/* DPM++ 3M SDE, k-diffusion's sample_dpmpp_3m_sde: a third-order multistep solver for the SDE. The
 * noise is the image's Brownian motion. */
#include "engine/scheduler/methods/multistep.h"
#include "engine/scheduler/sigmas.h"

#include <math.h>

#define ORDER_MAX 3

/* Computes the weights of the last `order` predictions of x0, newest first. h[0] is the length of
 * this step in -log sigma; h[1] and h[2] are those of the two steps before. Fresh noise (eta)
 * lengthens the step to h[0] (1 + eta). */
static void weigh_predictions(
    const float h[ORDER_MAX], int order, float eta, double weights[ORDER_MAX]) {
    float whole = h[0] * (eta + 1.0f), first = -expm1f(-whole);
    float phi_2 = expm1f(-whole) / whole + 1.0f, phi_3 = phi_2 / whole - 0.5f;
    double newer = 0, older = 0; /* of differences between consecutive predictions */
    if (order == 2) {
        newer = phi_2 * (double)h[0] / (double)h[1];
    } else if (order == 3) {
        double r0 = (double)h[1] / (double)h[0], r1 = (double)h[2] / (double)h[0];
        double second = (phi_2 * r0 - phi_3) / (r0 + r1);
        newer = (phi_2 + second) / r0;
        older = -second / r1;
    }
    weights[0] = first + newer;
    weights[1] = older - newer;
    weights[2] = -older;
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    const float eta = (float)config->values.eta;
    struct slot_ring ring = { .size = ORDER_MAX };
    struct sigma_run run;
    float h[ORDER_MAX] = { 0 };
    if (steps < 2)
        return scheduler_refuse_steps(
            err, steps, "dpmpp_3m_sde, as k-diffusion's, needs 2 or more");
    if (!sigma_run_init(&run, config, schedule, SIGMAS_SPACED_SEEN, steps, err) ||
        !sigma_run_falls(&run, err) || !scheduler_plan_allocate(plan, steps, err))
        return false;
    plan->init_noise_sigma = sigma_run_init_noise(&run, config);
    if (eta > 0)
        sigma_run_span(&run, &plan->brownian_low, &plan->brownian_high);
    for (int i = plan->first_step; i < steps; i++) {
        struct scheduler_evaluation *evaluation = &plan->evaluations[i];
        struct prediction_weights p = sigma_prediction_weights(
            config->values.prediction_type, run.sigmas[i]);
        sigma_see(evaluation, (float)run.timesteps[i], run.sigmas[i]);
        struct scheduler_update *update = slot_ring_push(&ring, evaluation);
        update->weights[TERM_SAMPLE] = p.x0_sample;
        update->weights[TERM_OUTPUT] = p.x0_output;
        update = scheduler_add_update(evaluation, TERM_SAMPLE);
        if (run.sigmas[i + 1] == 0) {
            update->weights[slot_ring_term(&ring, 0)] = 1;
            continue;
        }
        h[2] = h[1];
        h[1] = h[0];
        h[0] = round_log(run.sigmas[i]) - round_log(run.sigmas[i + 1]);
        const int known = i + 1 - plan->first_step;
        const int order = known < ORDER_MAX ? known : ORDER_MAX;
        double weights[ORDER_MAX];
        weigh_predictions(h, order, eta, weights);
        update->weights[TERM_SAMPLE] = round_exp(-(h[0] * (eta + 1.0f)));
        for (int k = 0; k < order; k++)
            update->weights[slot_ring_term(&ring, k)] = (float)weights[k];
        evaluation->draws_noise = eta > 0;
        evaluation->brownian_from = run.sigmas[i];
        evaluation->brownian_to = run.sigmas[i + 1];
        update->weights[TERM_NOISE] = run.sigmas[i + 1] * sqrtf(-expm1f(-2.0f * h[0] * eta));
    }
    return true;
}

const struct scheduler_class scheduler_dpmpp_3m_sde = {
    .info = {
        .name = "dpmpp_3m_sde",
        .class_name = "sample_dpmpp_3m_sde",
        .display_name = "DPM++ 3M SDE",
        .description = "Third-order multistep with Brownian noise; k-diffusion's.",
        .aliases = { "DPM++ 3M SDE" },
    },
    .options = {
        SIGMA_SPACING_OPTION,
        SIGMA_SCHEDULE_OPTIONS,
        [OPTION_ETA] = { true, 1 },
    },
    .fill = fill,
};
