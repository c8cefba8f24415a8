/* UniPC (Zhao et al., 2023), B(h) version: each evaluation first corrects the sample that it was
 * made for, then predicts the next one from the corrected sample.
 *
 * Slots: the sample that the last prediction started from, and a ring of predictions, of x0 or
 * (predict_x0 false) of the noise. */
#include "engine/scheduler/methods/multistep.h"

#include <math.h>
#include <string.h>

#define ORDER_MAX 3
#define SLOT_LAST 0
#define RING_FIRST 1
#define RING_SIZE (ORDER_MAX + 1) /* an order-3 corrector reads the newest and 3 more */

struct step {
    struct level from, to;
    int order;
    float ratios[ORDER_MAX + 1]; /* positions, newest first: start is 0, end is 1 */
    float b[ORDER_MAX];          /* right-hand sides of the order conditions */
    float phi, scale;            /* e^hh - 1, and B(h) */
    float kept, outer;           /* weights of the sample and of all predictions */
};

/* Computes the step from sigmas[at] to sigmas[at + 1]. */
static struct step make_step(
    const struct scheduler_values *values, const struct sigma_run *run, int at, int order) {
    struct step s = {
        .from = level_of(run->sigmas[at]),
        .to = level_of(run->sigmas[at + 1]),
        .order = order,
    };
    float h = s.to.lambda - s.from.lambda, hh = values->predict_x0 ? -h : h, factorial = 1;
    s.kept = values->predict_x0 ? s.to.sigma / s.from.sigma : s.to.alpha / s.from.alpha;
    s.outer = values->predict_x0 ? s.to.alpha : s.to.sigma;
    for (int i = 1; i < order; i++)
        s.ratios[i] = (level_of(run->sigmas[at - i]).lambda - s.from.lambda) / h;
    s.phi = (float)expm1((double)hh);
    s.scale = values->solver_type == SOLVER_BH1 ? hh : s.phi;
    float phi_k = s.phi / hh - 1.0f;
    for (int i = 1; i <= order; i++) {
        s.b[i - 1] = phi_k * factorial / s.scale;
        factorial *= (float)(i + 1);
        phi_k = phi_k / hh - 1.0f / factorial;
    }
    return s;
}

/* Solves sum over k of x[k] * points[k]^i = b[i], i < count, by elimination with pivoting. */
static void solve_powers(const float *points, const float *b, int count, double *x) {
    double rows[ORDER_MAX][ORDER_MAX + 1];
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < count; k++)
            rows[i][k] = (double)powf(points[k], (float)i);
        rows[i][count] = b[i];
    }
    for (int k = 0; k < count; k++) {
        int pivot = k;
        for (int i = k + 1; i < count; i++)
            if (fabs(rows[i][k]) > fabs(rows[pivot][k]))
                pivot = i;
        double swapped[ORDER_MAX + 1];
        memcpy(swapped, rows[k], sizeof(swapped));
        memcpy(rows[k], rows[pivot], sizeof(swapped));
        memcpy(rows[pivot], swapped, sizeof(swapped));
        for (int i = k + 1; i < count; i++)
            for (int j = count; j >= k; j--)
                rows[i][j] -= rows[i][k] / rows[k][k] * rows[k][j];
    }
    for (int k = count - 1; k >= 0; k--) {
        x[k] = rows[k][count];
        for (int j = k + 1; j < count; j++)
            x[k] -= rows[k][j] * x[j];
        x[k] /= rows[k][k];
    }
}

/* Fills in the weights of a step. `newest` is the age, in the ring, of the prediction at the step's
 * start. rho[i - 1] weighs the prediction that is i places older, and `end` weighs the prediction
 * at the step's end. */
static void take_step(const struct step *s, const double *rho, double end, struct slot_ring *ring,
    int newest, struct scheduler_update *update) {
    double factor = -(double)(s->outer * s->scale), own = -(double)(s->outer * s->phi);
    for (int i = 1; i < s->order; i++) {
        double weight = factor * rho[i - 1] / (double)s->ratios[i];
        update->weights[slot_ring_term(ring, newest + i)] = (float)weight;
        own -= weight;
    }
    if (newest > 0) {
        update->weights[slot_ring_term(ring, newest - 1)] = (float)(factor * end);
        own -= factor * end;
    }
    update->weights[slot_ring_term(ring, newest)] = (float)own;
    update->weights[TERM_SLOT + SLOT_LAST] = s->kept;
}

