/* PNDM: a linear multistep method on the model's outputs (Liu et al., 2022), the default scheduler
 * of Stable Diffusion 1.5.
 *
 * With skip_prk_steps (every Stable Diffusion checkpoint) it is PLMS: the second-highest timestep
 * is visited twice; the second visit repeats the first step with the mean of both outputs. Without
 * it, the three highest timesteps take four Runge-Kutta evaluations each.
 *
 * Slots: 0..2 a ring of earlier outputs, 3 the sum of a Runge-Kutta group's outputs so far, 4 the
 * sample that a step started from, 5 the noise that a step uses. */
#include "base/limits.h"
#include "engine/scheduler/class.h"

#include <math.h>

#define RING 3
#define SLOT_PRK_SUM 3
#define SLOT_START 4
#define SLOT_NOISE 5
#define PRK_GROUPS 3
#define PRK_EVALUATIONS (4 * PRK_GROUPS)
#define PRK_MIN_STEPS 4

struct pndm {
    const struct scheduler_values *values;
    const struct noise_schedule *schedule;
    int stride;     /* training timesteps between two steps */
    int ring[RING]; /* slots of earlier outputs, newest first */
    int ring_count;
};

/* Formula 9: adds the updates from timestep t to prev. Term `start` holds the sample at t, term
 * `output` the model's output or a mean of several. These are the reference's operations one by
 * one: with betas near 1, sample and noise grow by ten thousand and cancel except for rounding
 * errors. */
static void transfer(const struct pndm *pndm, struct scheduler_evaluation *evaluation, int start,
    int output, int t, int prev) {
    const float *alphas_cumprod = pndm->schedule->alphas_cumprod;
    float final_alpha = pndm->values->set_alpha_to_one ? 1.0f : alphas_cumprod[0];
    float alpha_prod_t = alphas_cumprod[t];
    float alpha_prod_prev = prev >= 0 ? alphas_cumprod[prev] : final_alpha;
    float beta_prod_t = 1.0f - alpha_prod_t, beta_prod_prev = 1.0f - alpha_prod_prev;
    struct scheduler_update *update;
    if (pndm->values->prediction_type == PREDICTION_V) {
        update = scheduler_add_update(evaluation, TERM_SLOT + SLOT_NOISE);
        update->weights[output] = sqrtf(alpha_prod_t);
        update->weights[start] = sqrtf(beta_prod_t);
        output = TERM_SLOT + SLOT_NOISE;
    }
    update = scheduler_add_update(evaluation, TERM_SLOT + SLOT_NOISE);
    update->weights[output] = alpha_prod_prev - alpha_prod_t;
    update->divisor = alpha_prod_t * sqrtf(beta_prod_prev) +
                      sqrtf(alpha_prod_t * beta_prod_t * alpha_prod_prev);
    update = scheduler_add_update(evaluation, TERM_SAMPLE);
    update->weights[start] = sqrtf(alpha_prod_prev / alpha_prod_t);
    update->weights[TERM_SLOT + SLOT_NOISE] = -1;
}

/* Keeps this evaluation's output in the ring, in place of the oldest one. */
static void keep_output(struct pndm *pndm, struct scheduler_evaluation *evaluation) {
    int slot = pndm->ring_count < RING ? pndm->ring_count++ : pndm->ring[RING - 1];
    for (int i = pndm->ring_count - 1; i > 0; i--)
        pndm->ring[i] = pndm->ring[i - 1];
    pndm->ring[0] = slot;
    scheduler_keep(evaluation, slot, TERM_OUTPUT);
}

/* Adds evaluation k of a Runge-Kutta group that starts at timestep t. The outputs have weights 1/6,
 * 1/3, 1/3, 1/6. */
static void add_prk(
    struct pndm *pndm, struct scheduler_evaluation *evaluation, int k, int visited, int t) {
    static const float weights[4] = { 1.0f / 6, 1.0f / 3, 1.0f / 3, 1.0f / 6 };
    const int sum = TERM_SLOT + SLOT_PRK_SUM;
    noise_schedule_see(pndm->schedule, evaluation, visited);
    int prev = visited - (k % 2 ? 0 : pndm->stride / 2);
    if (k == 0)
        scheduler_keep(evaluation, SLOT_START, TERM_SAMPLE);
    struct scheduler_update *update = scheduler_add_update(evaluation, sum);
    update->weights[TERM_OUTPUT] = weights[k];
    update->weights[sum] = k > 0;
    transfer(pndm, evaluation, TERM_SLOT + SLOT_START, k == 3 ? sum : TERM_OUTPUT, t, prev);
    if (k == 0)
        keep_output(pndm, evaluation);
}

/* Adds a linear multistep evaluation with all earlier outputs in the ring, three at most. */
static void add_plms(struct pndm *pndm, struct scheduler_evaluation *evaluation, int t) {
    static const struct {
        float weights[RING + 1], divisor;
    } adams[RING + 1] = {
        { { 1 }, 1 },
        { { 3, -1 }, 2 },
        { { 23, -16, 5 }, 12 },
        { { 55, -59, 37, -9 }, 24 },
    };
    const int earlier = pndm->ring_count;
    int output = TERM_OUTPUT;
    noise_schedule_see(pndm->schedule, evaluation, t);
    if (earlier > 0) {
        output = TERM_SLOT + SLOT_NOISE;
        struct scheduler_update *mean = scheduler_add_update(evaluation, output);
        mean->weights[TERM_OUTPUT] = adams[earlier].weights[0];
        for (int i = 0; i < earlier; i++)
            mean->weights[TERM_SLOT + pndm->ring[i]] = adams[earlier].weights[i + 1];
        mean->divisor = adams[earlier].divisor;
    }
    transfer(pndm, evaluation, TERM_SAMPLE, output, t, t - pndm->stride);
    keep_output(pndm, evaluation);
}

