/* Learning-rate schedules: functions of the optimizer's step alone, so that a resumed job needs
 * only its step number.
 *
 * The first six and piecewise_constant are diffusers' get_scheduler with its quirks: a warm-up
 * starts at 0, and "constant" has no warm-up. warmup_cosine is torch's LinearLR from a start
 * factor, followed by CosineAnnealingLR to eta_min. warmup_log and warmup_linear are DeepSpeed's
 * WarmupLR. It takes the first step with rate 0 and only then begins to count, so the second step
 * has rate 0 too.
 *
 *   s: the step from 0, w: warm-up steps, N: all steps, p = (s - w) / max(1, N - w)
 *   constant               1
 *   constant_with_warmup   s / w, then 1          (the next four too start with s / w up to s = w)
 *   linear                 1 - p, not below 0
 *   cosine                 (1 + cos(2 pi cycles p)) / 2, half a cycle unless said otherwise
 *   cosine_with_restarts   (1 + cos(pi (cycles p mod 1))) / 2, and 0 from p = 1
 *   polynomial             ((lr - end) (1 - p)^power + end) / lr, and end / lr after N
 *   piecewise_constant     the multiple of the first rule that ends after s
 *   warmup_cosine          f + (1 - f) s / w, then from 1 to eta_min / base in half a cosine
 *   warmup_log             0, then ln(s) / ln(w) up to s = w, then 1   (w: at least 2 in both)
 *   warmup_linear          0, then (s - 1) / w up to s = w, then 1 */
#ifndef TRAIN_OPTIMIZER_LEARNING_RATE_H
#define TRAIN_OPTIMIZER_LEARNING_RATE_H

#include "base/error.h"

#include <stdint.h>

enum learning_rate_kind {
    LEARNING_RATE_CONSTANT,
    LEARNING_RATE_CONSTANT_WITH_WARMUP,
    LEARNING_RATE_LINEAR,
    LEARNING_RATE_COSINE,
    LEARNING_RATE_COSINE_WITH_RESTARTS,
    LEARNING_RATE_POLYNOMIAL,
    LEARNING_RATE_PIECEWISE_CONSTANT,
    LEARNING_RATE_WARMUP_COSINE,
    LEARNING_RATE_WARMUP_LOG,
    LEARNING_RATE_WARMUP_LINEAR,
};
/* The names in the order of the enum, NULL-terminated. */
extern const char *const learning_rate_names[];

#define LEARNING_RATE_RULES_MAX 32

struct learning_rate_rule {
    double multiple;
    int64_t before; /* used for steps below this; the last rule for all later steps */
};

struct learning_rate {
    enum learning_rate_kind kind;
    int64_t warmup_steps, total_steps;
    double lr;                    /* the job's own, scaled; `end` is relative to it */
    double num_cycles;            /* cosine: 0.5; cosine_with_restarts: 1, integer */
    double power, end;            /* polynomial */
    double start_factor, eta_min; /* warmup_cosine */
    struct learning_rate_rule rules[LEARNING_RATE_RULES_MAX]; /* piecewise_constant, ascending */
    int rule_count;
};

/* The rate at step `step`, from 0, of a parameter group whose base rate is `base`. */
double learning_rate_at(const struct learning_rate *schedule, double base, int64_t step);

/* Parses diffusers' step rules. "1:10,0.1:20,0.01" multiplies by 1 for the first 10 steps, by 0.1
 * until step 20, and by 0.01 from then on. Errors have no param; the caller knows the field. */
bool learning_rate_rules_parse(const char *text, struct learning_rate *out, struct error *err)
    __attribute__((warn_unused_result));

#endif
