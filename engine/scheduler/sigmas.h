/* Noise levels of the sigma-space classes: the sample is x0 + sigma * noise, and a run goes down a
 * list of sigmas. Which list is a matter of options, the same for all of these classes:
 *
 *   timestep_spacing            sigmas of spaced timesteps; sgm_uniform is k-diffusion's
 *   use_karras_sigmas           between the first and last of those (or of the whole table):
 *                               even in sigma^(1/7),
 *   use_exponential_sigmas      even in log sigma,
 *   use_beta_sigmas             at the quantiles of Beta(0.6, 0.6)
 *   use_ays_sigmas              Align Your Steps: the published list, interpolated in log sigma
 *   final_sigmas_type           what comes after the last
 *
 * The numbers are numpy's and scipy's in double, rounded to float32 where diffusers does.
 */
#ifndef ENGINE_SCHEDULER_SIGMAS_H
#define ENGINE_SCHEDULER_SIGMAS_H

#include "base/limits.h"
#include "engine/scheduler/class.h"

/* From sigmas[i] at timesteps[i] to sigmas[i + 1], 0 <= i < count. */
struct sigma_run {
    int count;
    double timesteps[STEPS_MAX]; /* need not be whole */
    float sigmas[STEPS_MAX + 1];
};

/* Two habits of diffusers' classes. */
enum sigma_family {
    /* Euler, Heun, LMS: timesteps as they come; Karras and its kind between the spaced ones' ends.
     */
    SIGMAS_SPACED,
    /* The same, but the class itself sees to it that it begins once: DPM2; or it need not:
     * k-diffusion's samplers look for no timestep. */
    SIGMAS_SPACED_SEEN,
    /* So DPM-Solver SDE, with linspace's timesteps in double. */
    SIGMAS_SPACED_DOUBLE,
    /* DPM-Solver++, UniPC, DEIS: whole timesteps, of which the spacing drops the lowest; Karras and
     * its kind between the table's ends. */
    SIGMAS_WHOLE,
    /* The same, but where Karras and its kind end with a sigma, it is their own last once more. */
    SIGMAS_WHOLE_REPEATED,
};

/* ERROR_INVALID where the reference raises or divides by zero: more steps than leading spacing has
 * timesteps, a sigma of 0 before the end. */
bool sigma_run_init(struct sigma_run *run, const struct scheduler_config *config,
    const struct noise_schedule *schedule, enum sigma_family family, int steps, struct error *err)
    __attribute__((warn_unused_result));

/* ERROR_INVALID where a run of `steps`, which sees timesteps[count], comes to its first a second
 * time: diffusers looks for the first step's timestep among them, takes the second place where it
 * finds it, and runs past the end. */
bool sigmas_begin_once(const double *timesteps, int count, int steps, struct error *err)
    __attribute__((warn_unused_result));

/* ERROR_INVALID where two neighbours are the same level; true otherwise. */
bool sigma_run_falls(const struct sigma_run *run, struct error *err)
    __attribute__((warn_unused_result));

/* The largest sigma; what the first sample's deviation is under this spacing. */
float sigma_run_max(const struct sigma_run *run);
/* The nearest float32: logf and expf miss some, and differences show it. */
float round_log(float x);
float round_exp(float x);

/* The smallest above 0, and the largest. */
void sigma_run_span(const struct sigma_run *run, float *low, float *high);
float sigma_run_init_noise(const struct sigma_run *run, const struct scheduler_config *config);

/* Of a timestep: between whole ones linear in sigma (diffusers), or in log sigma (k-diffusion), for
 * timesteps in the table. */
double sigma_of_timestep(const struct noise_schedule *schedule, double timestep);
float sigma_of_timestep_log(const struct noise_schedule *schedule, float timestep);
/* Linear in log sigma, and within the table. */
double timestep_of_sigma(const struct noise_schedule *schedule, double sigma);

/* What the model wants a sample of that level divided by: sqrt(sigma^2 + 1). */
float sigma_input_divisor(float sigma);

/* x0 and the noise, which is the derivative (sample - x0) / sigma, from the sample and the model's
 * output. In double: from a sigma of thousands the sample's weight is a difference of ones. */
struct prediction_weights sigma_prediction_weights(enum prediction_type prediction, double sigma);

/* The evaluation sees a sample of that level. */
void sigma_see(struct scheduler_evaluation *evaluation, float timestep, float sigma);

/* sample = from + derivative dt, the derivative being that of the sample the evaluation sees:
 * adds what it takes to `update`. */
void sigma_add_derivative(
    struct scheduler_update *update, enum prediction_type prediction, float sigma, float dt);

/* slot = (sample - x0) / sigma, x0 in a slot before it (or the same): for steps that may be far
 * longer than sigma is large, which multiplies the roundings of that difference, so that the
 * updates are the reference's operations one by one. */
void sigma_derive(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    float sigma, int x0_slot, int slot);

/* One step down from `from` to `to` with part of the noise forgotten and drawn anew: to
 * sqrt(down^2 + up^2) = to. Float32, so that it is not a number where diffusers' is not. */
struct ancestral_sigmas {
    float down, up;
};
struct ancestral_sigmas ancestral_step(float from, float to);
/* With eta of the noise, from none at 0. */
struct ancestral_sigmas ancestral_step_eta(float from, float to, float eta);

/* The lists between two levels, entry i of count; sigma_beta takes its quantile from
 * beta_quantile. */
double sigma_karras(double max, double min, int count, int i);
double sigma_exponential(double max, double min, int count, int i);
double sigma_beta(double max, double min, int count, int i);
double sigma_align_your_steps(int count, int i);

/* x with a share p of the Beta(0.6, 0.6) distribution below it. */
double beta_quantile(double p);

/* What a class lists among its options to have them. */
#define SIGMA_SCHEDULE_OPTIONS SIGMA_SCHEDULE_OPTION_LIST(.not_filed = false)
#define SIGMA_SCHEDULE_OPTION_LIST(...)                                                            \
    [OPTION_USE_KARRAS_SIGMAS] = { true, false, __VA_ARGS__ },                                     \
    [OPTION_USE_EXPONENTIAL_SIGMAS] = { true, false, __VA_ARGS__ },                                \
    [OPTION_USE_BETA_SIGMAS] = { true, false, __VA_ARGS__ },                                       \
    [OPTION_USE_AYS_SIGMAS] = { true, false, __VA_ARGS__ }
/* With timesteps that need not be whole; the others' default. */
#define SIGMA_SPACING_OPTION [OPTION_TIMESTEP_SPACING] = { true, SPACING_LINSPACE }
/* Of the classes with whole ones. */
#define WHOLE_SIGMA_OPTIONS                                                                        \
    [OPTION_TIMESTEP_SPACING] = { true, SPACING_LINSPACE,                                          \
        1 << SPACING_LEADING | 1 << SPACING_TRAILING | 1 << SPACING_LINSPACE },                    \
    SIGMA_SCHEDULE_OPTIONS

#endif