/* Adds the second visit of t, which repeats the first step from its start with the mean of both
 * outputs. */
static void add_plms_again(struct pndm *pndm, struct scheduler_evaluation *evaluation, int t) {
    const int mean = TERM_SLOT + SLOT_NOISE;
    noise_schedule_see(pndm->schedule, evaluation, t);
    struct scheduler_update *update = scheduler_add_update(evaluation, mean);
    update->weights[TERM_OUTPUT] = update->weights[TERM_SLOT + pndm->ring[0]] = 1;
    update->divisor = 2;
    transfer(pndm, evaluation, TERM_SLOT + SLOT_START, mean, t + pndm->stride, t);
}

/* visited[0..count) are the timesteps as diffusers lists them. A run that begins at first_step
 * begins like a full run: its second evaluation repeats its first step. */
static void fill_plms(struct pndm *pndm, const int *visited, struct scheduler_plan *plan) {
    const int first = plan->first_step;
    scheduler_keep(&plan->evaluations[first], SLOT_START, TERM_SAMPLE);
    for (int i = first; i < plan->count; i++)
        if (i == first + 1)
            add_plms_again(pndm, &plan->evaluations[i], visited[i]);
        else
            add_plms(pndm, &plan->evaluations[i], visited[i]);
}

static void fill_prk(struct pndm *pndm, const int *visited, struct scheduler_plan *plan) {
    for (int i = plan->first_step, k = 0; i < plan->count; i++, k++)
        if (k < PRK_EVALUATIONS)
            add_prk(pndm, &plan->evaluations[i], k % 4, visited[i], visited[k / 4 * 4]);
        else
            add_plms(pndm, &plan->evaluations[i], visited[i]);
}

/* visit_plms and visit_prk list the timesteps to visit, and return how many there are. */
static int visit_plms(const int *timesteps, int steps, int *visited) {
    int count = 0;
    for (int i = 0; i < steps; i++) {
        visited[count++] = timesteps[i];
        if (i == 1)
            visited[count++] = timesteps[i];
    }
    return count;
}

static int visit_prk(const struct pndm *pndm, const int *timesteps, int steps, int *visited) {
    int count = 0;
    for (int group = 0; group < PRK_GROUPS; group++) {
        const int next = timesteps[group + 1], middle = next + pndm->stride / 2;
        const int group_visits[4] = { timesteps[group], middle, middle, next };
        for (int k = 0; k < 4; k++)
            visited[count++] = group_visits[k];
    }
    for (int i = PRK_GROUPS; i < steps; i++)
        visited[count++] = timesteps[i];
    return count;
}

/* Refuses a run whose second evaluation would repeat a step from above the training range: that
 * step starts one stride above the evaluation's timestep. */
static bool check_second(const struct pndm *pndm, const int *visited, int steps,
    struct scheduler_plan *plan, struct error *err) {
    const int second = plan->first_step + 1;
    if (second >= plan->count ||
        visited[second] + pndm->stride < pndm->schedule->num_train_timesteps)
        return true;
    return scheduler_refuse_steps(err, steps,
        "pndm's first step would start at timestep %d of %d: take fewer steps",
        visited[second] + pndm->stride, pndm->schedule->num_train_timesteps);
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    int timesteps[STEPS_MAX], visited[STEPS_MAX + PRK_EVALUATIONS];
    const bool prk = !config->values.skip_prk_steps;
    struct pndm pndm = { .values = &config->values,
        .schedule = schedule,
        .stride = schedule->num_train_timesteps / steps };
    if (!noise_schedule_timesteps(config, steps, timesteps, err))
        return false;
    if (prk && steps < PRK_MIN_STEPS)
        return scheduler_refuse_steps(
            err, steps, "pndm with skip_prk_steps false needs at least %d", PRK_MIN_STEPS);
    const int count = prk ? visit_prk(&pndm, timesteps, steps, visited)
                          : visit_plms(timesteps, steps, visited);
    if (!scheduler_plan_allocate(plan, count, err))
        return false;
    if (prk)
        fill_prk(&pndm, visited, plan);
    else if (check_second(&pndm, visited, steps, plan, err))
        fill_plms(&pndm, visited, plan);
    else
        return false;
    return true;
}

const struct scheduler_class scheduler_pndm = {
    .info = {
        .name = "pndm",
        .class_name = "PNDMScheduler",
        .display_name = "PNDM (PLMS)",
        .description = "Stable Diffusion 1.5's default: fourth-order multistep, no fresh noise.",
        .aliases = { "PNDM", "PNDMScheduler", "plms", "PLMS" },
    },
    .options = {
        WHOLE_SPACING_OPTION,
        [OPTION_PREDICTION_TYPE] = { true, PREDICTION_EPSILON, EPSILON_OR_V },
        [OPTION_SET_ALPHA_TO_ONE] = { true, false },
        [OPTION_SKIP_PRK_STEPS] = { true, false },
    },
    .fill = fill,
};
