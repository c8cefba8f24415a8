#include "engine/scheduler/methods/distilled.h"

#include <math.h>

bool distilled_timesteps(
    const struct scheduler_config *config, int steps, int *out, struct error *err) {
    int total = config->values.num_train_timesteps;
    int grid = config->values.original_inference_steps;
    if (grid > total) {
        char value[16];
        snprintf(value, sizeof(value), "%d", grid);
        return error_field(err, "scheduler.original_inference_steps", value,
            "1 to %d, the model's training timesteps", total);
    }
    if (steps > grid)
        return scheduler_refuse_steps(
            err, steps, "1 to %d, which original_inference_steps is", grid);
    double stride = (double)grid / steps;
    for (int i = 0; i < steps; i++)
        out[i] = (grid - (int)floor(i * stride)) * (total / grid) - 1;
    return true;
}
