#include "train/optimizer/learning_rate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const learning_rate_names[] = { "constant", "constant_with_warmup", "linear", "cosine",
    "cosine_with_restarts", "polynomial", "piecewise_constant", "warmup_cosine", "warmup_log",
    "warmup_linear", NULL };

static double at_least_1(int64_t steps) {
    return steps > 1 ? (double)steps : 1;
}

static double polynomial(const struct learning_rate *r, int64_t step) {
    if (step > r->total_steps)
        return r->end / r->lr;
    const double done = (double)(step - r->warmup_steps) /
                        at_least_1(r->total_steps - r->warmup_steps);
    return ((r->lr - r->end) * pow(1 - done, r->power) + r->end) / r->lr;
}

static double piecewise(const struct learning_rate *r, int64_t step) {
    int i = 0;
    while (i + 1 < r->rule_count && step >= r->rules[i].before)
        i++;
    return r->rules[i].multiple;
}

/* During the first step DeepSpeed's batch count is -1, so the rate is 0. */
static double deepspeed_warmup(const struct learning_rate *r, int64_t step) {
    const int64_t warmup = r->warmup_steps > 2 ? r->warmup_steps : 2; /* ln 1 would divide by 0 */
    const int64_t batch = step - 1;
    if (batch < 0)
        return 0;
    if (batch >= warmup)
        return 1;
    return r->kind == LEARNING_RATE_WARMUP_LOG ? log((double)batch + 1) / log((double)warmup)
                                               : (double)batch / (double)warmup;
}

static double warmup_cosine(const struct learning_rate *r, double base, int64_t step) {
    if (step < r->warmup_steps)
        return base *
               (r->start_factor + (1 - r->start_factor) * (double)step / (double)r->warmup_steps);
    const double done = (double)(step - r->warmup_steps) /
                        at_least_1(r->total_steps - r->warmup_steps);
    return r->eta_min + (base - r->eta_min) * (1 + cos(M_PI * done)) / 2;
}

double learning_rate_at(const struct learning_rate *r, double base, int64_t step) {
    switch (r->kind) {
    case LEARNING_RATE_CONSTANT:
        return base;
    case LEARNING_RATE_PIECEWISE_CONSTANT:
        return base * piecewise(r, step);
    case LEARNING_RATE_WARMUP_COSINE:
        return warmup_cosine(r, base, step);
    case LEARNING_RATE_WARMUP_LOG:
    case LEARNING_RATE_WARMUP_LINEAR:
        return base * deepspeed_warmup(r, step);
    default:
        break;
    }
    if (step < r->warmup_steps)
        return base * ((double)step / at_least_1(r->warmup_steps));
    const double done = (double)(step - r->warmup_steps) /
                        at_least_1(r->total_steps - r->warmup_steps);
    switch (r->kind) {
    case LEARNING_RATE_LINEAR:
        return base * fmax(0, (double)(r->total_steps - step) /
                                  at_least_1(r->total_steps - r->warmup_steps));
    case LEARNING_RATE_COSINE:
        return base * fmax(0, 0.5 * (1 + cos(M_PI * r->num_cycles * 2 * done)));
    case LEARNING_RATE_COSINE_WITH_RESTARTS:
        return done >= 1 ? 0
                         : base * fmax(0, 0.5 * (1 + cos(M_PI * fmod(r->num_cycles * done, 1))));
    case LEARNING_RATE_POLYNOMIAL:
        return base * polynomial(r, step);
    default:
        return base;
    }
}

/* Parses one number and moves *text past it. Returns false if there is none. */
static bool number(const char **text, double *out) {
    char *end;
    *out = strtod(*text, &end);
    const bool ok = end != *text && isfinite(*out);
    *text = end;
    return ok;
}

bool learning_rate_rules_parse(const char *text, struct learning_rate *out, struct error *err) {
    static const char wanted[] = "MULTIPLE:STEP,...,MULTIPLE with rising steps, as in "
                                 "\"1:10,0.1:20,0.01\"";
    out->rule_count = 0;
    int64_t last = 0;
    for (;;) {
        if (out->rule_count == LEARNING_RATE_RULES_MAX)
            return error_set(err, ERROR_INVALID, "more than %d rules", LEARNING_RATE_RULES_MAX);
        struct learning_rate_rule *rule = &out->rules[out->rule_count++];
        double before;
        if (!number(&text, &rule->multiple) || rule->multiple < 0)
            return error_set(err, ERROR_INVALID, "%s is wanted", wanted);
        rule->before = INT64_MAX;
        if (*text == 0)
            return true;
        if (*text++ != ':' || !number(&text, &before) || before != floor(before) ||
            before <= (double)last || before > 1e15 || *text++ != ',')
            return error_set(err, ERROR_INVALID, "%s is wanted", wanted);
        last = rule->before = (int64_t)before;
    }
}
