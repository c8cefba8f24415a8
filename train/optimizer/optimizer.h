/* One step of an optimizer over everything that a job trains: unscale, clip by norm, clip by value,
 * step, clear.
 *
 * The norm is that of all gradients together. Gradients are clipped to max_grad_norm as in torch:
 * multiplied by max_grad_norm / (norm + 1e-6) if that is below 1. Clipping by value comes after
 * that. Each range of the parameters has its own learning rate and weight decay.
 *
 * What an optimizer does with a range, and which states it keeps, is one entry of a table
 * (optimizer_kind.h). */
#ifndef TRAIN_OPTIMIZER_OPTIMIZER_H
#define TRAIN_OPTIMIZER_OPTIMIZER_H

#include "kernels/compute/compute.h"
#include "train/checkpoint.h"
#include "train/optimizer/learning_rate.h"
#include "train/optimizer/parameters.h"

#define OPTIMIZER_STATES_MAX 5

struct optimizer {
    const struct optimizer_kind *kind;
    const struct train_config *config; /* borrowed */
    struct parameters *parameters;     /* borrowed */
    struct compute compute; /* its arena is owned; NULL if no step needs scratch memory */
    int64_t steps;          /* number of steps taken */
    /* The states, in the form in which a checkpoint keeps them; their data is owned. */
    struct checkpoint_part states[OPTIMIZER_STATES_MAX];
    size_t state_count;
    double *pieces; /* owned, device memory: the sums of squares of pieces of the gradients */
    float *sums;    /* owned, device memory [2]: Prodigy's */
    /* Where the next range's states begin, during a step. */
    struct optimizer_cursor {
        size_t tensor;
        int64_t blocks, rows, cols;
    } cursor;
};

/* ERROR_UNSUPPORTED if 8-bit states are wanted on a device other than the CPU. The config and the
 * parameters are borrowed until optimizer_finish. */
bool optimizer_init(struct optimizer *optimizer, const struct train_config *config,
    struct parameters *parameters, struct error *err) __attribute__((warn_unused_result));
void optimizer_finish(struct optimizer *optimizer); /* a zeroed one is fine */
/* Returns the size of the states that the optimizer keeps for these parameters, in bytes; their
 * values need not be there yet. optimizer_measure_most returns the most that it keeps for any
 * parameters of `floats` floats. */
size_t optimizer_measure(const struct train_config *config, const struct parameters *parameters);
size_t optimizer_measure_most(const struct train_config *config, int64_t floats);

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

/* Returns the rate for reports: the schedule's, or what the optimizer makes of it. For Prodigy this
 * is d times the schedule's, with the d of the last step. */
double optimizer_rate(const struct optimizer *optimizer, const struct learning_rate *schedule,
    double learning_rate, int64_t schedule_step);

/* Returns the optimizer's name as kohya's scripts write it. */
const char *optimizer_title(const struct train_config *config);

#endif
