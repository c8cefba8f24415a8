/* PNDM: a linear multistep method on the model's outputs (Liu et al., 2022), Stable Diffusion 1.5's
 * own scheduler.
 *
 * With skip_prk_steps (every Stable Diffusion checkpoint) it is PLMS: the second-highest timestep
 * is visited twice, the second time to redo the first step with the mean of both outputs. Without
 * it, the three highest timesteps take four Runge-Kutta evaluations each.
 *
 * Slots: 0..2 a ring of earlier outputs, 3 and 4 the second and third Runge-Kutta output of a
 * group, 5 the sample a step started from. */
#include "base/limits.h"
#include "engine/scheduler/class.h"

#include <math.h>

#define RING 3
#define SLOT_PRK_SECOND 3
#define SLOT_PRK_THIRD 4
#define SLOT_START 5
#define PRK_GROUPS 3
#define PRK_EVALUATIONS (4 * PRK_GROUPS)
#define PRK_MIN_STEPS 4

struct pndm {
    const struct scheduler_values *values;
    const float *alphas_cumprod;
    int stride;     /* training timesteps between two steps */
    int ring[RING]; /* slots of earlier outputs, newest first */
    int ring_count;
};

/* Formula 9: from timestep t to prev, starting at term `start`, with the outputs' mean m already in
 * update->weights. The weights of m become those of the step. */
static void transfer(const struct pndm *pndm, struct scheduler_update *update,
    enum scheduler_term start, int t, int prev) {
    float final_alpha = pndm->values->set_alpha_to_one ? 1.0f : pndm->alphas_cumprod[0];
    float alpha_prod_t = pndm->alphas_cumprod[t];
    float alpha_prod_prev = prev >= 0 ? pndm->alphas_cumprod[prev] : final_alpha;
    float beta_prod_t = 1.0f - alpha_prod_t, beta_prod_prev = 1.0f - alpha_prod_prev;
    float sample_weight = sqrtf(alpha_prod_prev / alpha_prod_t);
    float denominator = alpha_prod_t * sqrtf(beta_prod_prev) +
                        sqrtf(alpha_prod_t * beta_prod_t * alpha_prod_prev);
    float noise_weight = -(alpha_prod_prev - alpha_prod_t) / denominator;
    struct prediction_weights p = prediction_weights(pndm->values->prediction_type, alpha_prod_t);
    for (int term = 0; term < TERM_COUNT; term++)
        update->weights[term] *= noise_weight * p.noise_output;
    update->weights[start] += sample_weight + noise_weight * p.noise_sample;
}

/* The output of this evaluation replaces the oldest in the ring. */
static void keep_output(struct pndm *pndm, struct scheduler_evaluation *evaluation) {
    int slot = pndm->ring_count < RING ? pndm->ring_count++ : pndm->ring[RING - 1];
    for (int i = pndm->ring_count - 1; i > 0; i--)
        pndm->ring[i] = pndm->ring[i - 1];
    pndm->ring[0] = slot;
    scheduler_keep(evaluation, slot, TERM_OUTPUT);
}

/* Evaluation k of a group that starts at timestep t: weights 1/6, 1/3, 1/3, 1/6. */
static void add_prk(
    struct pndm *pndm, struct scheduler_evaluation *evaluation, int k, int visited, int t) {
    evaluation->timestep = (float)visited;
    int prev = visited - (k % 2 ? 0 : pndm->stride / 2);
    if (k == 0)
        scheduler_keep(evaluation, SLOT_START, TERM_SAMPLE);
    struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
    update->weights[TERM_OUTPUT] = 1;
    if (k == 3) {
        update->weights[TERM_OUTPUT] = 1.0f / 6;
        update->weights[TERM_SLOT + pndm->ring[0]] = 1.0f / 6;
        update->weights[TERM_SLOT + SLOT_PRK_SECOND] = 1.0f / 3;
        update->weights[TERM_SLOT + SLOT_PRK_THIRD] = 1.0f / 3;
    }
    transfer(pndm, update, TERM_SLOT + SLOT_START, t, prev);
    if (k == 0)
        keep_output(pndm, evaluation);
    else if (k < 3)
        scheduler_keep(evaluation, k == 1 ? SLOT_PRK_SECOND : SLOT_PRK_THIRD, TERM_OUTPUT);
}

