/* Schedulers as tables: makes one row of weights per UNet evaluation from a configuration and a
 * number of steps.
 *
 * Every sampler here is linear: the next sample is a weighted sum of the sample, the model's
 * output, terms kept from earlier evaluations, and fresh noise. A scheduler only fills the table;
 * engine/drawing/sampler.c applies any table with one fused operation, op_combine. The numbers are
 * those of diffusers, or of k-diffusion or AUTOMATIC1111 for samplers that diffusers does not have.
 * Scalars are float32 where the reference uses float32.
 *
 * A new scheduler is a struct scheduler_class (class.h) in a file of methods/, and a line in
 * SCHEDULERS. Its options are in options.h. */
#ifndef ENGINE_SCHEDULER_SCHEDULER_H
#define ENGINE_SCHEDULER_SCHEDULER_H

#include "base/error.h"
#include "engine/scheduler/options.h"

#include <stdint.h>

/* X(id, name): a file of engine/scheduler/methods/ defines scheduler_NAME. */
#define SCHEDULERS(X)                                                                              \
    X(DDPM, ddpm)                                                                                  \
    X(DDIM, ddim)                                                                                  \
    X(PNDM, pndm)                                                                                  \
    X(DDIM_CFGPP, ddim_cfgpp)                                                                      \
    X(EULER, euler)                                                                                \
    X(EULER_ANCESTRAL, euler_ancestral)                                                            \
    X(HEUN, heun)                                                                                  \
    X(RESTART, restart)                                                                            \
    X(LMS, lms)                                                                                    \
    X(DPM2, dpm2)                                                                                  \
    X(DPM2_ANCESTRAL, dpm2_ancestral)                                                              \
    X(DPM_FAST, dpm_fast)                                                                          \
    X(DPMPP_2M, dpmpp_2m)                                                                          \
    X(DPMPP_2M_SDE, dpmpp_2m_sde)                                                                  \
    X(DPMPP_3M_SDE, dpmpp_3m_sde)                                                                  \
    X(DPMPP_SDE, dpmpp_sde)                                                                        \
    X(DPMPP_2S_ANCESTRAL, dpmpp_2s_ancestral)                                                      \
    X(UNIPC, unipc)                                                                                \
    X(DEIS, deis)                                                                                  \
    X(LCM, lcm)                                                                                    \
    X(TCD, tcd)

#define SCHEDULER_KIND(id, name) SCHEDULER_##id,
enum scheduler_kind { SCHEDULERS(SCHEDULER_KIND) SCHEDULER_COUNT };
#undef SCHEDULER_KIND

#define SCHEDULER_ALIASES 6 /* at most */

/* A class in the registry. All strings are static. */
struct scheduler_info {
    const char *name;                           /* "ddim" */
    const char *class_name;                     /* "DDIMScheduler" */
    const char *display_name;                   /* "DDIM" */
    const char *description;                    /* one sentence */
    const char *aliases[SCHEDULER_ALIASES + 1]; /* NULL-terminated */
};
const struct scheduler_info *scheduler_get_info(enum scheduler_kind kind);
const char *scheduler_kind_name(enum scheduler_kind kind);
/* Returns the UNet evaluations of a step: 2 for methods of second order, which need only one in
 * their last step, else 1. */
int scheduler_order(enum scheduler_kind kind);
/* Finds a kind by name or alias. Returns false and leaves *out unchanged if the name is unknown. */
bool scheduler_kind_from_name(const char *name, enum scheduler_kind *out);
/* Writes "ddpm, ddim or pndm" with all names, each in `quote`. Returns `out`. */
const char *scheduler_list_names(char *out, size_t size, const char *quote);

/* scheduler_has_option: whether the class has the option. scheduler_known_words: which of the
 * option's words the class accepts, as bits. */
bool scheduler_has_option(enum scheduler_kind kind, enum scheduler_option_id id);
unsigned scheduler_known_words(enum scheduler_kind kind, enum scheduler_option_id id);

/* A request's choice of scheduler. Zeroed: the checkpoint's own scheduler is used. */
struct scheduler_choice {
    bool has_kind;
    enum scheduler_kind kind;
    bool given[SCHEDULER_OPTION_COUNT];
    struct scheduler_values values; /* valid for given options only */
};

void scheduler_choose(struct scheduler_choice *choice, enum scheduler_option_id id, double value);

/* Parses a request's "scheduler": a name, or {"name": ..., "eta": ..., ...}. ERROR_INVALID names
 * the param "scheduler", "scheduler.name" or "scheduler.OPTION". *out is zeroed first. */
bool scheduler_choice_from_json(const json_t *json, struct scheduler_choice *out, struct error *err)
    __attribute__((warn_unused_result));

/* A resolved configuration, from the checkpoint's file, the class's defaults and the request's
 * choice. Borrows trained_betas from the JSON. */
struct scheduler_config {
    enum scheduler_kind kind;
    struct scheduler_values values;
    const json_t *trained_betas; /* array of num_train_timesteps numbers, or NULL */
    /* Values of the file that were replaced, as in diffusers' Stable Diffusion pipelines:
     * clip_sample is always off, and steps_offset is 1 unless the request sets it. */
    bool replaced_clip_sample, replaced_steps_offset;
    char ignored_keys[192]; /* keys that diffusers' schedulers do not have, "a, b"; or "" */
};

