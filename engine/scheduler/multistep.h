/* What multistep classes share: earlier predictions in a ring of slots, and levels by their
 * half-log-SNR. Only this folder. */
#ifndef ENGINE_SCHEDULER_MULTISTEP_H
#define ENGINE_SCHEDULER_MULTISTEP_H

#include "engine/scheduler/sigmas.h"

/* Slots first..first + size - 1, written one after the other and over again. */
struct slot_ring {
    int first, size;
    int pushes; /* so far */
};

/* The term that holds the newest (age 0) or an older one, age < size. */
static inline int slot_ring_term(const struct slot_ring *ring, int age) {
    return TERM_SLOT + ring->first + (ring->pushes - 1 - age) % ring->size;
}

/* An empty update that writes over the oldest; its slot is then the newest. */
struct scheduler_update *slot_ring_push(
    struct slot_ring *ring, struct scheduler_evaluation *evaluation);

/* A sigma as DPM-Solver sees it: alpha^2 + sigma^2 = 1, their ratio being the sigma, and
 * lambda = log(alpha / sigma). In float32 and in diffusers' order of operations: with many steps
 * the differences of lambdas are made of roundings. */
struct level {
    float alpha, sigma, lambda;
};
struct level level_of(float sigma);

/* sigma_run_init, and ERROR_INVALID where a step is of length 0: one of second order divides by
 * that of the step before. */
bool multistep_run_init(struct sigma_run *run, const struct scheduler_config *config,
    const struct noise_schedule *schedule, enum sigma_family family, int steps, struct error *err)
    __attribute__((warn_unused_result));

/* The evaluation sees a sample of that level. */
void level_see(struct scheduler_evaluation *evaluation, float timestep, const struct level *level);

/* How many predictions step i of count goes by, its own included: as many as there are since step
 * `first`, and with lower_order_final fewer towards the end, of a short run or (`always`) of any.
 */
int multistep_order(
    const struct scheduler_values *values, int first, int i, int count, bool always);

#endif
