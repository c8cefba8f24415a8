/* The noise levels of sigma-space classes: the sample is x0 + sigma * noise, and a run goes down a
 * list of sigmas. All of these classes choose the list by the same options:
 *
 *   timestep_spacing            sigmas of spaced timesteps; sgm_uniform is k-diffusion's
 *   use_karras_sigmas           between the first and last of those (or of the whole table):
 *                               even in sigma^(1/7),
 *   use_exponential_sigmas      even in log sigma,
 *   use_beta_sigmas             at the quantiles of Beta(0.6, 0.6)
 *   use_ays_sigmas              Align Your Steps: the published list, interpolated in log sigma
 *   use_kl_optimal_sigmas       even in atan sigma; the last of these is left out
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
    /* Euler, Heun, LMS: the timesteps are those of the spacing. Karras' and similar lists run from
     * the first to the last spaced sigma. */
    SIGMAS_SPACED,
    /* Like SIGMAS_SPACED, but does not check that the first timestep occurs once. DPM2 checks it
     * itself, and k-diffusion's samplers do not look up timesteps. */
    SIGMAS_SPACED_SEEN,
    /* Like SIGMAS_SPACED_SEEN, with linspace's timesteps in double: DPM-Solver SDE. */
    SIGMAS_SPACED_DOUBLE,
    /* DPM-Solver++, UniPC, DEIS: whole timesteps. The spacing makes one timestep more than the
     * run has steps, and drops the lowest. Karras' and similar lists run from end to end of the
     * table. */
    SIGMAS_WHOLE,
    /* Like SIGMAS_WHOLE, but if final_sigmas_type is "sigma_min", Karras' and similar lists repeat
     * their last sigma. */
    SIGMAS_WHOLE_REPEATED,
};

/* Fills in a run. ERROR_INVALID where the reference raises or divides by zero: if leading spacing
 * has fewer timesteps than `steps`, or a sigma before the end is 0. */
bool sigma_run_init(struct sigma_run *run, const struct scheduler_config *config,
    const struct noise_schedule *schedule, enum sigma_family family, int steps, struct error *err)
    __attribute__((warn_unused_result));

/* ERROR_INVALID if timesteps[0] occurs again in timesteps[count], the timesteps of a run of
 * `steps`. diffusers would look up the first step by its timestep, find the second occurrence, and
 * run past the end. */
bool sigmas_begin_once(const double *timesteps, int count, int steps, struct error *err)
    __attribute__((warn_unused_result));

/* Returns true if every sigma differs from the next one; otherwise ERROR_INVALID. */
bool sigma_run_falls(const struct sigma_run *run, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the largest sigma. */
float sigma_run_max(const struct sigma_run *run);
/* Logarithm and exponential, rounded to the nearest float32. logf and expf are not exact for some
 * values, and differences of results show that. */
float round_log(float x);
float round_exp(float x);

/* sigma_run_span gives the smallest sigma above 0 and the largest sigma. sigma_run_init_noise
 * returns the standard deviation of the first sample with this timestep_spacing. */
void sigma_run_span(const struct sigma_run *run, float *low, float *high);
float sigma_run_init_noise(const struct sigma_run *run, const struct scheduler_config *config);

/* Return the sigma of a timestep. Fractional timesteps are interpolated linearly in sigma (as in
 * diffusers), or in log sigma (as in k-diffusion; only for timesteps in the table). */
double sigma_of_timestep(const struct noise_schedule *schedule, double timestep);
float sigma_of_timestep_log(const struct noise_schedule *schedule, float timestep);
/* Returns the timestep of a sigma: interpolated linearly in log sigma, limited to the table. */
double timestep_of_sigma(const struct noise_schedule *schedule, double sigma);

/* Returns sqrt(sigma^2 + 1), by which a sample of that level is divided before the model sees
 * it. */
float sigma_input_divisor(float sigma);

/* Returns the weights that give x0 and the noise from the sample and the model's output. The noise
 * is also the derivative, (sample - x0) / sigma. In double, because for a sigma of thousands the
 * sample's weight is a difference of numbers near 1. */
struct prediction_weights sigma_prediction_weights(enum prediction_type prediction, double sigma);

/* Sets the evaluation's timestep, input_divisor, signal and noise for a sample of that level. */
void sigma_see(struct scheduler_evaluation *evaluation, float timestep, float sigma);

/* Adds derivative * dt to `update`. The derivative is that of this evaluation's sample. */
void sigma_add_derivative(
    struct scheduler_update *update, enum prediction_type prediction, float sigma, float dt);

/* Adds the updates for slot = (sample - x0) / sigma; x0 uses an earlier slot or the same one. These
 * are the reference's operations one by one: steps much longer than sigma multiply the rounding
 * errors of this difference. */
void sigma_derive(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    float sigma, int x0_slot, int slot);

/* An ancestral step from `from` to `to`, which replaces part of the noise: it goes down to `down`,
 * then adds noise `up`, with sqrt(down^2 + up^2) = to. In float32, so that it is NaN only where
 * diffusers' result is NaN. */
struct ancestral_sigmas {
    float down, up;
};
struct ancestral_sigmas ancestral_step(float from, float to);
/* Computes an ancestral step that replaces only the share `eta` of that noise; eta 0: no noise is
 * replaced. */
struct ancestral_sigmas ancestral_step_eta(float from, float to, float eta);

/* Return entry i of a list of `count` sigmas between two levels. sigma_beta uses beta_quantile. */
double sigma_karras(double max, double min, int count, int i);
double sigma_exponential(double max, double min, int count, int i);
double sigma_beta(double max, double min, int count, int i);
double sigma_align_your_steps(int count, int i);
/* Even in atan sigma: the best list for normally distributed data (Sabour et al., 2024, "Align Your
 * Steps"). */
double sigma_kl_optimal(double max, double min, int count, int i);

/* Returns the x below which a share p of the Beta(0.6, 0.6) distribution lies. */
double beta_quantile(double p);

/* The options that choose a list of sigmas, for the classes that have them. */
#define SIGMA_SCHEDULE_OPTIONS SIGMA_SCHEDULE_OPTION_LIST(.not_filed = false)
#define SIGMA_SCHEDULE_OPTION_LIST(...)                                                            \
    [OPTION_USE_KARRAS_SIGMAS] = { true, false, __VA_ARGS__ },                                     \
    [OPTION_USE_EXPONENTIAL_SIGMAS] = { true, false, __VA_ARGS__ },                                \
    [OPTION_USE_BETA_SIGMAS] = { true, false, __VA_ARGS__ },                                       \
    [OPTION_USE_AYS_SIGMAS] = { true, false, __VA_ARGS__ },                                        \
    [OPTION_USE_KL_OPTIMAL_SIGMAS] = { true, false, __VA_ARGS__ }
/* The timestep_spacing of classes with fractional timesteps. The default is linspace. */
#define SIGMA_SPACING_OPTION [OPTION_TIMESTEP_SPACING] = { true, SPACING_LINSPACE }
/* The options of sigma-space classes with whole timesteps. */
#define WHOLE_SIGMA_OPTIONS                                                                        \
    [OPTION_TIMESTEP_SPACING] = { true, SPACING_LINSPACE,                                          \
        1 << SPACING_LEADING | 1 << SPACING_TRAILING | 1 << SPACING_LINSPACE },                    \
    SIGMA_SCHEDULE_OPTIONS

#endif