/* Reads diffusers' scheduler_config.json and applies the choice. If the chosen class X is not the
 * file's, works like X.from_config(file) in diffusers: keys of the file that X has are used, X's
 * defaults fill in the rest. ERROR_INVALID for a bad key or option; the param of a request's option
 * is "scheduler.OPTION". ERROR_UNSUPPORTED for a class or a value that is not implemented. */
bool scheduler_config_resolve(const json_t *json, const struct scheduler_choice *choice,
    struct scheduler_config *out, struct error *err) __attribute__((warn_unused_result));

/* Changes a scheduler_config.json to what it would be if the checkpoint's author had made this
 * choice: the class is replaced if the choice has one, and the given options are set. ERROR_INVALID
 * names an option that only requests can set. */
bool scheduler_config_replace(json_t *json, const struct scheduler_choice *choice,
    struct error *err) __attribute__((warn_unused_result));

/* Returns whether the choice says anything. */
bool scheduler_choice_is_given(const struct scheduler_choice *choice);

/* Returns the choice as a request's "scheduler": {"name", "eta", ...}, only with what is given. A
 * new reference; NULL when memory is short. */
json_t *scheduler_choice_to_json(const struct scheduler_choice *choice);

/* Finds the class that the file names. Returns false, without an error, if it is not
 * implemented. */
bool scheduler_config_kind(const json_t *json, enum scheduler_kind *out);

/* Returns {"name": ..., ...} with every option that a request may set for this class. As a
 * request's "scheduler", it resolves to the same configuration. The reference is new; NULL if there
 * is no memory. */
json_t *scheduler_config_to_json(const struct scheduler_config *config);

/* Terms that an update may read: the running sample, this evaluation's model output (after
 * guidance), its output without the prompt (for guided images only), fresh noise, and the slots.
 * Slots keep tensors for later evaluations. */
#define SCHEDULER_SLOTS 6
enum scheduler_term {
    TERM_SAMPLE,
    TERM_OUTPUT,
    TERM_UNCONDITIONAL,
    TERM_NOISE,
    TERM_SLOT, /* the first of SCHEDULER_SLOTS slots */
    TERM_COUNT = TERM_SLOT + SCHEDULER_SLOTS
};

/* term[target] = (sum over terms of weights[term] * term) / divisor. At most COMBINE_MAX_TERMS
 * weights may differ from 0. If a scheduler follows its reference's operations one by one, its
 * results are bit-identical. */
struct scheduler_update {
    int target; /* TERM_SAMPLE or a slot */
    float weights[TERM_COUNT];
    float divisor; /* 1 after scheduler_add_update */
};

#define SCHEDULER_MAX_UPDATES 7

/* One UNet evaluation. The model sees sample / input_divisor at `timestep`. Then noise is drawn if
 * draws_noise is set (even if its weight is 0, so that the generator advances as in diffusers).
 * Then the updates are applied in order, each seeing what those before it wrote.
 *
 * The noise is fresh from the image's generator. But if brownian_from and brownian_to differ, it is
 * the increment of the image's Brownian motion between these two sigmas
 * (engine/scheduler/brownian.h), and the generator does not advance. */
struct scheduler_evaluation {
    float timestep; /* need not be whole */
    float input_divisor;
    float signal, noise; /* as in diffusers' add_noise: sample = signal * x0 + noise * epsilon */
    bool draws_noise;
    float brownian_from, brownian_to;
    int update_count;
    struct scheduler_update updates[SCHEDULER_MAX_UPDATES];
};

static inline bool evaluation_is_brownian(const struct scheduler_evaluation *evaluation) {
    return evaluation->draws_noise && evaluation->brownian_from != evaluation->brownian_to;
}

/* Computes the weights that predict the final sample, assuming the model's output is right:
 * *of_sample * sample + *of_output * output. */
void scheduler_evaluation_end(const struct scheduler_evaluation *evaluation,
    enum prediction_type prediction, float *of_sample, float *of_output);

struct scheduler_plan {
    int count; /* UNet evaluations; some methods have more than one per step */
    struct scheduler_evaluation *evaluations; /* owned, [count] */
    float init_noise_sigma;
    int slot_count; /* the slots used are 0..slot_count-1 */
    /* The range of sigmas of the Brownian motion; both 0 if no evaluation uses it. */
    float brownian_low, brownian_high;
    int first_step;        /* earlier steps are left out */
    float guidance_factor; /* multiplies an image's guidance_scale; 1 unless the class sets it */
    /* Images are guided at any guidance_scale, because updates read TERM_UNCONDITIONAL. */
    bool must_guide;
};

/* Whether images drawn with this plan need a Brownian motion. */
static inline bool scheduler_plan_is_brownian(const struct scheduler_plan *plan) {
    return plan->brownian_high > 0;
}

/* Makes a plan. ERROR_INVALID, with the reason, if this configuration does not allow that many
 * steps. */
bool scheduler_plan_create(const struct scheduler_config *config, int num_inference_steps,
    struct scheduler_plan **out, struct error *err) __attribute__((warn_unused_result));
/* Makes a plan without the steps before `first_step` (below num_inference_steps), for images that
 * start from a picture at that step's noise level. Works like diffusers' pipelines after
 * set_begin_index: methods that use earlier steps begin as at the first step of a full run, and end
 * as a full run does. */
bool scheduler_plan_create_from(const struct scheduler_config *config, int num_inference_steps,
    int first_step, struct scheduler_plan **out, struct error *err)
    __attribute__((warn_unused_result));
void scheduler_plan_destroy(struct scheduler_plan *plan); /* NULL is fine */

#endif
