#include "engine/scheduler/noise_schedule.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

float linspace_f32_at(float start, float stop, int count, int i) {
    float step = count > 1 ? (stop - start) / (float)(count - 1) : 0;
    bool first_half = count == 1 || i < count / 2;
    return first_half ? fmaf(step, (float)i, start) : fmaf(-step, (float)(count - 1 - i), stop);
}

void noise_schedule_see(
    const struct noise_schedule *schedule, struct scheduler_evaluation *evaluation, int timestep) {
    const float alpha_cumprod = schedule->alphas_cumprod[timestep];
    evaluation->timestep = (float)timestep;
    evaluation->signal = sqrtf(alpha_cumprod);
    evaluation->noise = sqrtf(1.0f - alpha_cumprod);
}

double linspace_at(double start, double stop, int count, int i) {
    if (i > 0 && i == count - 1)
        return stop;
    return count > 1 ? start + i * ((stop - start) / (count - 1)) : start;
}

static double cosine_alpha_bar(double t) {
    double c = cos((t + 0.008) / 1.008 * M_PI / 2);
    return c * c;
}

static void fill_betas(const struct scheduler_config *config, float *betas) {
    const struct scheduler_values *values = &config->values;
    int count = values->num_train_timesteps;
    if (config->trained_betas) {
        for (int i = 0; i < count; i++)
            betas[i] = (float)json_number_value(json_array_get(config->trained_betas, (size_t)i));
        return;
    }
    switch (values->beta_schedule) {
    case BETA_SCALED_LINEAR:
        for (int i = 0; i < count; i++) {
            float root = linspace_f32_at(
                (float)sqrt(values->beta_start), (float)sqrt(values->beta_end), count, i);
            betas[i] = root * root;
        }
        break;
    case BETA_SQUAREDCOS_CAP_V2:
        for (int i = 0; i < count; i++) {
            double ratio = cosine_alpha_bar((double)(i + 1) / count) /
                           cosine_alpha_bar((double)i / count);
            betas[i] = (float)fmin(1 - ratio, 0.999);
        }
        break;
    default:
        for (int i = 0; i < count; i++)
            betas[i] = linspace_f32_at(
                (float)values->beta_start, (float)values->beta_end, count, i);
    }
}

/* Accumulates in double and rounds each result, as torch.cumprod does. */
static void cumulate(const float *betas, int count, float *alphas_cumprod) {
    double product = 1;
    for (int i = 0; i < count; i++) {
        product *= 1.0f - betas[i];
        alphas_cumprod[i] = (float)product;
    }
}

/* Algorithm 1 of "Common Diffusion Noise Schedules and Sample Steps are Flawed": shifts and scales
 * sqrt(alphas_cumprod) so that it ends at exactly 0. */
static void rescale_zero_snr(float *betas, int count, float *alphas_cumprod) {
    float first = sqrtf(alphas_cumprod[0]), last = sqrtf(alphas_cumprod[count - 1]);
    float scale = first / (first - last);
    float previous = 1;
    for (int i = 0; i < count; i++) {
        float root = (sqrtf(alphas_cumprod[i]) - last) * scale;
        float alpha_bar = root * root;
        betas[i] = 1.0f - (i ? alpha_bar / previous : alpha_bar);
        previous = alpha_bar;
    }
    cumulate(betas, count, alphas_cumprod);
}

/* With zero terminal SNR the last alphas_cumprod is 0. It is replaced by float16's smallest number,
 * as in diffusers' sigma-space classes. */
static void fill_sigmas(bool zero_snr, struct noise_schedule *schedule) {
    for (int i = 0; i < schedule->num_train_timesteps; i++) {
        bool last = i == schedule->num_train_timesteps - 1;
        float alpha = zero_snr && last ? 0x1p-24f : schedule->alphas_cumprod[i];
        schedule->sigmas[i] = sqrtf((1.0f - alpha) / alpha);
        schedule->log_sigmas[i] = logf(schedule->sigmas[i]);
    }
}

bool noise_schedule_init(
    const struct scheduler_config *config, struct noise_schedule *out, struct error *err) {
    int count = config->values.num_train_timesteps;
    *out = (struct noise_schedule){ .num_train_timesteps = count };
    float *betas = calloc((size_t)count, sizeof(*betas));
    out->alphas_cumprod = calloc((size_t)count, sizeof(*out->alphas_cumprod));
    out->sigmas = calloc((size_t)count, sizeof(*out->sigmas));
    out->log_sigmas = calloc((size_t)count, sizeof(*out->log_sigmas));
    if (!betas || !out->alphas_cumprod || !out->sigmas || !out->log_sigmas) {
        free(betas);
        noise_schedule_finish(out);
        return error_set(err, ERROR_NO_MEMORY, "scheduler: no memory for %d timesteps", count);
    }
    fill_betas(config, betas);
    bool valid = true;
    for (int i = 0; i < count; i++)
        valid = valid && betas[i] >= 0 && betas[i] < 1;
    if (valid) {
        cumulate(betas, count, out->alphas_cumprod);
        valid = out->alphas_cumprod[count - 1] < out->alphas_cumprod[0] || count == 1;
    }
    if (valid && config->values.rescale_betas_zero_snr)
        rescale_zero_snr(betas, count, out->alphas_cumprod);
    free(betas);
    if (!valid) {
        noise_schedule_finish(out);
        return error_set(err, ERROR_INVALID,
            "scheduler: the betas of this noise schedule are not all in [0, 1) and above 0 in sum");
    }
    fill_sigmas(config->values.rescale_betas_zero_snr, out);
    return true;
}

void noise_schedule_finish(struct noise_schedule *schedule) {
    free(schedule->alphas_cumprod);
    free(schedule->sigmas);
    free(schedule->log_sigmas);
    *schedule = (struct noise_schedule){ 0 };
}

int trailing_timestep(int num_train_timesteps, int count, int i) {
    /* numpy.arange(total, 0, -total / count) uses the rounded difference of its first two entries
     * as the step. This decides some ties. */
    double total = num_train_timesteps, second = total - total / count, step = second - total;
    return (int)rint(i == 1 ? second : total + i * step) - 1;
}

bool scheduler_refuse_steps(struct error *err, int steps, const char *allowed, ...) {
    char value[16], text[192];
    va_list args;
    va_start(args, allowed);
    vsnprintf(text, sizeof(text), allowed, args);
    va_end(args);
    snprintf(value, sizeof(value), "%d", steps);
    return error_field(err, "num_inference_steps", value, "%s", text);
}

bool noise_schedule_timesteps(
    const struct scheduler_config *config, int count, int *out, struct error *err) {
    const struct scheduler_values *values = &config->values;
    int total = values->num_train_timesteps;
    if (count < 1 || count > total)
        return scheduler_refuse_steps(err, count, "the model was trained on 1 to %d", total);
    switch (values->timestep_spacing) {
    case SPACING_LEADING:
        for (int i = 0; i < count; i++)
            out[i] = (count - 1 - i) * (total / count) + values->steps_offset;
        break;
    case SPACING_TRAILING:
        for (int i = 0; i < count; i++)
            out[i] = trailing_timestep(total, count, i);
        break;
    default:
        for (int i = 0; i < count; i++)
            out[i] = (int)rint(linspace_at(0, total - 1, count, count - 1 - i));
    }
    if (out[0] >= total)
        return scheduler_refuse_steps(err, count,
            "with timestep_spacing leading and steps_offset %d the first timestep would be %d, and "
            "the model knows 0 to %d: take fewer steps or another spacing",
            values->steps_offset, out[0], total - 1);
    return true;
}
