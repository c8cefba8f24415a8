/* Private to train/optimizer/: the table of optimizers. An optimizer is one file, which defines its
 * entry; optimizer.c lists it. */
#ifndef TRAIN_OPTIMIZER_OPTIMIZER_KIND_H
#define TRAIN_OPTIMIZER_OPTIMIZER_KIND_H

#include "train/optimizer/optimizer.h"

/* The settings of a step. */
struct optimizer_now {
    const struct learning_rate *schedule;
    int64_t schedule_step;
    double scale; /* by which gradients are multiplied: unscaled and clipped by norm */
};

/* Steps the range, or looks at it. `values` are the range's own values. Errors go to o->compute. */
typedef void optimizer_visit(struct optimizer *o, const struct parameter_range *range,
    float *values, const struct optimizer_now *now);

struct optimizer_kind {
    const char *title;
    size_t bytes_each; /* of states, at most, for each float of the parameters */
    bool on_host_only; /* steps parameters in host memory only */
    /* Adds the states with optimizer_add_state. */
    bool (*add_states)(struct optimizer *o, struct error *err);
    /* Returns the bytes of the states; NULL: bytes_each for each float. */
    size_t (*measure)(const struct parameters *parameters);
    /* Looks at each range before any is stepped, and then decides from what it has seen; *steps:
     * whether there is a step. Both are NULL if ranges are stepped independently. */
    optimizer_visit *look;
    bool (*decide)(
        struct optimizer *o, const struct optimizer_now *now, bool *steps, struct error *err);
    optimizer_visit *step;
    /* Returns the rate for the step; NULL: the schedule's. */
    double (*rate)(const struct optimizer *o, double scheduled, int64_t schedule_step);
};

extern const struct optimizer_kind optimizer_adamw, optimizer_adamw_8bit, optimizer_lion,
    optimizer_adafactor, optimizer_prodigy;

/* Adds a state of zeros, in host memory or in the device's. */
bool optimizer_add_state(struct optimizer *o, const char *name, size_t bytes, bool on_host,
    struct error *err) __attribute__((warn_unused_result));
/* Adds a state of one float for each float of the parameters. */
bool optimizer_add_floats(struct optimizer *o, const char *name, struct error *err)
    __attribute__((warn_unused_result));

/* Returns `count` floats of a buffer in the parameters' memory, from `at` on. */
struct tensor optimizer_floats(const struct optimizer *o, void *buffer, int64_t at, int64_t count);
/* Returns the floats of a state, or of the gradients, that belong to a range. */
struct tensor optimizer_state_of(
    const struct optimizer *o, size_t state, const struct parameter_range *range);
struct tensor optimizer_gradients_of(
    const struct optimizer *o, const struct parameter_range *range);

#endif
