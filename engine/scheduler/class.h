/* What a scheduler's own file provides. Only this folder and its test include this header. */
#ifndef ENGINE_SCHEDULER_CLASS_H
#define ENGINE_SCHEDULER_CLASS_H

#include "engine/scheduler/noise_schedule.h"

/* An option in a class's own list: one that not every class has, or one whose default or words
 * differ, as in the constructor in diffusers. */
struct class_option {
    bool has;       /* true in every entry, except those that `lacks` */
    double value;   /* the default */
    unsigned words; /* bits 1 << enum of the words that the class knows; 0: all */
    bool lacks;     /* the class lacks an option that every other class has */
    bool not_filed; /* diffusers' class has no such key: only requests can set it */
    /* Bits of words of other classes. In a file these stand for the default, as in diffusers. */
    unsigned foreign;
};

struct scheduler_class {
    struct scheduler_info info;
    struct class_option options[SCHEDULER_OPTION_COUNT];
    /* Chooses the timesteps (or sigmas) of `steps` steps, 1..STEPS_MAX, calls
     * scheduler_plan_allocate and fills in the evaluations. The evaluations of the steps before
     * plan->first_step are discarded, so later ones must not depend on them. */
    bool (*fill)(const struct scheduler_config *config, const struct noise_schedule *schedule,
        int steps, struct scheduler_plan *plan, struct error *err);
    int order; /* as in diffusers: its timesteps per step; 0: one */
};

/* Spacings of the classes with whole timesteps. */
#define WHOLE_SPACING_OPTION                                                                       \
    [OPTION_TIMESTEP_SPACING] = { true, SPACING_LEADING,                                           \
        1 << SPACING_LEADING | 1 << SPACING_TRAILING | 1 << SPACING_LINSPACE }

/* Prediction types of the classes that raise for "sample" in diffusers. */
#define EPSILON_OR_V (1 << PREDICTION_EPSILON | 1 << PREDICTION_V)

#define SCHEDULER_CLASS(id, name) extern const struct scheduler_class scheduler_##name;
SCHEDULERS(SCHEDULER_CLASS)
#undef SCHEDULER_CLASS

const struct scheduler_class *scheduler_get_class(enum scheduler_kind kind);

/* Like scheduler_plan_create, for a class that need not be in the registry. ERROR_INTERNAL for a
 * plan that the sampler could not follow. */
bool scheduler_class_plan(const struct scheduler_class *class,
    const struct scheduler_config *config, int num_inference_steps, int first_step,
    struct scheduler_plan **out, struct error *err) __attribute__((warn_unused_result));

/* Allocates plan->evaluations[count], zeroed except that input_divisor is 1. */
bool scheduler_plan_allocate(struct scheduler_plan *plan, int count, struct error *err)
    __attribute__((warn_unused_result));

/* Sets ERROR_INVALID for a step that divides by 0 or is not finite with this configuration. Returns
 * false. */
bool scheduler_refuse_division(
    const struct scheduler_config *config, float timestep, struct error *err);

/* How x0 and the noise follow from the sample and the model's output: x0 = x0_sample * sample +
 * x0_output * output; noise likewise. */
struct prediction_weights {
    double x0_sample, x0_output;
    double noise_sample, noise_output;
};
struct prediction_weights prediction_weights(enum prediction_type prediction, float alpha_cumprod);
/* The same for a sample that is root_alpha * x0 + root_beta * noise. */
struct prediction_weights prediction_weights_of(
    enum prediction_type prediction, float root_alpha, float root_beta);

/* Appends an empty update (with divisor 1) to the evaluation. Never returns NULL: a plan with more
 * than SCHEDULER_MAX_UPDATES in an evaluation is refused as a whole. */
struct scheduler_update *scheduler_add_update(struct scheduler_evaluation *evaluation, int target);
/* Appends an update that copies `term` to a slot. */
void scheduler_keep(struct scheduler_evaluation *evaluation, int slot, enum scheduler_term term);

#endif
