/* Schedulers as tables: from (config, number of steps) to one row of weights per UNet evaluation.
 *
 * Every sampler here is linear: the next sample is a weighted sum of the sample, the model's
 * output, what was kept from earlier evaluations, and fresh noise. A scheduler only fills the
 * table; engine/sampler applies any table with the one fused operation op_combine. The numbers are
 * diffusers' own, with float32 scalars where diffusers has them.
 *
 * A new scheduler is one file that fills plans, its name in `enum scheduler_kind`, and its line in
 * the registry (scheduler.c).
 */
#ifndef ENGINE_SCHEDULER_SCHEDULER_H
#define ENGINE_SCHEDULER_SCHEDULER_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum scheduler_kind { SCHEDULER_DDPM, SCHEDULER_DDIM, SCHEDULER_PNDM, SCHEDULER_COUNT };
enum timestep_spacing { SPACING_LEADING, SPACING_TRAILING, SPACING_LINSPACE, SPACING_COUNT };
enum prediction_type { PREDICTION_EPSILON, PREDICTION_V, PREDICTION_SAMPLE, PREDICTION_COUNT };
enum beta_schedule {
    BETA_LINEAR,
    BETA_SCALED_LINEAR,
    BETA_SQUAREDCOS_CAP_V2,
    BETA_SCHEDULE_COUNT,
};
enum variance_type { VARIANCE_FIXED_SMALL, VARIANCE_FIXED_SMALL_LOG, VARIANCE_FIXED_LARGE };

/* What a request may override; `has_*` says which. Everything else comes from the checkpoint. */
struct scheduler_options {
    bool has_kind, has_spacing, has_prediction, has_eta, has_beta_schedule, has_steps_offset,
        has_set_alpha_to_one, has_rescale_zero_snr;
    enum scheduler_kind kind;
    enum timestep_spacing spacing;
    enum prediction_type prediction;
    enum beta_schedule beta_schedule;
    double eta; /* DDIM only, 0..1 */
    int steps_offset;
    bool set_alpha_to_one;
    bool rescale_zero_snr;
};

/* The words of the API and of scheduler_config.json: "ddim", "leading", "v_prediction", ... Static
 * strings. The parsers return false, with *out untouched, for an unknown word; a scheduler also
 * goes by its aliases. */
const char *scheduler_kind_name(enum scheduler_kind kind);
const char *timestep_spacing_name(enum timestep_spacing spacing);
const char *prediction_type_name(enum prediction_type prediction);
const char *beta_schedule_name(enum beta_schedule schedule);
bool scheduler_kind_from_name(const char *name, enum scheduler_kind *out);
bool timestep_spacing_from_name(const char *name, enum timestep_spacing *out);
bool prediction_type_from_name(const char *name, enum prediction_type *out);
bool beta_schedule_from_name(const char *name, enum beta_schedule *out);

/* A scheduler's configuration: the checkpoint's file, its class's defaults and the request's
 * options, resolved. Borrows trained_betas from the JSON. */
struct scheduler_config {
    enum scheduler_kind kind;
    int num_train_timesteps;
    double beta_start, beta_end;
    enum beta_schedule beta_schedule;
    const json_t *trained_betas; /* an array of num_train_timesteps numbers, or NULL */
    enum prediction_type prediction;
    enum timestep_spacing spacing;
    int steps_offset;
    bool set_alpha_to_one;
    bool rescale_zero_snr;
    bool skip_prk_steps;              /* PNDM */
    enum variance_type variance_type; /* DDPM */
    double eta;                       /* DDIM */
    /* What a Stable Diffusion pipeline changes in the file, as diffusers' does: clip_sample is
     * always off, and steps_offset is 1 unless the request says otherwise. */
    bool replaced_clip_sample, replaced_steps_offset;
    char ignored_keys[192]; /* keys that no scheduler of diffusers has, joined by ", "; or "" */
};

/* Reads diffusers' scheduler_config.json and applies the options. With a kind other than the file's
 * own class this is diffusers' X.from_config(file): keys of the file are kept where X has them, and
 * X's defaults fill the rest. ERROR_INVALID for a bad key or option, ERROR_UNSUPPORTED for a class
 * or a key's value that would change the arithmetic and that we do not do. */
bool scheduler_config_resolve(const json_t *json, const struct scheduler_options *options,
    struct scheduler_config *out, struct error *err) __attribute__((warn_unused_result));

/* The class the file names; false (and no error) if it is none of ours. */
bool scheduler_config_kind(const json_t *json, enum scheduler_kind *out);

/* What an update may read: the running sample, this evaluation's model output (after guidance),
 * fresh noise, and slots, which keep tensors from one evaluation to later ones. */
#define SCHEDULER_SLOTS 6
enum scheduler_term {
    TERM_SAMPLE,
    TERM_OUTPUT,
    TERM_NOISE,
    TERM_SLOT, /* the first of SCHEDULER_SLOTS */
    TERM_COUNT = TERM_SLOT + SCHEDULER_SLOTS
};

/* term[target] = sum over terms of weights[term] * term. */
struct scheduler_update {
    int target; /* TERM_SAMPLE or a slot */
    float weights[TERM_COUNT];
};

#define SCHEDULER_MAX_UPDATES 3

/* One UNet evaluation: the model sees input_scale * sample at `timestep`; then noise is drawn if
 * draws_noise (also where its weight is 0, so that the generator moves as diffusers' does), and the
 * updates are applied one after the other, each seeing what those before it wrote. */
struct scheduler_evaluation {
    float timestep;
    float input_scale;
    bool draws_noise;
    int update_count;
    struct scheduler_update updates[SCHEDULER_MAX_UPDATES];
};

struct scheduler_plan {
    int count;                                /* UNet evaluations; PNDM has one more than steps */
    struct scheduler_evaluation *evaluations; /* owned, [count] */
    float init_noise_sigma;
    int slot_count; /* slots in use: 0..slot_count-1 */
};

/* ERROR_INVALID if so many steps cannot be taken with this configuration, and why. */
bool scheduler_plan_create(const struct scheduler_config *config, int num_inference_steps,
    struct scheduler_plan **out, struct error *err) __attribute__((warn_unused_result));
void scheduler_plan_destroy(struct scheduler_plan *plan); /* NULL is fine */

/* The registry, for GET /schedulers and the command line's help. */
struct scheduler_info {
    const char *name;           /* "ddim" */
    const char *class_name;     /* "DDIMScheduler" */
    const char *display_name;   /* "DDIM" */
    const char *description;    /* one sentence */
    const char *const *aliases; /* NULL-terminated */
    const char *const *options; /* the API's names of what a request may set, NULL-terminated */
};
const struct scheduler_info *scheduler_get_info(enum scheduler_kind kind);

#endif