/* Repeats the last step with the prediction at its end, which is now the newest in the ring. */
static void correct(
    const struct step *s, struct slot_ring *ring, struct scheduler_evaluation *evaluation) {
    float points[ORDER_MAX];
    double rho[ORDER_MAX] = { 0.5 };
    memcpy(points, s->ratios + 1, sizeof(points));
    points[s->order - 1] = 1;
    if (s->order > 1)
        solve_powers(points, s->b, s->order, rho);
    take_step(s, rho, rho[s->order - 1], ring, 1,
        scheduler_add_update(evaluation, TERM_SLOT + SLOT_LAST));
}

static void predict(
    const struct step *s, struct slot_ring *ring, struct scheduler_evaluation *evaluation) {
    double rho[ORDER_MAX] = { 0.5 };
    if (s->order > 2)
        solve_powers(s->ratios + 1, s->b, s->order - 1, rho);
    take_step(s, rho, 0, ring, 0, scheduler_add_update(evaluation, TERM_SAMPLE));
}

/* Refuses options that the run's end does not allow: a last step of length 0 or to sigma 0 needs
 * order 1, and sigma 0 also needs bh2 and predict_x0. */
static bool check_end(const struct scheduler_values *values, const struct sigma_run *run, int steps,
    struct error *err) {
    bool ends_at_zero = run->sigmas[steps] == 0;
    bool bears_order = !ends_at_zero && run->sigmas[steps] < run->sigmas[steps - 1];
    if (ends_at_zero && values->solver_type == SOLVER_BH1)
        return error_field(err, "scheduler.solver_type", "\"bh1\"",
            "\"bh2\", unless final_sigmas_type is \"sigma_min\"");
    if (ends_at_zero && !values->predict_x0)
        return error_field(err, "scheduler.predict_x0", "false",
            "true, unless final_sigmas_type is \"sigma_min\"");
    if (!bears_order && !values->lower_order_final && values->solver_order > 1 && steps > 1)
        return error_field(err, "scheduler.lower_order_final", "false",
            "true where the last step is to sigma %g from %g", (double)run->sigmas[steps],
            (double)run->sigmas[steps - 1]);
    return true;
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    const struct scheduler_values *values = &config->values;
    struct slot_ring ring = { .first = RING_FIRST, .size = RING_SIZE };
    struct sigma_run run;
    struct step last = { 0 };
    if (!multistep_run_init(&run, config, schedule, SIGMAS_WHOLE_REPEATED, steps, err) ||
        !check_end(values, &run, steps, err) || !scheduler_plan_allocate(plan, steps, err))
        return false;
    const int first = plan->first_step;
    for (int i = first; i < steps; i++) {
        struct scheduler_evaluation *evaluation = &plan->evaluations[i];
        struct step step = make_step(
            values, &run, i, multistep_order(values, first, i, steps, true));
        level_see(evaluation, (float)run.timesteps[i], &step.from);
        struct prediction_weights p = prediction_weights_of(
            values->prediction_type, step.from.alpha, step.from.sigma);
        struct scheduler_update *update = slot_ring_push(&ring, evaluation);
        update->weights[TERM_SAMPLE] = values->predict_x0 ? p.x0_sample : p.noise_sample;
        update->weights[TERM_OUTPUT] = values->predict_x0 ? p.x0_output : p.noise_output;
        if (i > first)
            correct(&last, &ring, evaluation);
        else
            scheduler_keep(evaluation, SLOT_LAST, TERM_SAMPLE);
        predict(&step, &ring, evaluation);
        last = step;
    }
    return true;
}

const struct scheduler_class scheduler_unipc = {
    .info = {
        .name = "unipc",
        .class_name = "UniPCMultistepScheduler",
        .display_name = "UniPC",
        .description = "Predictor and corrector in one evaluation: good pictures in 10 steps.",
        .aliases = { "UniPC", "UniPCMultistepScheduler" },
    },
    .options = {
        WHOLE_SIGMA_OPTIONS,
        [OPTION_RESCALE_BETAS_ZERO_SNR] = { true, false },
        [OPTION_FINAL_SIGMAS_TYPE] = { true, FINAL_SIGMA_ZERO },
        [OPTION_SOLVER_ORDER] = { true, 2 },
        [OPTION_SOLVER_TYPE] = { true, SOLVER_BH2, .words = 1 << SOLVER_BH1 | 1 << SOLVER_BH2,
            .foreign = 1 << SOLVER_MIDPOINT | 1 << SOLVER_HEUN | 1 << SOLVER_LOGRHO },
        [OPTION_LOWER_ORDER_FINAL] = { true, true },
        [OPTION_PREDICT_X0] = { true, true },
        [OPTION_THRESHOLDING] = { true, false },
    },
    .fill = fill,
};
