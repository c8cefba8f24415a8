/* Noise levels of the sigma-space classes: the sample is x0 + sigma * noise, and a run goes down a
 * list of sigmas. Options, the same for all of these classes, choose the list:
 *
 *   timestep_spacing            sigmas of spaced timesteps; sgm_uniform is k-diffusion's
 *   use_karras_sigmas           between the first and last of those (or of the whole table):
 *                               even in sigma^(1/7),
 *   use_exponential_sigmas      even in log sigma,
 *   use_beta_sigmas             at the quantiles of Beta(0.6, 0.6)
 *   use_ays_sigmas              Align Your Steps: the published list, interpolated in log sigma
 *   final_sigmas_type           what comes after the last
 *
 * The numbers are those of numpy and scipy in double, rounded to float32 where diffusers rounds. */
#ifndef ENGINE_SCHEDULER_SIGMAS_H
#define ENGINE_SCHEDULER_SIGMAS_H

#include "base/limits.h"
#include "engine/scheduler/class.h"

/* Step i, 0 <= i < count, goes from sigmas[i] at timesteps[i] to sigmas[i + 1]. */
struct sigma_run {
    int count;
    double timesteps[STEPS_MAX]; /* need not be whole */
    float sigmas[STEPS_MAX + 1];
};

/* How diffusers' classes choose timesteps and list ends. */
enum sigma_family {
    /* Euler, Heun, LMS: timesteps as they are spaced; Karras' and similar lists run between the
     * ends of the spaced sigmas. */
    SIGMAS_SPACED,
    /* The same without the check that the first timestep occurs once: DPM2 makes it itself, and
     * k-diffusion's samplers look up no timestep. */
    SIGMAS_SPACED_SEEN,
    /* The same for DPM-Solver SDE, with linspace's timesteps in double. */
    SIGMAS_SPACED_DOUBLE,
    /* DPM-Solver++, UniPC, DEIS: whole timesteps, of which the spacing drops the lowest; Karras'
     * and similar lists run between the table's ends. */
    SIGMAS_WHOLE,
    /* The same, but if Karras' and similar lists end with a sigma, their last one is repeated. */
    SIGMAS_WHOLE_REPEATED,
};

/* ERROR_INVALID where the reference raises or divides by zero: more steps than leading spacing has
 * timesteps, or a sigma of 0 before the end. */
bool sigma_run_init(struct sigma_run *run, const struct scheduler_config *config,
    const struct noise_schedule *schedule, enum sigma_family family, int steps, struct error *err)
    __attribute__((warn_unused_result));

/* ERROR_INVALID if a run of `steps`, which sees timesteps[count], meets its first timestep again.
 * diffusers looks up the first step's timestep, takes the second occurrence, and runs past the
 * end. */
bool sigmas_begin_once(const double *timesteps, int count, int steps, struct error *err)
    __attribute__((warn_unused_result));

/* ERROR_INVALID if two neighbouring levels are equal; otherwise returns true. */
bool sigma_run_falls(const struct sigma_run *run, struct error *err)
    __attribute__((warn_unused_result));

/* The largest sigma. */
float sigma_run_max(const struct sigma_run *run);
/* Logarithm and exponential, rounded to the nearest float32: logf and expf are off for some values,
 * and differences show it. */
float round_log(float x);
float round_exp(float x);

/* The smallest sigma above 0 and the largest; and the standard deviation of the first sample with
 * this spacing. */
void sigma_run_span(const struct sigma_run *run, float *low, float *high);
float sigma_run_init_noise(const struct sigma_run *run, const struct scheduler_config *config);

/* The sigma of a timestep. Between whole timesteps linear in sigma (diffusers), or in log sigma
 * (k-diffusion; only for timesteps in the table). */
double sigma_of_timestep(const struct noise_schedule *schedule, double timestep);
float sigma_of_timestep_log(const struct noise_schedule *schedule, float timestep);
/* The inverse: linear in log sigma, limited to the table. */
double timestep_of_sigma(const struct noise_schedule *schedule, double sigma);

/* What a sample of that level is divided by before the model sees it: sqrt(sigma^2 + 1). */
float sigma_input_divisor(float sigma);

/* Weights that give x0 and the noise, which is the derivative (sample - x0) / sigma, from the
 * sample and the model's output. In double: for a sigma of thousands, the sample's weight is a
 * difference of numbers near 1. */
struct prediction_weights sigma_prediction_weights(enum prediction_type prediction, double sigma);

/* Makes the evaluation see a sample of that level. */
void sigma_see(struct scheduler_evaluation *evaluation, float timestep, float sigma);

/* Adds derivative * dt to `update`, where the derivative is that of the sample the evaluation
 * sees. */
void sigma_add_derivative(
    struct scheduler_update *update, enum prediction_type prediction, float sigma, float dt);

/* slot = (sample - x0) / sigma, with x0 in an earlier slot (or the same one). The updates are the
 * reference's operations one by one: in steps much longer than sigma, the rounding errors of this
 * difference are multiplied. */
void sigma_derive(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    float sigma, int x0_slot, int slot);

/* One step from `from` to `to` that forgets part of the noise and draws it anew: down to `down`,
 * then noise `up`, with sqrt(down^2 + up^2) = to. Float32, so that it is not a number where
 * diffusers' is not. */
struct ancestral_sigmas {
    float down, up;
};
struct ancestral_sigmas ancestral_step(float from, float to);
/* The same with the share `eta` of the noise; 0: none. */
struct ancestral_sigmas ancestral_step_eta(float from, float to, float eta);

/* Entry i of count of the lists between two levels. sigma_beta uses beta_quantile. */
double sigma_karras(double max, double min, int count, int i);
double sigma_exponential(double max, double min, int count, int i);
double sigma_beta(double max, double min, int count, int i);
double sigma_align_your_steps(int count, int i);

/* The x below which a share p of the Beta(0.6, 0.6) distribution lies. */
double beta_quantile(double p);

/* The options of a class that has these lists. */
#define SIGMA_SCHEDULE_OPTIONS SIGMA_SCHEDULE_OPTION_LIST(.not_filed = false)
#define SIGMA_SCHEDULE_OPTION_LIST(...)                                                            \
    [OPTION_USE_KARRAS_SIGMAS] = { true, false, __VA_ARGS__ },                                     \
    [OPTION_USE_EXPONENTIAL_SIGMAS] = { true, false, __VA_ARGS__ },                                \
    [OPTION_USE_BETA_SIGMAS] = { true, false, __VA_ARGS__ },                                       \
    [OPTION_USE_AYS_SIGMAS] = { true, false, __VA_ARGS__ }
/* Spacing of the classes with fractional timesteps; linspace is their default. */
#define SIGMA_SPACING_OPTION [OPTION_TIMESTEP_SPACING] = { true, SPACING_LINSPACE }
/* Options of the classes with whole timesteps. */
#define WHOLE_SIGMA_OPTIONS                                                                        \
    [OPTION_TIMESTEP_SPACING] = { true, SPACING_LINSPACE,                                          \
        1 << SPACING_LEADING | 1 << SPACING_TRAILING | 1 << SPACING_LINSPACE },                    \
    SIGMA_SCHEDULE_OPTIONS

#endif
