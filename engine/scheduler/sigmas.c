#include "engine/scheduler/sigmas.h"

#include <float.h>
#include <math.h>

#define KARRAS_RHO 7.0
#define BETA_SHAPE 0.6 /* both parameters */

/* --- the table --- */

/* numpy.interp(at, [0, 1, ..., count - 1], y) */
static double interpolate(const float *y, int count, double at) {
    if (at <= 0)
        return y[0];
    if (at >= count - 1)
        return y[count - 1];
    int low = (int)at;
    return ((double)y[low + 1] - (double)y[low]) * (at - low) + (double)y[low];
}

double sigma_of_timestep(const struct noise_schedule *schedule, double timestep) {
    return interpolate(schedule->sigmas, schedule->num_train_timesteps, timestep);
}

double sigma_of_timestep_log(const struct noise_schedule *schedule, double timestep) {
    return exp(interpolate(schedule->log_sigmas, schedule->num_train_timesteps, timestep));
}

double timestep_of_sigma(const struct noise_schedule *schedule, double sigma) {
    const float *logs = schedule->log_sigmas;
    double at = log(fmax(sigma, 1e-10));
    int low = 0;
    for (int i = 0; i < schedule->num_train_timesteps - 1; i++)
        if (at >= (double)logs[i])
            low = i;
    if (schedule->num_train_timesteps == 1)
        return 0;
    double w = ((double)logs[low] - at) / (double)(logs[low] - logs[low + 1]);
    w = fmin(fmax(w, 0), 1);
    return (1 - w) * low + w * (low + 1);
}

/* --- lists between two levels --- */

double sigma_karras(double max, double min, int count, int i) {
    double first = pow(max, 1 / KARRAS_RHO), last = pow(min, 1 / KARRAS_RHO);
    return pow(first + linspace_at(0, 1, count, i) * (last - first), KARRAS_RHO);
}

double sigma_exponential(double max, double min, int count, int i) {
    return exp(linspace_at(log(max), log(min), count, i));
}

double sigma_beta(double max, double min, int count, int i) {
    return min + beta_quantile(1 - linspace_at(0, 1, count, i)) * (max - min);
}

/* https://research.nvidia.com/labs/toronto-ai/AlignYourSteps/howto.html: Stable Diffusion 1.5, ten
 * steps; for other numbers of steps linear in log sigma over the same eleven. */
double sigma_align_your_steps(int count, int i) {
    static const double published[] = { 14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652,
        0.399, 0.152, 0.029 };
    enum { LAST = sizeof(published) / sizeof(published[0]) - 1 };
    double at = linspace_at(0, 1, count, i) * LAST;
    int low = at < LAST ? (int)at : LAST - 1;
    double from = log(published[low]), to = log(published[low + 1]);
    return exp(from + (at - low) * (to - from));
}

/* Both parameters a: the share below x <= 1/2, as the series
 * x^a / B(a, a) * sum_k (1 - a)_k x^k / (k! (a + k)), whose terms shrink by more than half each. */
static double beta_share(double x) {
    const double a = BETA_SHAPE;
    double term = 1, sum = 0;
    for (int k = 0; k < 100 && term > DBL_EPSILON * sum / 4; k++) {
        sum += term / (a + k);
        term *= (k + 1 - a) / (k + 1) * x;
    }
    return pow(x, a) * sum * tgamma(2 * a) / (tgamma(a) * tgamma(a));
}

double beta_quantile(double p) {
    if (p > 0.5)
        return 1 - beta_quantile(1 - p);
    if (p <= 0)
        return 0;
    /* Newton's method from where the first term of the series puts it, at or above x. The share is
     * concave there, so the steps after the first come from below and never overshoot. */
    const double a = BETA_SHAPE, beta = tgamma(a) * tgamma(a) / tgamma(2 * a);
    double x = fmin(pow(p * a * beta, 1 / a), 0.5);
    for (int i = 0; i < 50; i++) {
        double slope = pow(x * (1 - x), a - 1) / beta;
        double next = x - (beta_share(x) - p) / slope;
        bool done = fabs(next - x) <= 2 * DBL_EPSILON * x;
        x = fmin(fmax(next, 0), 0.5);
        if (done)
            break;
    }
    return x;
}

/* --- a run --- */

static double spaced_timestep(
    const struct scheduler_values *values, enum sigma_family family, int steps, int i) {
    int total = values->num_train_timesteps;
    int count = family == SIGMAS_WHOLE ? steps + 1 : steps; /* of which the lowest is dropped */
    switch (values->timestep_spacing) {
    case SPACING_LEADING:
        return (count - 1 - i) * (total / count) + values->steps_offset;
    case SPACING_TRAILING:
        return trailing_timestep(total, steps, i);
    case SPACING_SGM_UNIFORM:
        return linspace_at(total - 1, 0, steps + 1, i);
    default: {
        double timestep = linspace_at(0, total - 1, count, count - 1 - i);
        return family == SIGMAS_WHOLE ? rint(timestep) : (double)(float)timestep;
    }
    }
}

struct levels {
    double timestep, sigma;
};

