/* Linear multistep method: fits a polynomial in sigma to the derivatives of up to four steps, and
 * integrates it over the current step (Adams-Bashforth on an uneven grid).
 *
 * In a list of many sigmas the last step, to 0, is a hundred times as long as those before it. Its
 * weights are in the thousands and nearly cancel, which leaves rounding errors. Therefore the
 * updates are the reference's operations one by one, and the weights are integrated as the
 * reference does. */
#include "engine/scheduler/sigmas.h"

#include <math.h>

#define ORDER 4 /* also the number of slots, used as a ring */
#define SLOT_SUM ORDER

/* The basis polynomial that is 1 at sigmas[i - term] and 0 at the other sigmas of the last `order`
 * steps. In float32, as the reference's sigmas. */
struct basis {
    const float *sigmas;
    int i, order, term;
};

static double basis_at(const struct basis *basis, double tau) {
    const float *newest = basis->sigmas + basis->i;
    float product = 1;
    for (int k = 0; k < basis->order; k++)
        if (k != basis->term)
            product *= ((float)tau - newest[-k]) / (newest[-basis->term] - newest[-k]);
    return (double)product;
}

/* Integrates the basis polynomial from sigmas[i] to sigmas[i + 1] by Kronrod's 21-point rule, in
 * QUADPACK's order (dqk21). scipy's integrate.quad stops after this estimate, because the rule is
 * exact for a cubic. */
static double coefficient(const struct basis *basis) {
    static const double at[] = { 0.973906528517171720077964012084452,
        0.865063366688984510732096688423493, 0.679409568299024406234327365114874,
        0.433395394129247190799265943165784, 0.148874338981631210884826001129720,
        0.995657163025808080735527280689003, 0.930157491355708226001207180059508,
        0.780817726586416897063717578345042, 0.562757134668604683339000099272694,
        0.294392862701460198131126603103866 };
    static const double weights[] = { 0.032558162307964727478818972459390,
        0.075039674810919952767043140916190, 0.109387158802297641899210590325805,
        0.134709217311473325928054001771707, 0.147739104901338491374841515972068,
        0.011694638867371874278064396062192, 0.054755896574351996031381300244580,
        0.093125454583697605535065465083366, 0.123491976262065851077958109585166,
        0.142775938577060080797094273138717 };
    const double from = (double)basis->sigmas[basis->i], to = (double)basis->sigmas[basis->i + 1];
    const double centre = 0.5 * (from + to), half = 0.5 * (to - from);
    double sum = 0.149445554002916905664936468389821 * basis_at(basis, centre);
    for (int k = 0; k < 10; k++) {
        const double aside = half * at[k];
        sum += weights[k] * (basis_at(basis, centre - aside) + basis_at(basis, centre + aside));
    }
    return sum * half;
}

/* slot = (sample - x0) / sigma */
static void keep_derivative(struct scheduler_evaluation *evaluation,
    enum prediction_type prediction, float sigma, int slot) {
    const float squared = sigma * sigma + 1.0f;
    int x0 = TERM_OUTPUT;
    struct scheduler_update *update;
    if (prediction != PREDICTION_SAMPLE) {
        x0 = TERM_SLOT + SLOT_SUM;
        update = scheduler_add_update(evaluation, x0);
        update->weights[TERM_SAMPLE] = 1;
        if (prediction == PREDICTION_V) {
            update->divisor = squared;
            update = scheduler_add_update(evaluation, x0);
            update->weights[x0] = 1;
        }
        update->weights[TERM_OUTPUT] = prediction == PREDICTION_V ? -sigma / sqrtf(squared)
                                                                  : -sigma;
    }
    update = scheduler_add_update(evaluation, TERM_SLOT + slot);
    update->weights[TERM_SAMPLE] = 1;
    update->weights[x0] = -1;
    update->divisor = sigma;
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    struct sigma_run run;
    if (!sigma_run_init(&run, config, schedule, SIGMAS_SPACED, steps, err) ||
        !sigma_run_falls(&run, err) || !scheduler_plan_allocate(plan, steps, err))
        return false;
    plan->init_noise_sigma = sigma_run_init_noise(&run, config);
    for (int i = plan->first_step; i < steps; i++) {
        struct scheduler_evaluation *evaluation = &plan->evaluations[i];
        /* In a run that does not begin at step 0, diffusers uses the weights of a full run and
         * leaves out the missing derivatives. */
        const int order = i + 1 < ORDER ? i + 1 : ORDER, known = i + 1 - plan->first_step;
        sigma_see(evaluation, (float)run.timesteps[i], run.sigmas[i]);
        keep_derivative(evaluation, config->values.prediction_type, run.sigmas[i], i % ORDER);
        /* sample + ((c0 d0 + c1 d1) + c2 d2) + c3 d3, newest derivative first */
        const int sum = TERM_SLOT + SLOT_SUM;
        struct scheduler_update *update = scheduler_add_update(evaluation, sum);
        for (int term = 0; term < order && term < known; term++) {
            if (term > 1) {
                update = scheduler_add_update(evaluation, sum);
                update->weights[sum] = 1;
            }
            update->weights[TERM_SLOT + (i - term) % ORDER] = (float)coefficient(
                &(struct basis){ run.sigmas, i, order, term });
        }
        update = scheduler_add_update(evaluation, TERM_SAMPLE);
        update->weights[TERM_SAMPLE] = update->weights[sum] = 1;
    }
    return true;
}

const struct scheduler_class scheduler_lms = {
    .info = {
        .name = "lms",
        .class_name = "LMSDiscreteScheduler",
        .display_name = "LMS",
        .description = "Fourth-order multistep in sigma, no fresh noise: one evaluation a step.",
        .aliases = { "LMS", "LMSDiscreteScheduler", "k_lms" },
    },
    .options = { SIGMA_SPACING_OPTION, SIGMA_SCHEDULE_OPTIONS },
    .fill = fill,
};
