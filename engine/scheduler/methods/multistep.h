/* Shared by multistep classes: earlier predictions in a ring of slots, and levels given by their
 * half-log-SNR. Only for this folder. */
#ifndef ENGINE_SCHEDULER_METHODS_MULTISTEP_H
#define ENGINE_SCHEDULER_METHODS_MULTISTEP_H

#include "engine/scheduler/sigmas.h"

/* Slots first..first + size - 1, written in turn. */
struct slot_ring {
    int first, size;
    int pushes; /* number of writes so far */
};

/* The term that holds the newest prediction (age 0) or an older one, age < size. */
static inline int slot_ring_term(const struct slot_ring *ring, int age) {
    return TERM_SLOT + ring->first + (ring->pushes - 1 - age) % ring->size;
}

/* Appends an empty update that overwrites the oldest slot, which becomes the newest. */
struct scheduler_update *slot_ring_push(
    struct slot_ring *ring, struct scheduler_evaluation *evaluation);

/* A sigma in DPM-Solver's terms: alpha^2 + sigma^2 = 1, level.sigma / level.alpha is the given
 * sigma, and lambda = log(alpha / sigma). In float32 and in diffusers' order of operations: with
 * many steps the differences of lambdas consist of rounding errors. */
struct level {
    float alpha, sigma, lambda;
};
struct level level_of(float sigma);

/* sigma_run_init, plus ERROR_INVALID for a step of length 0 if the order is above 1: such a step
 * divides by the length of the one before. */
bool multistep_run_init(struct sigma_run *run, const struct scheduler_config *config,
    const struct noise_schedule *schedule, enum sigma_family family, int steps, struct error *err)
    __attribute__((warn_unused_result));

/* Sets the evaluation's timestep, signal and noise to those of this level. */
void level_see(struct scheduler_evaluation *evaluation, float timestep, const struct level *level);

/* How many predictions step i of count uses, including its own: as many as there are since step
 * `first`; with lower_order_final fewer towards the end, in a short run or (`always`) in any. */
int multistep_order(
    const struct scheduler_values *values, int first, int i, int count, bool always);

#endif
