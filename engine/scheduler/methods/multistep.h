/* Shared by multistep classes: a ring of slots for earlier predictions, and noise levels with their
 * lambda (half the log-SNR). Only this folder includes this header. */
#ifndef ENGINE_SCHEDULER_METHODS_MULTISTEP_H
#define ENGINE_SCHEDULER_METHODS_MULTISTEP_H

#include "engine/scheduler/sigmas.h"

/* Slots first..first + size - 1, written in turn. */
struct slot_ring {
    int first, size;
    int pushes; /* number of writes so far */
};

/* Returns the term that holds the newest prediction (age 0) or an older one. age < size. */
static inline int slot_ring_term(const struct slot_ring *ring, int age) {
    return TERM_SLOT + ring->first + (ring->pushes - 1 - age) % ring->size;
}

/* Appends an empty update that overwrites the oldest slot. That slot then has age 0. */
struct scheduler_update *slot_ring_push(
    struct slot_ring *ring, struct scheduler_evaluation *evaluation);

/* A noise level in DPM-Solver's terms: alpha^2 + sigma^2 = 1, sigma / alpha is the sigma given to
 * level_of, and lambda = log(alpha / sigma). Computed in float32 in diffusers' order of operations:
 * with many steps, the differences of lambdas consist of rounding errors. */
struct level {
    float alpha, sigma, lambda;
};
struct level level_of(float sigma);

/* Calls sigma_run_init. With an order above 1, also sets ERROR_INVALID for a step of length 0,
 * because the following step divides by that length. */
bool multistep_run_init(struct sigma_run *run, const struct scheduler_config *config,
    const struct noise_schedule *schedule, enum sigma_family family, int steps, struct error *err)
    __attribute__((warn_unused_result));

/* Sets the evaluation's timestep, signal and noise to those of this level. */
void level_see(struct scheduler_evaluation *evaluation, float timestep, const struct level *level);

/* Returns how many predictions step i of count uses, including its own: at most solver_order, and
 * at most those made since step `first`. lower_order_final lowers this towards the end of a short
 * run, or of any run if `always` is true. */
int multistep_order(
    const struct scheduler_values *values, int first, int i, int count, bool always);

#endif
