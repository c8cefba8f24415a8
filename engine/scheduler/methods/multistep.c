#include "engine/scheduler/methods/multistep.h"

#include <math.h>

#define SHORT_RUN 15 /* lower_order_final applies to runs below this length */

struct scheduler_update *slot_ring_push(
    struct slot_ring *ring, struct scheduler_evaluation *evaluation) {
    ring->pushes++;
    return scheduler_add_update(evaluation, slot_ring_term(ring, 0));
}

struct level level_of(float sigma) {
    struct level level = { .alpha = 1.0f / sqrtf(sigma * sigma + 1.0f) };
    level.sigma = sigma * level.alpha;
    level.lambda = round_log(level.alpha) - round_log(level.sigma);
    return level;
}

bool multistep_run_init(struct sigma_run *run, const struct scheduler_config *config,
    const struct noise_schedule *schedule, enum sigma_family family, int steps, struct error *err) {
    if (!sigma_run_init(run, config, schedule, family, steps, err))
        return false;
    /* Only the last step may have length 0. */
    float last = run->sigmas[steps];
    run->sigmas[steps] = 0;
    bool falls = config->values.solver_order == 1 || sigma_run_falls(run, err);
    run->sigmas[steps] = last;
    return falls;
}

void level_see(struct scheduler_evaluation *evaluation, float timestep, const struct level *level) {
    evaluation->timestep = timestep;
    evaluation->signal = level->alpha;
    evaluation->noise = level->sigma;
}

int multistep_order(
    const struct scheduler_values *values, int first, int i, int count, bool always) {
    const int known = i + 1 - first;
    int order = known < values->solver_order ? known : values->solver_order;
    if (values->lower_order_final && (always || count < SHORT_RUN) && count - i < order)
        order = count - i;
    return order;
}
