/* What a scheduler's own file provides. Only this folder includes it. */
#ifndef ENGINE_SCHEDULER_CLASS_H
#define ENGINE_SCHEDULER_CLASS_H

#include "engine/scheduler/noise_schedule.h"

/* The configuration keys that not every class has; a key of the file is kept, and an option of the
 * request allowed, only where the class has it. */
enum scheduler_keys {
    KEY_ETA = 1, /* an argument of step() in diffusers, not of the file */
    KEY_SET_ALPHA_TO_ONE = 2,
    KEY_RESCALE_ZERO_SNR = 4,
    KEY_CLIP_SAMPLE = 8, /* and thresholding */
    KEY_VARIANCE_TYPE = 16,
    KEY_SKIP_PRK_STEPS = 32,
};

struct scheduler_class {
    struct scheduler_info info;
    unsigned keys;
    unsigned predictions;  /* bits 1 << enum prediction_type */
    bool set_alpha_to_one; /* the class's default */
    /* UNet evaluations for so many steps. */
    int (*count)(const struct scheduler_config *config, int num_inference_steps);
    /* Fills plan->evaluations, which are zeroed but for input_scale 1, and slot_count. `timesteps`
     * are the descending, spaced ones, `steps` of them. */
    bool (*fill)(const struct scheduler_config *config, const struct noise_schedule *schedule,
        const int *timesteps, int steps, struct scheduler_plan *plan, struct error *err);
};

extern const struct scheduler_class scheduler_ddpm, scheduler_ddim, scheduler_pndm;

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
