#include "engine/scheduler/scheduler.h"

#include "base/limits.h"
#include "engine/scheduler/class.h"

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
    return scheduler_list_words(out, size, names, SCHEDULER_COUNT, quote, " or ");
}

struct prediction_weights prediction_weights(enum prediction_type prediction, float alpha_cumprod) {
    float root_alpha = sqrtf(alpha_cumprod), root_beta = sqrtf(1.0f - alpha_cumprod);
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
    struct scheduler_update *update = &evaluation->updates[evaluation->update_count++];
    update->target = target;
    return update;
}

void scheduler_keep(struct scheduler_evaluation *evaluation, int slot, enum scheduler_term term) {
    scheduler_add_update(evaluation, TERM_SLOT + slot)->weights[term] = 1;
}

/* Epsilon prediction divides by sqrt(alphas_cumprod), which zero terminal SNR makes 0. */
static bool check_finite(const struct scheduler_plan *plan, struct error *err) {
    for (int i = 0; i < plan->count; i++) {
        const struct scheduler_evaluation *evaluation = &plan->evaluations[i];
        for (int u = 0; u < evaluation->update_count; u++)
            for (int term = 0; term < TERM_COUNT; term++)
                if (!isfinite(evaluation->updates[u].weights[term]))
                    return error_set(err, ERROR_INVALID,
                        "scheduler: the step at timestep %g divides by zero with this "
                        "prediction_type and noise schedule; with rescale_betas_zero_snr, "
                        "prediction_type must be v_prediction or sample",
                        (double)evaluation->timestep);
    }
    return true;
}

static bool plan_allocate(int count, struct scheduler_plan **out, struct error *err) {
    struct scheduler_plan *plan = calloc(1, sizeof(*plan));
    if (plan)
        plan->evaluations = calloc((size_t)count, sizeof(*plan->evaluations));
    if (!plan || !plan->evaluations) {
        scheduler_plan_destroy(plan);
        return error_set(err, ERROR_NO_MEMORY, "scheduler: no memory for %d evaluations", count);
    }
    plan->count = count;
    plan->init_noise_sigma = 1;
    for (int i = 0; i < count; i++)
        plan->evaluations[i].input_scale = 1;
    *out = plan;
    return true;
}

bool scheduler_plan_create(const struct scheduler_config *config, int num_inference_steps,
    struct scheduler_plan **out, struct error *err) {
    const struct scheduler_class *class = classes[config->kind];
    *out = NULL;
    if (num_inference_steps < 1 || num_inference_steps > STEPS_MAX) {
        char value[16];
        snprintf(value, sizeof(value), "%d", num_inference_steps);
        return error_field(err, "num_inference_steps", value, "1 to %d", STEPS_MAX);
    }
    int *timesteps = calloc((size_t)num_inference_steps, sizeof(*timesteps));
    if (!timesteps)
        return error_set(err, ERROR_NO_MEMORY, "scheduler: no memory for the timesteps");
    struct noise_schedule schedule = { 0 };
    struct scheduler_plan *plan = NULL;
    bool ok = noise_schedule_timesteps(config, num_inference_steps, timesteps, err) &&
              noise_schedule_init(config, &schedule, err) &&
              plan_allocate(class->count(config, num_inference_steps), &plan, err) &&
              class->fill(config, &schedule, timesteps, num_inference_steps, plan, err) &&
              check_finite(plan, err);
    noise_schedule_finish(&schedule);
    free(timesteps);
    if (!ok) {
        scheduler_plan_destroy(plan);
        return false;
    }
    *out = plan;
    return true;
}

void scheduler_plan_destroy(struct scheduler_plan *plan) {
    if (!plan)
        return;
    free(plan->evaluations);
    free(plan);
}