/* A linear multistep evaluation with as many earlier outputs as there are. */
static void add_plms(struct pndm *pndm, struct scheduler_evaluation *evaluation, int t) {
    static const float adams[RING + 1][RING + 1] = {
        { 1 },
        { 3.0f / 2, -1.0f / 2 },
        { 23.0f / 12, -16.0f / 12, 5.0f / 12 },
        { 55.0f / 24, -59.0f / 24, 37.0f / 24, -9.0f / 24 },
    };
    const float *weights = adams[pndm->ring_count];
    evaluation->timestep = (float)t;
    struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
    update->weights[TERM_OUTPUT] = weights[0];
    for (int i = 0; i < pndm->ring_count; i++)
        update->weights[TERM_SLOT + pndm->ring[i]] = weights[i + 1];
    transfer(pndm, update, TERM_SAMPLE, t, t - pndm->stride);
    keep_output(pndm, evaluation);
}

/* The second visit of t: the first step again, from where it started, with the mean of both. */
static void add_plms_again(struct pndm *pndm, struct scheduler_evaluation *evaluation, int t) {
    evaluation->timestep = (float)t;
    struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SAMPLE);
    update->weights[TERM_OUTPUT] = 0.5f;
    update->weights[TERM_SLOT + pndm->ring[0]] = 0.5f;
    transfer(pndm, update, TERM_SLOT + SLOT_START, t + pndm->stride, t);
}

static void fill_plms(
    struct pndm *pndm, const int *timesteps, int steps, struct scheduler_plan *plan) {
    struct scheduler_evaluation *evaluation = plan->evaluations;
    scheduler_keep(evaluation, SLOT_START, TERM_SAMPLE);
    add_plms(pndm, evaluation++, timesteps[0]);
    for (int i = 1; i < steps; i++) {
        if (i == 1)
            add_plms_again(pndm, evaluation++, timesteps[1]);
        add_plms(pndm, evaluation++, timesteps[i]);
    }
}

static void fill_prk(
    struct pndm *pndm, const int *timesteps, int steps, struct scheduler_plan *plan) {
    struct scheduler_evaluation *evaluation = plan->evaluations;
    for (int group = 0; group < PRK_GROUPS; group++) {
        int t = timesteps[group], next = timesteps[group + 1];
        int visited[4] = { t, next + pndm->stride / 2, next + pndm->stride / 2, next };
        for (int k = 0; k < 4; k++)
            add_prk(pndm, evaluation++, k, visited[k], t);
    }
    for (int i = PRK_GROUPS; i < steps; i++)
        add_plms(pndm, evaluation++, timesteps[i]);
}

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    int timesteps[STEPS_MAX];
    struct pndm pndm = { .values = &config->values,
        .alphas_cumprod = schedule->alphas_cumprod,
        .stride = schedule->num_train_timesteps / steps };
    if (!noise_schedule_timesteps(config, steps, timesteps, err))
        return false;
    if (!config->values.skip_prk_steps) {
        if (steps < PRK_MIN_STEPS)
            return scheduler_refuse_steps(
                err, steps, "pndm with skip_prk_steps false needs at least %d", PRK_MIN_STEPS);
        if (!scheduler_plan_allocate(plan, PRK_EVALUATIONS + steps - PRK_GROUPS, err))
            return false;
        fill_prk(&pndm, timesteps, steps, plan);
        return true;
    }
    /* The second visit redoes the first step, from one stride above the second timestep. */
    if (steps > 1 && timesteps[1] + pndm.stride >= schedule->num_train_timesteps)
        return scheduler_refuse_steps(err, steps,
            "pndm's first step would start at timestep %d of %d: take fewer steps",
            timesteps[1] + pndm.stride, schedule->num_train_timesteps);
    if (!scheduler_plan_allocate(plan, steps > 1 ? steps + 1 : 1, err))
        return false;
    fill_plms(&pndm, timesteps, steps, plan);
    return true;
}

static const char *const aliases[] = { "PNDM", "PNDMScheduler", "plms", "PLMS", NULL };

const struct scheduler_class scheduler_pndm = {
    .info = {
        .name = "pndm",
        .class_name = "PNDMScheduler",
        .display_name = "PNDM (PLMS)",
        .description = "Stable Diffusion 1.5's default: fourth-order multistep, no fresh noise.",
        .aliases = aliases,
    },
    .options = {
        WHOLE_SPACING_OPTION,
        [OPTION_PREDICTION_TYPE] = { true, PREDICTION_EPSILON, EPSILON_OR_V },
        [OPTION_SET_ALPHA_TO_ONE] = { true, false },
        [OPTION_SKIP_PRK_STEPS] = { true, false },
    },
    .fill = fill,
};