static struct levels spaced_level(const struct scheduler_values *values,
    const struct noise_schedule *schedule, enum sigma_family family, int steps, int i) {
    struct levels level = { .timestep = spaced_timestep(values, family, steps, i) };
    if (values->timestep_spacing == SPACING_SGM_UNIFORM)
        level.sigma = sigma_of_timestep_log(schedule, level.timestep);
    else if (values->interpolation_type == INTERPOLATION_LOG_LINEAR)
        level.sigma = exp(linspace_at(schedule->log_sigmas[schedule->num_train_timesteps - 1],
            schedule->log_sigmas[0], steps + 1, i));
    else
        level.sigma = sigma_of_timestep(schedule, level.timestep);
    return level;
}

/* A level by the list that the options ask for between max and min; false if they ask for none. */
static bool listed_sigma(
    const struct scheduler_values *values, double max, double min, int steps, int i, double *out) {
    if (values->use_karras_sigmas)
        *out = sigma_karras(max, min, steps, i);
    else if (values->use_exponential_sigmas)
        *out = sigma_exponential(max, min, steps, i);
    else if (values->use_beta_sigmas)
        *out = sigma_beta(max, min, steps, i);
    else if (values->use_ays_sigmas)
        *out = sigma_align_your_steps(steps + 1, i);
    else
        return false;
    return true;
}

static float last_sigma(const struct scheduler_values *values,
    const struct noise_schedule *schedule, enum sigma_family family, int steps) {
    if (family == SIGMAS_SPACED && values->interpolation_type == INTERPOLATION_LOG_LINEAR &&
        !values->use_karras_sigmas && !values->use_exponential_sigmas && !values->use_beta_sigmas)
        return (float)spaced_level(values, schedule, family, steps, steps).sigma;
    return values->final_sigmas_type == FINAL_SIGMA_MIN ? schedule->sigmas[0] : 0;
}

/* diffusers looks for the first step's timestep in the list and takes the second place where it
 * finds it, after which it runs past the end. */
static bool check_run(
    const struct sigma_run *run, const struct scheduler_config *config, struct error *err) {
    for (int i = 0; i < run->count; i++) {
        if (i > 0 && run->timesteps[i] == run->timesteps[0])
            return scheduler_refuse_steps(err, run->count,
                "two of so many steps would start at timestep %g: take fewer steps or another "
                "timestep_spacing",
                (double)run->timesteps[0]);
        if (!(run->sigmas[i] > 0) || !isfinite(run->sigmas[i]))
            return scheduler_refuse_division(config, run->timesteps[i], err);
    }
    return true;
}

bool sigma_run_init(struct sigma_run *run, const struct scheduler_config *config,
    const struct noise_schedule *schedule, enum sigma_family family, int steps, struct error *err) {
    const struct scheduler_values *values = &config->values;
    bool whole = family == SIGMAS_WHOLE;
    int log_linear = values->interpolation_type == INTERPOLATION_LOG_LINEAR;
    double max = schedule->sigmas[schedule->num_train_timesteps - 1], min = schedule->sigmas[0];
    if (!whole) {
        max = spaced_level(values, schedule, family, steps, 0).sigma;
        min = spaced_level(values, schedule, family, steps, steps - 1 + log_linear).sigma;
    }
    run->count = steps;
    for (int i = 0; i < steps; i++) {
        struct levels level = spaced_level(values, schedule, family, steps, i);
        if (listed_sigma(values, max, min, steps, i, &level.sigma)) {
            level.timestep = timestep_of_sigma(schedule, level.sigma);
            if (whole)
                level.timestep = rint(level.timestep);
        }
        run->timesteps[i] = (float)level.timestep;
        run->sigmas[i] = (float)level.sigma;
    }
    run->sigmas[steps] = last_sigma(values, schedule, family, steps);
    return check_run(run, config, err);
}

float sigma_run_max(const struct sigma_run *run) {
    float max = 0;
    for (int i = 0; i <= run->count; i++)
        max = fmaxf(max, run->sigmas[i]);
    return max;
}

float sigma_run_init_noise(const struct sigma_run *run, const struct scheduler_config *config) {
    float max = sigma_run_max(run);
    return config->values.timestep_spacing == SPACING_LEADING ? sqrtf(max * max + 1) : max;
}

float sigma_input_scale(float sigma) {
    return 1 / sqrtf(sigma * sigma + 1);
}

struct prediction_weights sigma_prediction_weights(enum prediction_type prediction, float sigma) {
    float squared = sigma * sigma + 1, root = sqrtf(squared);
    switch (prediction) {
    case PREDICTION_SAMPLE:
        return (struct prediction_weights){
            .x0_output = 1, .noise_sample = 1 / sigma, .noise_output = -1 / sigma
        };
    case PREDICTION_V:
        return (struct prediction_weights){ .x0_sample = 1 / squared,
            .x0_output = -sigma / root,
            .noise_sample = sigma / squared,
            .noise_output = 1 / root };
    default:
        return (
            struct prediction_weights){ .x0_sample = 1, .x0_output = -sigma, .noise_output = 1 };
    }
}

struct ancestral_sigmas ancestral_step(float from, float to) {
    float up = sqrtf(to * to * (from * from - to * to) / (from * from));
    return (struct ancestral_sigmas){ sqrtf(to * to - up * up), up };
}
