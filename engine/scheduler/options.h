/* Every option of a scheduler besides its name, in one table.
 *
 * This table drives the parsing of scheduler_config.json, of a request's "scheduler" object and of
 * the command line, the refusals, the echo of what was used, GET /schedulers and the command line's
 * help. A new option is one line of SCHEDULER_OPTIONS and the code that uses its member of struct
 * scheduler_values. If only some classes have an option, their own files list it. */
#ifndef ENGINE_SCHEDULER_OPTIONS_H
#define ENGINE_SCHEDULER_OPTIONS_H

#include "base/fields.h"

/* The order of each enum is that of its option's words. */
enum timestep_spacing { SPACING_LEADING, SPACING_TRAILING, SPACING_LINSPACE, SPACING_SGM_UNIFORM };
enum prediction_type { PREDICTION_EPSILON, PREDICTION_V, PREDICTION_SAMPLE };
enum beta_schedule { BETA_LINEAR, BETA_SCALED_LINEAR, BETA_SQUAREDCOS_CAP_V2 };
enum variance_type { VARIANCE_FIXED_SMALL, VARIANCE_FIXED_SMALL_LOG, VARIANCE_FIXED_LARGE };
enum final_sigmas_type { FINAL_SIGMA_ZERO, FINAL_SIGMA_MIN };
enum interpolation_type { INTERPOLATION_LINEAR, INTERPOLATION_LOG_LINEAR };
enum algorithm_type {
    ALGORITHM_DPMSOLVERPP,
    ALGORITHM_SDE_DPMSOLVERPP,
    ALGORITHM_DPMSOLVER,
    ALGORITHM_SDE_DPMSOLVER,
    ALGORITHM_DEIS
};
enum solver_type { SOLVER_MIDPOINT, SOLVER_HEUN, SOLVER_BH1, SOLVER_BH2, SOLVER_LOGRHO };
enum timestep_type { TIMESTEP_DISCRETE, TIMESTEP_CONTINUOUS };

/* X(id, C type, name, columns of struct scheduler_option). The name is the key in the file and in
 * requests, and the member of struct scheduler_values. The C type determines the form of the
 * values. */
