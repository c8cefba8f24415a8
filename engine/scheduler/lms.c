/* Linear multistep method: the derivatives of up to four steps, as the polynomial in sigma through
 * them, integrated over the step (Adams-Bashforth on an uneven grid). */
#include "engine/scheduler/sigmas.h"

#include <math.h>

#define ORDER 4 /* and as many slots, a ring */

/* The integral from sigmas[i] to sigmas[i + 1] of the polynomial that is 1 at sigmas[i - term] and
 * 0 at the others of the last `order`; Gauss's rule of two points is exact up to its third degree.
 */
static double coefficient(const float *sigmas, int i, int order, int term) {
    double half = ((double)sigmas[i + 1] - (double)sigmas[i]) / 2, sum = 0;
    for (int side = -1; side <= 1; side += 2) {
        double at = (double)sigmas[i] + half * (1 + side / sqrt(3)), product = 1;
        for (int k = 0; k < order; k++)
            if (k != term)
                product *= (at - (double)sigmas[i - k]) /
                           ((double)sigmas[i - term] - (double)sigmas[i - k]);
        sum += product;
    }
    return half * sum;
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
        /* Of a run that begins late, diffusers weighs as if it had begun at 0, and leaves out what
         * it does not know. */
        const int order = i + 1 < ORDER ? i + 1 : ORDER, known = i + 1 - plan->first_step;
        sigma_see(evaluation, run.timesteps[i], run.sigmas[i]);
        sigma_add_derivative(scheduler_add_update(evaluation, TERM_SLOT + i % ORDER),
            config->values.prediction_type, run.sigmas[i], 1);
        struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
        update->weights[TERM_SAMPLE] = 1;
        for (int term = 0; term < order && term < known; term++)
            update->weights[TERM_SLOT + (i - term) % ORDER] = (float)coefficient(
                run.sigmas, i, order, term);
    }
    return true;
}

static const char *const aliases[] = { "LMS", "LMSDiscreteScheduler", "k_lms", NULL };

const struct scheduler_class scheduler_lms = {
    .info = {
        .name = "lms",
        .class_name = "LMSDiscreteScheduler",
        .display_name = "LMS",
        .description = "Fourth-order multistep in sigma, no fresh noise: one evaluation a step.",
        .aliases = aliases,
    },
    .options = { SIGMA_SPACING_OPTION, SIGMA_SCHEDULE_OPTIONS },
    .fill = fill,
};
