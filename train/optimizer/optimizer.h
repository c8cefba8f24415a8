/* One step of AdamW over everything that a job trains: unscale, clip by norm, clip by value, step,
 * clear.
 *
 * The norm is that of all gradients together. Gradients are clipped to max_grad_norm as in torch:
 * multiplied by max_grad_norm / (norm + 1e-6) if that is below 1. Clipping by value comes after
 * that. Each range of the parameters has its own learning rate and weight decay. */
#ifndef TRAIN_OPTIMIZER_OPTIMIZER_H
#define TRAIN_OPTIMIZER_OPTIMIZER_H

#include "kernels/compute/compute.h"
#include "train/optimizer/adamw_8bit.h"
#include "train/optimizer/learning_rate.h"
#include "train/optimizer/parameters.h"

struct optimizer {
    struct parameters *parameters; /* borrowed */
    struct compute compute;        /* its arena is owned */
    double beta1, beta2, eps;
    double max_grad_norm, max_grad_value; /* 0: do not clip */
    int64_t steps;                        /* number of steps taken */
    float *m, *v;                         /* owned, device memory; NULL with 8-bit states */
    struct adamw_8bit small;              /* 8-bit states in host memory, in order of ranges */
    bool eight_bit;
    float *sums; /* owned, device memory; set by sum_squares */
};

/* ERROR_UNSUPPORTED if 8-bit states are wanted on a device other than the CPU. */
bool optimizer_init(struct optimizer *optimizer, const struct train_config *config,
    struct parameters *parameters, struct error *err) __attribute__((warn_unused_result));
void optimizer_finish(struct optimizer *optimizer); /* a zeroed one is fine */
/* Returns the size of the optimizer's states for `floats` floats, in bytes. */
size_t optimizer_measure(const struct train_config *config, int64_t floats);

struct optimizer_report {
    double grad_norm; /* of the unscaled gradients, before clipping */
    int64_t broken;   /* number of non-finite gradients */
    bool stepped;     /* false if a gradient or their norm is not finite */
};
/* Takes one step. The gradients are scaled by loss_scale; the rates are those of the schedule's
 * step `schedule_step`. Then clears the gradients. If a gradient or their norm is not finite,
 * values and states stay unchanged. */
bool optimizer_step(struct optimizer *optimizer, const struct learning_rate *schedule,
    int64_t schedule_step, double loss_scale, struct optimizer_report *report, struct error *err)
    __attribute__((warn_unused_result));

#endif
