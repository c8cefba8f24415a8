#include "engine/scheduler/class.h"

#include "base/limits.h"
#include "base/text/words.h"
#include "engine/scheduler/brownian.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCHEDULER_ENTRY(id, name) [SCHEDULER_##id] = &scheduler_##name,
static const struct scheduler_class *const classes[SCHEDULER_COUNT] = { SCHEDULERS(
    SCHEDULER_ENTRY) };

const struct scheduler_class *scheduler_get_class(enum scheduler_kind kind) {
    return classes[kind];
}

const struct scheduler_info *scheduler_get_info(enum scheduler_kind kind) {
    return &classes[kind]->info;
}

const char *scheduler_kind_name(enum scheduler_kind kind) {
    return classes[kind]->info.name;
}

int scheduler_order(enum scheduler_kind kind) {
    const struct scheduler_class *class = classes[kind];
    return class->counted ? class->counted : class->order ? class->order : 1;
}

bool scheduler_kind_from_name(const char *name, enum scheduler_kind *out) {
    for (int kind = 0; kind < SCHEDULER_COUNT; kind++) {
        const struct scheduler_info *info = &classes[kind]->info;
        bool found = strcmp(info->name, name) == 0;
        for (const char *const *alias = info->aliases; *alias && !found; alias++)
            found = strcmp(*alias, name) == 0;
        if (found) {
            *out = (enum scheduler_kind)kind;
            return true;
        }
    }
    return false;
}

const char *scheduler_list_names(char *out, size_t size, const char *quote) {
    const char *names[SCHEDULER_COUNT];
    for (int kind = 0; kind < SCHEDULER_COUNT; kind++)
        names[kind] = classes[kind]->info.name;
    return words_list(out, size, names, SCHEDULER_COUNT, quote, " or ");
}

struct prediction_weights prediction_weights(enum prediction_type prediction, float alpha_cumprod) {
    return prediction_weights_of(prediction, sqrtf(alpha_cumprod), sqrtf(1.0f - alpha_cumprod));
}

struct prediction_weights prediction_weights_of(
    enum prediction_type prediction, float root_alpha, float root_beta) {
    switch (prediction) {
    case PREDICTION_SAMPLE:
        return (struct prediction_weights){ .x0_output = 1,
            .noise_sample = 1.0f / root_beta,
            .noise_output = -root_alpha / root_beta };
    case PREDICTION_V:
        return (struct prediction_weights){ .x0_sample = root_alpha,
            .x0_output = -root_beta,
            .noise_sample = root_beta,
            .noise_output = root_alpha };
    default:
        return (struct prediction_weights){
            .x0_sample = 1.0f / root_alpha, .x0_output = -root_beta / root_alpha, .noise_output = 1
        };
    }
}

struct scheduler_update *scheduler_add_update(struct scheduler_evaluation *evaluation, int target) {
    if (evaluation->update_count <= SCHEDULER_MAX_UPDATES)
        evaluation->update_count++; /* check_evaluation detects the extra one */
    int last = evaluation->update_count <= SCHEDULER_MAX_UPDATES ? evaluation->update_count
                                                                 : SCHEDULER_MAX_UPDATES;
    struct scheduler_update *update = &evaluation->updates[last - 1];
    update->target = target;
    update->divisor = 1;
    return update;
}

void scheduler_keep(struct scheduler_evaluation *evaluation, int slot, enum scheduler_term term) {
    scheduler_add_update(evaluation, TERM_SLOT + slot)->weights[term] = 1;
}

static bool is_divisor(float x) {
    return isfinite(x) && x != 0;
}

static bool is_finite(const struct scheduler_evaluation *evaluation) {
    bool finite = isfinite(evaluation->timestep) && is_divisor(evaluation->input_divisor);
    for (int u = 0; u < evaluation->update_count; u++) {
        const struct scheduler_update *update = &evaluation->updates[u];
        finite = finite && is_divisor(update->divisor);
        for (int term = 0; term < TERM_COUNT; term++)
            finite = finite && isfinite(update->weights[term]);
    }
    return finite;
}

