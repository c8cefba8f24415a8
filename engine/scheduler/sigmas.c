#include "engine/scheduler/sigmas.h"

#include <float.h>
#include <math.h>

#define KARRAS_RHO 7.0
#define BETA_SHAPE 0.6 /* both shape parameters */

float round_log(float x) {
    return (float)log((double)x);
}

float round_exp(float x) {
    return (float)exp((double)x);
}

/* --- the table --- */

/* numpy.interp(timestep, [0, 1, ..., T - 1], sigmas) */
double sigma_of_timestep(const struct noise_schedule *schedule, double timestep) {
    const float *sigmas = schedule->sigmas;
    int last = schedule->num_train_timesteps - 1;
    if (timestep <= 0 || timestep >= last)
        return sigmas[timestep > 0 ? last : 0];
    int low = (int)timestep;
    return ((double)sigmas[low + 1] - (double)sigmas[low]) * (timestep - low) + (double)sigmas[low];
}

/* DiscreteSchedule.t_to_sigma of k-diffusion. Computed in float32 as there: in a run of a thousand
 * sigmas, the differences between neighbours would show any other rounding. */
float sigma_of_timestep_log(const struct noise_schedule *schedule, float timestep) {
    int low = (int)timestep, high = (int)ceilf(timestep);
    float w = timestep - (float)low;
    float at = (1 - w) * round_log(schedule->sigmas[low]) + w * round_log(schedule->sigmas[high]);
    return round_exp(at);
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

/* Stable Diffusion 1.5's ten steps from
 * https://research.nvidia.com/labs/toronto-ai/AlignYourSteps/howto.html. Other numbers of steps
 * interpolate these eleven levels linearly in log sigma. */
double sigma_align_your_steps(int count, int i) {
    static const double published[] = { 14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652,
        0.399, 0.152, 0.029 };
    enum { LAST = sizeof(published) / sizeof(published[0]) - 1 };
    double at = linspace_at(0, 1, count, i) * LAST;
    int low = at < LAST ? (int)at : LAST - 1;
    double from = log(published[low]), to = log(published[low + 1]);
    return exp(from + (at - low) * (to - from));
}

double sigma_kl_optimal(double max, double min, int count, int i) {
    return tan(linspace_at(atan(max), atan(min), count, i));
}

/* The share of the Beta(a, a) distribution below x <= 1/2: the series x^a / B(a, a) * sum_k (1 -
 * a)_k x^k / (k! (a + k)). Each term is less than half of the previous one. */
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
    /* Newton's method. The start comes from the first term of the series alone, and is at or above
     * the solution. The share is concave for x <= 1/2, so all later values are at or below the
     * solution. */
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

static bool is_whole(enum sigma_family family) {
    return family == SIGMAS_WHOLE || family == SIGMAS_WHOLE_REPEATED;
}

static double spaced_timestep(
    const struct scheduler_values *values, enum sigma_family family, int steps, int i) {
    int total = values->num_train_timesteps;
    int count = is_whole(family) ? steps + 1 : steps; /* the lowest timestep is dropped */
    switch (values->timestep_spacing) {
    case SPACING_LEADING:
        return (count - 1 - i) * (total / count) + values->steps_offset;
    case SPACING_TRAILING:
        return trailing_timestep(total, steps, i);
    case SPACING_SGM_UNIFORM:
        return linspace_f32_at((float)(total - 1), 0, steps + 1, i);
    default: {
        double timestep = linspace_at(0, total - 1, count, count - 1 - i);
        if (is_whole(family))
            return rint(timestep);
        return family == SIGMAS_SPACED_DOUBLE ? timestep : (double)(float)timestep;
    }
    }
}

struct level {
    double timestep, sigma;
};

static bool is_log_linear(const struct scheduler_values *values) {
    return values->interpolation_type == INTERPOLATION_LOG_LINEAR &&
           values->timestep_spacing != SPACING_SGM_UNIFORM;
}

static struct level spaced_level(const struct scheduler_values *values,
    const struct noise_schedule *schedule, enum sigma_family family, int steps, int i) {
    struct level level = { .timestep = spaced_timestep(values, family, steps, i) };
    if (values->timestep_spacing == SPACING_SGM_UNIFORM)
        level.sigma = sigma_of_timestep_log(schedule, (float)level.timestep);
    else if (is_log_linear(values))
        level.sigma = exp(linspace_at(schedule->log_sigmas[schedule->num_train_timesteps - 1],
            schedule->log_sigmas[0], steps + 1, i));
    else
        level.sigma = sigma_of_timestep(schedule, level.timestep);
    return level;
}

/* Writes level i of the list that the options choose. Returns false if they choose none. The list
 * runs from max to min, except that of Align Your Steps, which has its own levels. That list and
 * the KL-optimal one have a level more than the run has steps, because they end where the last step
 * ends; the final sigma replaces it. */
static bool listed_sigma(
    const struct scheduler_values *values, double max, double min, int steps, int i, double *out) {
    if (values->use_karras_sigmas)
        *out = sigma_karras(max, min, steps, i);
    else if (values->use_exponential_sigmas || values->use_lu_lambdas)
        *out = sigma_exponential(max, min, steps, i);
    else if (values->use_beta_sigmas)
        *out = sigma_beta(max, min, steps, i);
    else if (values->use_ays_sigmas)
        *out = sigma_align_your_steps(steps + 1, i);
    else if (values->use_kl_optimal_sigmas)
        *out = sigma_kl_optimal(max, min, steps + 1, i);
    else
        return false;
    return true;
}

/* Returns the timestep of a level that is not in the table. Classes with whole timesteps truncate
 * it for exponential and beta sigmas, and round it for other lists. DPM-Solver++ with a cosine
 * schedule truncates it for every list. */
static double listed_timestep(const struct scheduler_values *values,
    const struct noise_schedule *schedule, enum sigma_family family, double sigma) {
    double timestep = timestep_of_sigma(schedule, sigma);
    if (!is_whole(family))
        return timestep;
    bool cuts = values->use_exponential_sigmas || values->use_beta_sigmas ||
                (family == SIGMAS_WHOLE && values->beta_schedule == BETA_SQUAREDCOS_CAP_V2);
    return cuts ? floor(timestep) : rint(timestep);
}

static float last_sigma(const struct scheduler_values *values,
    const struct noise_schedule *schedule, enum sigma_family family, const struct sigma_run *run) {
    double none;
    bool listed = listed_sigma(values, 1, 1, 1, 0, &none);
    if (family == SIGMAS_WHOLE_REPEATED && listed && values->final_sigmas_type == FINAL_SIGMA_MIN)
        return run->sigmas[run->count - 1];
    if (is_log_linear(values) && !listed)
        return (float)spaced_level(values, schedule, family, run->count, run->count).sigma;
    return values->final_sigmas_type == FINAL_SIGMA_MIN ? schedule->sigmas[0] : 0;
}

bool sigmas_begin_once(const double *timesteps, int count, int steps, struct error *err) {
    for (int i = 1; i < count; i++)
        if (timesteps[i] == timesteps[0])
            return scheduler_refuse_steps(err, steps,
                "two of that many steps would both start at timestep %g: take fewer steps or "
                "another "
                "timestep_spacing",
                timesteps[0]);
    return true;
}

static bool check_run(const struct sigma_run *run, const struct scheduler_config *config,
    enum sigma_family family, struct error *err) {
    double rounded[STEPS_MAX]; /* the timesteps rounded to float32 */
    for (int i = 0; i < run->count; i++) {
        rounded[i] = (double)(float)run->timesteps[i];
        if (!(run->sigmas[i] > 0) || !isfinite(run->sigmas[i]))
            return scheduler_refuse_division(config, (float)run->timesteps[i], err);
    }
    return family == SIGMAS_SPACED_SEEN || family == SIGMAS_SPACED_DOUBLE ||
           sigmas_begin_once(rounded, run->count, run->count, err);
}

bool sigma_run_init(struct sigma_run *run, const struct scheduler_config *config,
    const struct noise_schedule *schedule, enum sigma_family family, int steps, struct error *err) {
    const struct scheduler_values *values = &config->values;
    double max = schedule->sigmas[schedule->num_train_timesteps - 1], min = schedule->sigmas[0];
    if (!is_whole(family)) {
        max = spaced_level(values, schedule, family, steps, 0).sigma;
        min =
            spaced_level(values, schedule, family, steps, steps - 1 + is_log_linear(values)).sigma;
    }
    run->count = steps;
    for (int i = 0; i < steps; i++) {
        struct level level = spaced_level(values, schedule, family, steps, i);
        if (listed_sigma(values, max, min, steps, i, &level.sigma))
            level.timestep = listed_timestep(values, schedule, family, level.sigma);
        run->timesteps[i] = is_whole(family) ? rint(level.timestep) : level.timestep;
        run->sigmas[i] = (float)level.sigma;
    }
    run->sigmas[steps] = last_sigma(values, schedule, family, run);
    return check_run(run, config, family, err);
}

bool sigma_run_falls(const struct sigma_run *run, struct error *err) {
    for (int i = 0; i < run->count; i++)
        if (run->sigmas[i] == run->sigmas[i + 1])
            return scheduler_refuse_steps(err, run->count,
                "the step from timestep %g would not lower the noise: take fewer steps or "
                "another timestep_spacing",
                run->timesteps[i]);
    return true;
}

float sigma_run_max(const struct sigma_run *run) {
    float max = 0;
    for (int i = 0; i <= run->count; i++)
        max = fmaxf(max, run->sigmas[i]);
    return max;
}

void sigma_run_span(const struct sigma_run *run, float *low, float *high) {
    *high = *low = sigma_run_max(run);
    for (int i = 0; i <= run->count; i++)
        if (run->sigmas[i] > 0)
            *low = fminf(*low, run->sigmas[i]);
}

float sigma_run_init_noise(const struct sigma_run *run, const struct scheduler_config *config) {
    float max = sigma_run_max(run);
    return config->values.timestep_spacing == SPACING_LEADING ? sqrtf(max * max + 1) : max;
}

float sigma_input_divisor(float sigma) {
    return sqrtf(sigma * sigma + 1);
}

struct prediction_weights sigma_prediction_weights(enum prediction_type prediction, double sigma) {
    double squared = sigma * sigma + 1, root = sqrt(squared);
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

void sigma_see(struct scheduler_evaluation *evaluation, float timestep, float sigma) {
    evaluation->timestep = timestep;
    evaluation->input_divisor = sigma_input_divisor(sigma);
    evaluation->signal = 1;
    evaluation->noise = sigma;
}

void sigma_add_derivative(
    struct scheduler_update *update, enum prediction_type prediction, float sigma, float dt) {
    struct prediction_weights p = sigma_prediction_weights(prediction, sigma);
    update->weights[TERM_SAMPLE] += p.noise_sample * dt;
    update->weights[TERM_OUTPUT] += p.noise_output * dt;
}

void sigma_derive(struct scheduler_evaluation *evaluation, enum prediction_type prediction,
    float sigma, int x0_slot, int slot) {
    const int x0 = prediction == PREDICTION_SAMPLE ? TERM_OUTPUT : TERM_SLOT + x0_slot;
    if (prediction == PREDICTION_EPSILON) {
        struct scheduler_update *update = scheduler_add_update(evaluation, x0);
        update->weights[TERM_SAMPLE] = 1;
        update->weights[TERM_OUTPUT] = -sigma;
    } else if (prediction == PREDICTION_V) {
        const float squared = sigma * sigma + 1;
        struct scheduler_update *update = scheduler_add_update(evaluation, x0);
        update->weights[TERM_SAMPLE] = 1;
        update->divisor = squared;
        update = scheduler_add_update(evaluation, x0);
        update->weights[TERM_OUTPUT] = -sigma / sqrtf(squared);
        update->weights[x0] = 1;
    }
    struct scheduler_update *update = scheduler_add_update(evaluation, TERM_SLOT + slot);
    update->weights[TERM_SAMPLE] = 1;
    update->weights[x0] = -1;
    update->divisor = sigma;
}

struct ancestral_sigmas ancestral_step_eta(float from, float to, float eta) {
    if (eta == 0)
        return (struct ancestral_sigmas){ to, 0 };
    float up = fminf(to, eta * sqrtf(to * to * (from * from - to * to) / (from * from)));
    return (struct ancestral_sigmas){ sqrtf(to * to - up * up), up };
}

struct ancestral_sigmas ancestral_step(float from, float to) {
    float up = sqrtf(to * to * (from * from - to * to) / (from * from));
    return (struct ancestral_sigmas){ sqrtf(to * to - up * up), up };
}