#define SCHEDULER_OPTIONS(X)                                                                       \
    X(TIMESTEP_SPACING, enum timestep_spacing, timestep_spacing, .shared = true,                   \
        WORDS("leading", "trailing", "linspace", "sgm_uniform"),                                   \
        .help = "which of the trained timesteps are visited")                                      \
    X(PREDICTION_TYPE, enum prediction_type, prediction_type, .shared = true,                      \
        WORDS("epsilon", "v_prediction", "sample"), .help = "what the model predicts")             \
    X(ETA, double, eta, .max = 1, .from = REQUEST_ONLY,                                            \
        .help = "fresh noise in each step, from none at 0 to the most at 1")                       \
    X(BETA_SCHEDULE, enum beta_schedule, beta_schedule, .shared = true,                            \
        WORDS("linear", "scaled_linear", "squaredcos_cap_v2"),                                     \
        .help = "how noise grows with the timestep")                                               \
    X(STEPS_OFFSET, int, steps_offset, .shared = true, .max = TRAIN_TIMESTEPS_MAX - 1,             \
        .help = "added to every timestep of leading spacing")                                      \
    X(SET_ALPHA_TO_ONE, bool, set_alpha_to_one,                                                    \
        .help = "end without noise, not with the noise of the first timestep")                     \
    X(RESCALE_BETAS_ZERO_SNR, bool, rescale_betas_zero_snr,                                        \
        .help = "let the last timestep be pure noise")                                             \
    X(USE_KARRAS_SIGMAS, bool, use_karras_sigmas,                                                  \
        .help = "noise levels evenly spaced in sigma^(1/7)")                                       \
    X(USE_EXPONENTIAL_SIGMAS, bool, use_exponential_sigmas,                                        \
        .help = "noise levels evenly spaced in log sigma")                                         \
    X(USE_BETA_SIGMAS, bool, use_beta_sigmas,                                                      \
        .help = "noise levels at the quantiles of Beta(0.6, 0.6)")                                 \
    X(USE_AYS_SIGMAS, bool, use_ays_sigmas, .from = REQUEST_ONLY,                                  \
        .help = "Align Your Steps' noise levels for Stable Diffusion 1.5")                         \
    X(USE_KL_OPTIMAL_SIGMAS, bool, use_kl_optimal_sigmas, .from = REQUEST_ONLY,                    \
        .help = "noise levels evenly spaced in atan sigma")                                        \
    X(FINAL_SIGMAS_TYPE, enum final_sigmas_type, final_sigmas_type, WORDS("zero", "sigma_min"),    \
        .help = "the noise left at the end")                                                       \
    X(ORIGINAL_INFERENCE_STEPS, int, original_inference_steps, .min = 1,                           \
        .max = TRAIN_TIMESTEPS_MAX, .help = "steps of the grid that the model was distilled on")   \
    X(TIMESTEP_SCALING, double, timestep_scaling, .from = FILE_ONLY, .max = 1e6)                   \
    X(USE_LU_LAMBDAS, bool, use_lu_lambdas,                                                        \
        .help = "noise levels evenly spaced in lambda, at whole timesteps")                        \
    X(ALGORITHM_TYPE, enum algorithm_type, algorithm_type,                                         \
        WORDS("dpmsolver++", "sde-dpmsolver++", "dpmsolver", "sde-dpmsolver", "deis"),             \
        .help = "the probability flow, or the SDE with fresh noise")                               \
    X(SOLVER_ORDER, int, solver_order, .min = 1, .max = 3, .value = 2,                             \
        .help = "how many predictions each step uses")                                             \
    X(SOLVER_TYPE, enum solver_type, solver_type,                                                  \
        WORDS("midpoint", "heun", "bh1", "bh2", "logrho"),                                         \
        .help = "the kind of second-order step")                                                   \
    X(LOWER_ORDER_FINAL, bool, lower_order_final, .help = "lower order towards the end")           \
    X(EULER_AT_FINAL, bool, euler_at_final, .help = "first order in the last step")                \
    X(PREDICT_X0, bool, predict_x0, .help = "use predictions of x0, not of the noise")             \
    X(NUM_TRAIN_TIMESTEPS, int, num_train_timesteps, .shared = true, .from = FILE_ONLY, .min = 1,  \
        .max = TRAIN_TIMESTEPS_MAX, .value = 1000)                                                 \
    X(BETA_START, double, beta_start, .shared = true, .from = FILE_ONLY, .max = 1,                 \
        .below_max = true, .value = 0.0001)                                                        \
    X(BETA_END, double, beta_end, .shared = true, .from = FILE_ONLY, .max = 1, .below_max = true,  \
        .value = 0.02)                                                                             \
    X(VARIANCE_TYPE, enum variance_type, variance_type, .from = FILE_ONLY,                         \
        WORDS("fixed_small", "fixed_small_log", "fixed_large"))                                    \
    X(INTERPOLATION_TYPE, enum interpolation_type, interpolation_type, .from = FILE_ONLY,          \
        WORDS("linear", "log_linear"))                                                             \
    X(TIMESTEP_TYPE, enum timestep_type, timestep_type, .from = FILE_ONLY,                         \
        WORDS("discrete", "continuous"))                                                           \
    X(SKIP_PRK_STEPS, bool, skip_prk_steps, .from = FILE_ONLY)                                     \
    X(CLIP_SAMPLE, bool, clip_sample, .from = FILE_ONLY)                                           \
    X(THRESHOLDING, bool, thresholding, .from = FILE_ONLY)

#define OPTION_ID(id, type, name, ...) OPTION_##id,
enum scheduler_option_id { SCHEDULER_OPTIONS(OPTION_ID) SCHEDULER_OPTION_COUNT };
#undef OPTION_ID

/* The values of all options. */
struct scheduler_values {
#define OPTION_MEMBER(id, type, name, ...) type name;
    SCHEDULER_OPTIONS(OPTION_MEMBER)
#undef OPTION_MEMBER
};

/* Where an option may be set. A request's value replaces the file's. */
enum option_source { FILE_OR_REQUEST, FILE_ONLY, REQUEST_ONLY };

struct scheduler_option {
    FIELD_COLUMNS; /* of struct scheduler_values; the default is `value` unless the class has its
                      own */
    bool shared;   /* every class has this option */
    enum option_source from;
};

extern const struct scheduler_option scheduler_options[SCHEDULER_OPTION_COUNT];

/* Finds by name an option that requests may set. Returns false and leaves *out unchanged if there
 * is none. */
bool scheduler_option_find(const char *name, enum scheduler_option_id *out);

/* Returns the largest value of an integer or number option, given the other values. */
double scheduler_option_max(
    const struct scheduler_option *option, const struct scheduler_values *values);

#endif