/* Returns, in words, why the sampler could not execute the update; NULL if it can. `kept`: which
 * slots have been written so far. */
static const char *check_update(const struct scheduler_plan *plan,
    const struct scheduler_evaluation *evaluation, const struct scheduler_update *update,
    bool kept[SCHEDULER_SLOTS]) {
    int count = 0;
    for (int term = 0; term < TERM_COUNT; term++) {
        if (update->weights[term] == 0)
            continue;
        count++;
        if (term == TERM_NOISE && !evaluation->draws_noise)
            return "weighs noise that is not drawn";
        if (term == TERM_UNCONDITIONAL && !plan->must_guide)
            return "reads the output without the prompt, which not every image has";
        if (term >= TERM_SLOT && !kept[term - TERM_SLOT])
            return "reads a slot before it is written";
    }
    if (count > COMBINE_MAX_TERMS)
        return "has more terms than op_combine takes";
    if (update->target == TERM_SAMPLE)
        return NULL;
    if (update->target < TERM_SLOT || update->target >= TERM_COUNT)
        return "writes neither the sample nor a slot";
    kept[update->target - TERM_SLOT] = true;
    return NULL;
}

static const char *check_evaluation(const struct scheduler_plan *plan,
    const struct scheduler_evaluation *evaluation, bool kept[SCHEDULER_SLOTS]) {
    const char *wrong = NULL;
    for (int u = 0; u < evaluation->update_count && !wrong; u++)
        wrong = check_update(plan, evaluation, &evaluation->updates[u], kept);
    return wrong;
}

/* Reports an error of the configuration, not of the class. With zero terminal SNR
 * sqrt(alphas_cumprod) ends at 0, and epsilon prediction divides by it. */
bool scheduler_refuse_division(
    const struct scheduler_config *config, float timestep, struct error *err) {
    const struct scheduler_values *values = &config->values;
    if (values->rescale_betas_zero_snr && values->prediction_type == PREDICTION_EPSILON)
        return error_field(err, "scheduler.prediction_type", "\"epsilon\"",
            "\"v_prediction\" or \"sample\" with rescale_betas_zero_snr: the step at timestep %g "
            "divides by zero",
            (double)timestep);
    if (values->beta_schedule == BETA_SQUAREDCOS_CAP_V2)
        return error_field(err, "scheduler.beta_schedule", "\"squaredcos_cap_v2\"",
            "another one, or other steps: the step at timestep %g divides by zero with this one",
            (double)timestep);
    return error_set(err, ERROR_INVALID,
        "scheduler: the step at timestep %g divides by zero with this noise schedule",
        (double)timestep);
}

/* Checks what the class has filled in, and counts its slots. */
static bool finish_plan(const struct scheduler_class *class, const struct scheduler_config *config,
    int steps, struct scheduler_plan *plan, struct error *err) {
    bool kept[SCHEDULER_SLOTS] = { false };
    for (int i = 0; i < plan->count; i++) {
        const struct scheduler_evaluation *evaluation = &plan->evaluations[i];
        bool fits = evaluation->update_count <= SCHEDULER_MAX_UPDATES;
        if (fits && !is_finite(evaluation))
            return scheduler_refuse_division(config, evaluation->timestep, err);
        if (fits && evaluation_is_brownian(evaluation) &&
            !brownian_resolves(plan->brownian_low, plan->brownian_high, evaluation->brownian_from,
                evaluation->brownian_to))
            return scheduler_refuse_steps(err, steps,
                "%s draws noise between sigmas %.9g and %.9g, and its Brownian motion resolves a "
                "millionth: take fewer steps",
                class->info.name, (double)evaluation->brownian_from,
                (double)evaluation->brownian_to);
        const char *wrong = fits ? check_evaluation(plan, evaluation, kept)
                                 : "has more updates than fit";
        if (wrong)
            return error_set(err, ERROR_INTERNAL, "scheduler: %s's evaluation %d of %d %s",
                class->info.name, i, plan->count, wrong);
    }
    for (int slot = 0; slot < SCHEDULER_SLOTS; slot++)
        if (kept[slot])
            plan->slot_count = slot + 1;
    return isfinite(plan->init_noise_sigma) ||
           error_set(err, ERROR_INVALID,
               "scheduler: the first noise has no finite size with this noise schedule");
}

