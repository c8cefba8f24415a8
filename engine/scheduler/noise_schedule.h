/* Shared by all schedulers: how much of the picture is left at each training timestep, and the
 * timesteps that a run visits. Float32 where torch uses it, rounded where torch and numpy round. */
#ifndef ENGINE_SCHEDULER_NOISE_SCHEDULE_H
#define ENGINE_SCHEDULER_NOISE_SCHEDULE_H

#include "engine/scheduler/scheduler.h"

struct noise_schedule {
    int num_train_timesteps;
    /* owned, [num_train_timesteps] each */
    float *alphas_cumprod;
    /* sqrt((1 - alphas_cumprod) / alphas_cumprod), rising, and its logarithm. Both are finite even
     * at zero terminal SNR: the last alphas_cumprod of 0 counts as 2^-24, as in diffusers. */
    float *sigmas, *log_sigmas;
};

bool noise_schedule_init(const struct scheduler_config *config, struct noise_schedule *out,
    struct error *err) __attribute__((warn_unused_result));
void noise_schedule_finish(struct noise_schedule *schedule);

/* Sets the evaluation's timestep, signal and noise to those of `timestep`. */
void noise_schedule_see(
    const struct noise_schedule *schedule, struct scheduler_evaluation *evaluation, int timestep);

/* numpy.linspace(start, stop, count)[i] */
double linspace_at(double start, double stop, int count, int i);
/* torch.linspace(start, stop, count)[i]: computed from both ends towards the middle, with one
 * rounding. */
float linspace_f32_at(float start, float stop, int count, int i);

/* Returns entry i of `count` whole timesteps with trailing spacing. */
int trailing_timestep(int num_train_timesteps, int count, int i);

/* Fills out[0..count) with descending timesteps of the training range, spaced as in diffusers'
 * DDPM, DDIM and PNDM. With "trailing", numpy's arange sometimes yields an extra entry of -1, which
 * diffusers 0.4x visits; here there are always `count` entries. */
bool noise_schedule_timesteps(const struct scheduler_config *config, int count, int *out,
    struct error *err) __attribute__((warn_unused_result));

/* Sets ERROR_INVALID for this number of steps, with what is allowed. Returns false. */
bool scheduler_refuse_steps(struct error *err, int steps, const char *allowed, ...)
    __attribute__((format(printf, 3, 4)));

#endif
