/* What a scheduler's own file provides. Only this folder includes it. */
#ifndef ENGINE_SCHEDULER_CLASS_H
#define ENGINE_SCHEDULER_CLASS_H

#include "engine/scheduler/noise_schedule.h"

/* An option in a class's own list: one that not every class has, or one with a default or words of
 * its own; as the constructor in diffusers says. */
struct class_option {
    bool has;       /* true in every entry */
    double value;   /* the default */
    unsigned words; /* bits 1 << enum of the words it knows; 0: all */
};

struct scheduler_class {
    struct scheduler_info info;
    struct class_option options[SCHEDULER_OPTION_COUNT];
    /* UNet evaluations for so many steps. */
    int (*count)(const struct scheduler_config *config, int num_inference_steps);
    /* Fills plan->evaluations, which are zeroed but for input_scale 1, and slot_count. `timesteps`
     * are the descending, spaced ones, `steps` of them. */
    bool (*fill)(const struct scheduler_config *config, const struct noise_schedule *schedule,
        const int *timesteps, int steps, struct scheduler_plan *plan, struct error *err);
};

#define SCHEDULER_CLASS(id, name) extern const struct scheduler_class scheduler_##name;
SCHEDULERS(SCHEDULER_CLASS)
#undef SCHEDULER_CLASS

const struct scheduler_class *scheduler_get_class(enum scheduler_kind kind);

/* How x0 and the noise follow from the sample and the model's output:
 * x0 = x0_sample * sample + x0_output * output, and likewise noise. */
struct prediction_weights {
    float x0_sample, x0_output;
    float noise_sample, noise_output;
};
struct prediction_weights prediction_weights(enum prediction_type prediction, float alpha_cumprod);

/* A new, empty update at the end of the evaluation. */
struct scheduler_update *scheduler_add_update(struct scheduler_evaluation *evaluation, int target);
/* An update that keeps `term` in a slot. */
void scheduler_keep(struct scheduler_evaluation *evaluation, int slot, enum scheduler_term term);

#endif
