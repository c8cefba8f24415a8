/* DPM fast, k-diffusion's sample_dpm_fast: DPM-Solver-fast (Lu et al., 2022, algorithm 3). Steps of
 * even length in -log sigma, of three evaluations each; the last one or two steps take the rest.
 * The number of steps of the request is that of evaluations.
 *
 * Slot 0: the sample that a step started from. Slot 1: the noise predicted there. */
#include "engine/scheduler/sigmas.h"

#include <math.h>

#define SLOT_START 0
#define SLOT_NOISE 1

/* One step from t to t_next, both -log sigma, that then adds noise `up`. */
struct fast_step {
    int order;
    float t, t_next, up;
};

/* sample = start + first * (noise predicted at the start) + now * (noise predicted from this
 * evaluation's sample, at level `sigma`) + up * fresh noise */
static void step_by(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    float sigma, float first, float now, float up) {
    const struct prediction_weights p = sigma_prediction_weights(prediction, (double)sigma);
    struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
    update->weights[TERM_SLOT + SLOT_START] = 1;
    update->weights[TERM_SLOT + SLOT_NOISE] = first;
    update->weights[TERM_SAMPLE] = now * (float)p.noise_sample;
    update->weights[TERM_OUTPUT] = now * (float)p.noise_output;
    update->weights[TERM_NOISE] = up;
}

/* Sets what the evaluation at -log sigma `t` sees. Returns sigma. */
static float see(
    struct scheduler_evaluation *evaluation, const struct noise_schedule *schedule, float t) {
    const float sigma = round_exp(-t);
    sigma_see(evaluation, (float)timestep_of_sigma(schedule, (double)sigma), sigma);
    return sigma;
}

/* Adds the step's evaluations, as many as its order. h: its length. s: the parts of h after which
 * the second and the third evaluation are made. */
static void add_step(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    const struct noise_schedule *schedule, const struct fast_step *step) {
    static const float parts[][2] = { { 0 }, { 0 }, { 1 / 2.0f }, { 1 / 3.0f, 2 / 3.0f } };
    const float h = step->t_next - step->t, *s = parts[step->order];
    const float end = round_exp(-step->t_next), all = expm1f(h);
    float sigma = see(&evaluation[0], schedule, step->t);
    const struct prediction_weights p = sigma_prediction_weights(prediction, (double)sigma);
    scheduler_keep(&evaluation[0], SLOT_START, TERM_SAMPLE);
    struct scheduler_update *update = scheduler_add_update(&evaluation[0], TERM_SLOT + SLOT_NOISE);
    update->weights[TERM_SAMPLE] = (float)p.noise_sample;
    update->weights[TERM_OUTPUT] = (float)p.noise_output;
    if (step->order == 1) {
        step_by(&evaluation[0], prediction, sigma, -end * all, 0, step->up);
        return;
    }
    const float t_1 = step->t + s[0] * h;
    step_by(&evaluation[0], prediction, sigma, -round_exp(-t_1) * expm1f(s[0] * h), 0, 0);
    sigma = see(&evaluation[1], schedule, t_1);
    if (step->order == 2) {
        const float change = end / (2 * s[0]) * all;
        step_by(&evaluation[1], prediction, sigma, change - end * all, -change, step->up);
        return;
    }
    const float t_2 = step->t + s[1] * h, part = expm1f(s[1] * h), at_2 = round_exp(-t_2);
    const float middle = at_2 * (s[1] / s[0]) * (part / (s[1] * h) - 1);
    step_by(&evaluation[1], prediction, sigma, middle - at_2 * part, -middle, 0);
    sigma = see(&evaluation[2], schedule, t_2);
    const float change = end / s[1] * (all / h - 1);
    step_by(&evaluation[2], prediction, sigma, change - end * all, -change, step->up);
}

/* Returns the level where the run begins: the table's last, or that of step `first` of `steps` with
 * linspace's timesteps. */
static float first_sigma(const struct noise_schedule *schedule, int steps, int first) {
    const int last = schedule->num_train_timesteps - 1;
    return first == 0 ? schedule->sigmas[last]
                      : (float)sigma_of_timestep(schedule,
                            (double)(float)linspace_at(0, last, steps, steps - 1 - first));
}

/* Returns the order of the next step if `left` evaluations are left. */
static int order_of(int left) {
    return left == 3 ? 2 : left < 3 ? left : 3;
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    const float eta = (float)config->values.eta;
    const float high = first_sigma(schedule, steps, plan->first_step), low = schedule->sigmas[0];
    const int count = steps - plan->first_step, whole = count / 3;
    const float begin = -round_log(high), end = -round_log(low);
    if (!(low > 0))
        return scheduler_refuse_division(config, 0, err);
    if (!(high > low))
        return scheduler_refuse_steps(err, steps,
            "more, or a larger strength: dpm_fast would begin at the smallest noise, where it "
            "ends");
    if (!scheduler_plan_allocate(plan, steps, err))
        return false;
    plan->init_noise_sigma = high;
    int done = plan->first_step;
    for (int i = 0; done < steps; i++) {
        struct fast_step step = { .order = order_of(steps - done),
            .t = linspace_f32_at(begin, end, whole + 2, i) };
        const float next = linspace_f32_at(begin, end, whole + 2, i + 1);
        step.t_next = next;
        if (eta > 0) {
            const float to = round_exp(-next);
            const struct ancestral_sigmas level = ancestral_step_eta(round_exp(-step.t), to, eta);
            step.t_next = fminf(end, -round_log(level.down));
            const float down = round_exp(-step.t_next);
            step.up = sqrtf(fmaxf(to * to - down * down, 0));
            plan->evaluations[done + step.order - 1].draws_noise = true;
        }
        add_step(&plan->evaluations[done], config->values.prediction_type, schedule, &step);
        done += step.order;
    }
    return true;
}

const struct scheduler_class scheduler_dpm_fast = {
    .info = {
        .name = "dpm_fast",
        .class_name = "sample_dpm_fast",
        .display_name = "DPM fast",
        .description = "DPM-Solver of orders 3, 2 and 1: one evaluation for each step asked for.",
        .aliases = { "DPM fast" },
    },
    .options = {
        [OPTION_TIMESTEP_SPACING] = { .lacks = true },
        [OPTION_STEPS_OFFSET] = { .lacks = true },
        [OPTION_ETA] = { true, 1 },
    },
    .fill = fill,
};
