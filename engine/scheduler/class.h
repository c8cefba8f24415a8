/* The interface between a scheduler class and the rest of the schedulers. Only this folder and its
 * test include this header. */
#ifndef ENGINE_SCHEDULER_CLASS_H
#define ENGINE_SCHEDULER_CLASS_H

#include "engine/scheduler/noise_schedule.h"

/* An entry in a class's list of options. The list holds options that only some classes have, and
 * options whose default or words differ from the table's, as they do in the class's constructor in
 * diffusers. */
struct class_option {
    bool has;       /* true in every entry, except with `lacks` */
    double value;   /* the default */
    unsigned words; /* bits 1 << enum of the words that the class has; 0: all */
    bool lacks;     /* the class lacks this option, which all others have */
    bool not_filed; /* not a key of diffusers' class: only requests can set it */
    /* Bits of words that only other classes accept. In a file they mean the class's default, as in
     * diffusers. */
    unsigned foreign;
};

struct scheduler_class {
    struct scheduler_info info;
    struct class_option options[SCHEDULER_OPTION_COUNT];
    /* Fills a plan of `steps` steps, 1..STEPS_MAX: chooses the timesteps (or sigmas), calls
     * scheduler_plan_allocate and fills in the evaluations. The evaluations before plan->first_step
     * are discarded, so later ones must not depend on them. */
    bool (*fill)(const struct scheduler_config *config, const struct noise_schedule *schedule,
        int steps, struct scheduler_plan *plan, struct error *err);
    int order; /* timesteps per step, as in diffusers; 0: one */
    /* Evaluations per step, as prompt editing counts them; 0: as many as timesteps. */
    int counted;
};

/* The timestep_spacing of classes with whole timesteps. */
#define WHOLE_SPACING_OPTION                                                                       \
    [OPTION_TIMESTEP_SPACING] = { true, SPACING_LEADING,                                           \
        1 << SPACING_LEADING | 1 << SPACING_TRAILING | 1 << SPACING_LINSPACE }

/* The prediction types of classes that reject "sample" in diffusers. */
#define EPSILON_OR_V (1 << PREDICTION_EPSILON | 1 << PREDICTION_V)

#define SCHEDULER_CLASS(id, name) extern const struct scheduler_class scheduler_##name;
SCHEDULERS(SCHEDULER_CLASS)
#undef SCHEDULER_CLASS

const struct scheduler_class *scheduler_get_class(enum scheduler_kind kind);

/* Does what scheduler_plan_create_from does, but for any class, registered or not. ERROR_INTERNAL
 * for a plan that the sampler cannot execute. */
bool scheduler_class_plan(const struct scheduler_class *class,
    const struct scheduler_config *config, int num_inference_steps, int first_step,
    struct scheduler_plan **out, struct error *err) __attribute__((warn_unused_result));

/* Allocates plan->evaluations[count], zeroed except that input_divisor is 1. */
bool scheduler_plan_allocate(struct scheduler_plan *plan, int count, struct error *err)
    __attribute__((warn_unused_result));

/* Sets ERROR_INVALID for a step that divides by zero, or is not finite, with this configuration.
 * Returns false. */
bool scheduler_refuse_division(
    const struct scheduler_config *config, float timestep, struct error *err);

/* Weights that give x0 and the noise from the sample and the model's output: x0 = x0_sample *
 * sample + x0_output * output, noise = noise_sample * sample + noise_output * output. */
struct prediction_weights {
    double x0_sample, x0_output;
    double noise_sample, noise_output;
};
struct prediction_weights prediction_weights(enum prediction_type prediction, float alpha_cumprod);
/* Returns these weights for a sample that is root_alpha * x0 + root_beta * noise. */
struct prediction_weights prediction_weights_of(
    enum prediction_type prediction, float root_alpha, float root_beta);

/* Appends an empty update (divisor 1) to the evaluation. Never returns NULL. A plan with more than
 * SCHEDULER_MAX_UPDATES in an evaluation is refused later. */
struct scheduler_update *scheduler_add_update(struct scheduler_evaluation *evaluation, int target);
/* Appends an update that copies `term` to a slot. */
void scheduler_keep(struct scheduler_evaluation *evaluation, int slot, enum scheduler_term term);

#endif
