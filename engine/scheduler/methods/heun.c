/* Heun's method: Euler's step, then the same step with the mean of the derivatives at both ends
 * (Karras et al., 2022, algorithm 1). Each step takes two evaluations, except the last, which takes
 * one and ends without noise.
 *
 * Restart (Xu et al., 2023, "Restart Sampling for Improving Generative Processes") takes Heun's
 * steps, and some of them a second time from noise that it adds. The levels are those of
 * AUTOMATIC1111's restart_sampler. */
#include "engine/scheduler/sigmas.h"

#include <math.h>

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

/* --- Restart --- */

/* From RESTART_MIN_STEPS on, a run takes Karras' levels. When it has come down to the one nearest
 * to RESTART_LOW, fresh noise takes it up again to the one nearest to RESTART_HIGH. */
#define RESTART_MIN_STEPS 20
#define RESTART_TWICE_STEPS 36 /* runs of at least as many steps go up twice, shorter ones once */
#define RESTART_LOW 0.1f
#define RESTART_HIGH 2.0f

/* Step k goes from from[k] to to[k]. */
struct jumps {
    int count;
    float from[STEPS_MAX], to[STEPS_MAX];
};

static void add_jump(struct jumps *jumps, float from, float to) {
    jumps->from[jumps->count] = from;
    jumps->to[jumps->count++] = to;
}

/* Entry i of k-diffusion's get_sigmas_karras, in float32 as there. */
static float karras_f32(float max, float min, int count, int i) {
    const double first = pow((double)max, 1 / 7.0), last = pow((double)min, 1 / 7.0);
    const float at = (float)first + linspace_f32_at(0, 1, count, i) * (float)(last - first);
    return (float)pow((double)at, 7);
}

static int nearest(const float *sigmas, int count, float level) {
    int found = 0;
    for (int i = 1; i < count; i++)
        if (fabsf(sigmas[i] - level) < fabsf(sigmas[found] - level))
            found = i;
    return found;
}

/* Lists the steps of a run down sigmas[0..steps], the last of which is 0. The restarts are some of
 * the `steps`: each has 9 steps, or a quarter of all if there are two. */
static void list_jumps(const float *sigmas, int steps, struct jumps *out) {
    const int times = steps < RESTART_MIN_STEPS ? 0 : steps < RESTART_TWICE_STEPS ? 1 : 2;
    const int again = times == 2 ? steps / 4 : 9, down = steps - times * again;
    float levels[STEPS_MAX + 1];
    for (int i = 0; i <= down; i++)
        levels[i] = times == 0 || i == down ? sigmas[i == down ? steps : i]
                                            : karras_f32(sigmas[0], sigmas[steps - 1], down, i);
    const int low = nearest(levels, down + 1, RESTART_LOW);
    const int high = nearest(levels, down + 1, RESTART_HIGH);
    for (int i = 0; i < down; i++) {
        add_jump(out, levels[i], levels[i + 1]);
        for (int k = 0; i + 1 == low && high < low && k < times * again; k++)
            add_jump(out, karras_f32(levels[high], levels[low], again + 1, k % again),
                karras_f32(levels[high], levels[low], again + 1, k % again + 1));
    }
}

/* Adds step k, and before the next one the noise that takes the sample up to its level. Returns the
 * number of evaluations. */
static int add_jump_evaluations(struct scheduler_evaluation *evaluation,
    enum prediction_type prediction, const struct noise_schedule *schedule,
    const struct jumps *jumps, int k) {
    const float from = jumps->from[k], to = jumps->to[k];
    const int count = to == 0 ? 1 : 2;
    sigma_see(&evaluation[0], (float)timestep_of_sigma(schedule, (double)from), from);
    add_first(&evaluation[0], prediction, from, to - from, to == 0);
    if (to != 0) {
        sigma_see(&evaluation[1], (float)timestep_of_sigma(schedule, (double)to), to);
        add_second(&evaluation[1], prediction, to, to - from);
    }
    if (k + 1 < jumps->count && jumps->from[k + 1] > to) {
        const float next = jumps->from[k + 1];
        struct scheduler_update *update = scheduler_add_update(&evaluation[count - 1], TERM_SAMPLE);
        evaluation[count - 1].draws_noise = true;
        update->weights[TERM_SAMPLE] = 1;
        update->weights[TERM_NOISE] = sqrtf(next * next - to * to);
    }
    return count;
}

/* The steps from first_step on are a run of their own, with restarts if there are enough of
 * them. */
static bool fill_restart(const struct scheduler_config *config,
    const struct noise_schedule *schedule, int steps, struct scheduler_plan *plan,
    struct error *err) {
    struct sigma_run run;
    struct jumps jumps = { 0 };
    if (!sigma_run_init(&run, config, schedule, SIGMAS_SPACED_SEEN, steps, err))
        return false;
    list_jumps(run.sigmas + plan->first_step, steps - plan->first_step, &jumps);
    if (!scheduler_plan_allocate(plan, plan->first_step + 2 * jumps.count, err))
        return false;
    plan->init_noise_sigma = sigma_run_init_noise(&run, config);
    int count = plan->first_step;
    for (int k = 0; k < jumps.count; k++)
        count += add_jump_evaluations(
            &plan->evaluations[count], config->values.prediction_type, schedule, &jumps, k);
    plan->count = count;
    return true;
}

const struct scheduler_class scheduler_restart = {
    .info = {
        .name = "restart",
        .class_name = "restart_sampler",
        .display_name = "Restart",
        .description = "Heun's method that goes back to more noise once or twice, from 20 steps on.",
        .aliases = { "Restart" },
    },
    .options = {
        SIGMA_SPACING_OPTION,
        SIGMA_SCHEDULE_OPTIONS,
    },
    .counted = 2, /* as AUTOMATIC1111 counts, whose run has about 2 evaluations per step */
    .fill = fill_restart,
};