bool scheduler_plan_allocate(struct scheduler_plan *plan, int count, struct error *err) {
    plan->evaluations = calloc((size_t)count, sizeof(*plan->evaluations));
    if (!plan->evaluations)
        return error_set(err, ERROR_NO_MEMORY, "scheduler: no memory for %d evaluations", count);
    plan->count = count;
    for (int i = 0; i < count; i++)
        plan->evaluations[i].input_divisor = 1;
    return true;
}

/* Discards the evaluations before the first step. */
static bool begin_at_first(
    const struct scheduler_class *class, struct scheduler_plan *plan, struct error *err) {
    const int left_out = plan->first_step * (class->order ? class->order : 1);
    if (plan->first_step < 0 || left_out >= plan->count)
        return error_set(err, ERROR_INTERNAL, "scheduler: %s has no step %d", class->info.name,
            plan->first_step);
    plan->count -= left_out;
    memmove(plan->evaluations, plan->evaluations + left_out,
        sizeof(*plan->evaluations) * (size_t)plan->count);
    return true;
}

bool scheduler_class_plan(const struct scheduler_class *class,
    const struct scheduler_config *config, int num_inference_steps, int first_step,
    struct scheduler_plan **out, struct error *err) {
    *out = NULL;
    if (num_inference_steps < 1 || num_inference_steps > STEPS_MAX)
        return scheduler_refuse_steps(err, num_inference_steps, "1 to %d", STEPS_MAX);
    struct scheduler_plan *plan = calloc(1, sizeof(*plan));
    if (!plan)
        return error_set(err, ERROR_NO_MEMORY, "scheduler: no memory for a plan");
    plan->init_noise_sigma = 1;
    plan->guidance_factor = 1;
    plan->first_step = first_step;
    struct noise_schedule schedule = { 0 };
    bool ok = noise_schedule_init(config, &schedule, err) &&
              class->fill(config, &schedule, num_inference_steps, plan, err) &&
              begin_at_first(class, plan, err) &&
              finish_plan(class, config, num_inference_steps, plan, err);
    noise_schedule_finish(&schedule);
    if (!ok) {
        scheduler_plan_destroy(plan);
        return false;
    }
    *out = plan;
    return true;
}

void scheduler_evaluation_end(const struct scheduler_evaluation *evaluation,
    enum prediction_type prediction, float *of_sample, float *of_output) {
    const float signal = evaluation->signal, noise = evaluation->noise;
    const float root = sqrtf(signal * signal + noise * noise);
    const float least = 1e-4f; /* if only noise is left */
    const struct prediction_weights weights = prediction_weights_of(
        prediction, fmaxf(signal / root, least), noise / root);
    *of_sample = (float)weights.x0_sample / root;
    *of_output = (float)weights.x0_output;
}

bool scheduler_plan_create(const struct scheduler_config *config, int num_inference_steps,
    struct scheduler_plan **out, struct error *err) {
    return scheduler_plan_create_from(config, num_inference_steps, 0, out, err);
}

bool scheduler_plan_create_from(const struct scheduler_config *config, int num_inference_steps,
    int first_step, struct scheduler_plan **out, struct error *err) {
    return scheduler_class_plan(
        classes[config->kind], config, num_inference_steps, first_step, out, err);
}

void scheduler_plan_destroy(struct scheduler_plan *plan) {
    if (!plan)
        return;
    free(plan->evaluations);
    free(plan);
}
