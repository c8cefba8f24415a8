/* Schedulers as tables: from a configuration and a number of steps to one row of weights per UNet
 * evaluation.
 *
 * Every sampler here is linear: the next sample is a weighted sum of the sample, the model's
 * output, terms kept from earlier evaluations, and fresh noise. A scheduler only fills the table;
 * engine/drawing/sampler.c applies any table with one fused operation, op_combine. The numbers are
 * those of diffusers, or of k-diffusion for samplers that only it has, with float32 scalars where
 * these have them.
 *
 * A new scheduler is one file that defines its struct scheduler_class (class.h), and a line in
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
    X(EULER, euler)                                                                                \
    X(EULER_ANCESTRAL, euler_ancestral)                                                            \
    X(HEUN, heun)                                                                                  \
    X(LMS, lms)                                                                                    \
    X(DPM2, dpm2)                                                                                  \
    X(DPM2_ANCESTRAL, dpm2_ancestral)                                                              \
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

/* The registry. All strings are static. */
struct scheduler_info {
    const char *name;                           /* "ddim" */
    const char *class_name;                     /* "DDIMScheduler" */
    const char *display_name;                   /* "DDIM" */
    const char *description;                    /* one sentence */
    const char *aliases[SCHEDULER_ALIASES + 1]; /* NULL-terminated */
};
const struct scheduler_info *scheduler_get_info(enum scheduler_kind kind);
const char *scheduler_kind_name(enum scheduler_kind kind);
/* Finds a kind by name or alias. Returns false, with *out untouched, for an unknown name. */
bool scheduler_kind_from_name(const char *name, enum scheduler_kind *out);
/* "ddpm, ddim or pndm", every name in `quote`. Returns `out`. */
const char *scheduler_list_names(char *out, size_t size, const char *quote);

/* Whether the class has the option, and which of its words the class knows, as bits. */
bool scheduler_has_option(enum scheduler_kind kind, enum scheduler_option_id id);
unsigned scheduler_known_words(enum scheduler_kind kind, enum scheduler_option_id id);

/* A request's choice of scheduler. Zeroed: none, and the checkpoint's own is used. */
struct scheduler_choice {
    bool has_kind;
    enum scheduler_kind kind;
    bool given[SCHEDULER_OPTION_COUNT];
    struct scheduler_values values; /* valid for the options that are given */
};

void scheduler_choose(struct scheduler_choice *choice, enum scheduler_option_id id, double value);

/* Parses a request's "scheduler": a name, or {"name": ..., "eta": ..., ...}. ERROR_INVALID with the
 * param "scheduler", "scheduler.name" or "scheduler.OPTION". *out is zeroed first. */
bool scheduler_choice_from_json(const json_t *json, struct scheduler_choice *out, struct error *err)
    __attribute__((warn_unused_result));

/* A resolved configuration: the checkpoint's file, the class's defaults and the request's choice.
 * Borrows trained_betas from the JSON. */
struct scheduler_config {
    enum scheduler_kind kind;
    struct scheduler_values values;
    const json_t *trained_betas; /* an array of num_train_timesteps numbers, or NULL */
    /* Changes that Stable Diffusion pipelines make to the file, as in diffusers: clip_sample is
     * always off, and steps_offset is 1 unless the request says otherwise. */
    bool replaced_clip_sample, replaced_steps_offset;
    char ignored_keys[192]; /* keys that no scheduler of diffusers has, as "a, b"; or "" */
};

/* Reads diffusers' scheduler_config.json and applies the choice. If the kind is not the file's own
 * class, this is diffusers' X.from_config(file): the file's keys that X has are kept, and X's
 * defaults fill in the rest. ERROR_INVALID for a bad key or option (for a request's with the param
 * "scheduler.OPTION"), ERROR_UNSUPPORTED for a class or a value that is not implemented. */
bool scheduler_config_resolve(const json_t *json, const struct scheduler_choice *choice,
    struct scheduler_config *out, struct error *err) __attribute__((warn_unused_result));

/* The class that the file names; false, without an error, if it is not implemented. */
bool scheduler_config_kind(const json_t *json, enum scheduler_kind *out);

/* Returns {"name": ..., ...} with every option that a request may set for this class. As a
 * request's "scheduler" it resolves to the same configuration. A new reference; NULL when memory is
 * short. */
json_t *scheduler_config_to_json(const struct scheduler_config *config);

/* Terms that an update may read: the running sample, this evaluation's model output (after
 * guidance), fresh noise, and slots, which keep tensors for later evaluations. */
#define SCHEDULER_SLOTS 6
enum scheduler_term {
    TERM_SAMPLE,
    TERM_OUTPUT,
    TERM_NOISE,
    TERM_SLOT, /* the first of SCHEDULER_SLOTS */
    TERM_COUNT = TERM_SLOT + SCHEDULER_SLOTS
};

/* term[target] = (sum over terms of weights[term] * term) / divisor. At most COMBINE_MAX_TERMS
 * weights are not 0. If a scheduler follows its reference's operations one by one, its results are
 * bit-identical. */
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

/* What the final sample would be if the model's output were right: *of_sample * sample + *of_output
 * * output. */
void scheduler_evaluation_end(const struct scheduler_evaluation *evaluation,
    enum prediction_type prediction, float *of_sample, float *of_output);

struct scheduler_plan {
    int count; /* UNet evaluations; some methods have more of them than steps (Heun, PNDM) */
    struct scheduler_evaluation *evaluations; /* owned, [count] */
    float init_noise_sigma;
    int slot_count; /* slots in use: 0..slot_count-1 */
    /* The sigmas that the Brownian motion spans; both 0 if no evaluation uses it. */
    float brownian_low, brownian_high;
    int first_step; /* steps before this one are left out */
};

/* Whether an image that is drawn by this plan needs a Brownian motion. */
static inline bool scheduler_plan_is_brownian(const struct scheduler_plan *plan) {
    return plan->brownian_high > 0;
}

/* Makes a plan. ERROR_INVALID, with the reason, if this configuration cannot take that many
 * steps. */
bool scheduler_plan_create(const struct scheduler_config *config, int num_inference_steps,
    struct scheduler_plan **out, struct error *err) __attribute__((warn_unused_result));
/* The same from step `first_step` on (below num_inference_steps), for images that start from a
 * picture at that noise level. Works like diffusers' pipelines after set_begin_index: methods that
 * use earlier steps start as at their first step, and end as a full run does. */
bool scheduler_plan_create_from(const struct scheduler_config *config, int num_inference_steps,
    int first_step, struct scheduler_plan **out, struct error *err)
    __attribute__((warn_unused_result));
void scheduler_plan_destroy(struct scheduler_plan *plan); /* NULL is fine */

#endif
