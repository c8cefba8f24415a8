/* Prodigy (Mishchenko and Defazio 2023, "Prodigy: An Expeditiously Adaptive Parameter-Free
 * Learner"), as prodigyopt has it: Adam whose step size d grows with the distance that the values
 * have gone from their start.
 *
 *   look    m, v and s, and over all parameters the sums of g (start - p) and of |s|
 *   decide  the next d, at most growth_rate times the present one
 *   step    p -= d lr m / (sqrt(v) + next d eps), with the present d in front
 *
 * All parameters have one learning rate (train_config). A step with learning rate 0, or without any
 * gradient, changes no value and not d. */
#include "train/optimizer/optimizer_kind.h"

#include <math.h>

enum { M, V, S, START, NUMBERS };

/* What is carried from step to step. */
struct numbers {
    double d, d_max, numerator;
    double present; /* d lr, with the correction: of the step in progress */
    int64_t taken;  /* steps that changed the values */
};

static struct numbers *numbers_of(const struct optimizer *o) {
    return o->states[NUMBERS].data;
}

static bool add_states(struct optimizer *o, struct error *err) {
    struct parameters *p = o->parameters;
    if (!optimizer_add_floats(o, "m", err) || !optimizer_add_floats(o, "v", err) ||
        !optimizer_add_floats(o, "s", err) || !optimizer_add_floats(o, "start", err) ||
        !optimizer_add_state(o, "prodigy", sizeof(struct numbers), true, err))
        return false;
    *numbers_of(o) = (struct numbers){ .d = o->config->prodigy_d0, .d_max = o->config->prodigy_d0 };
    const float *values = parameters_gather(p, err);
    return values &&
           p->kernels->memory->copy(
               o->states[START].data, values, (size_t)p->floats * sizeof(float), err) &&
           (values == p->values || parameters_clear_gradients(p, err));
}

/* Returns the schedule's rate times Adam's bias correction. */
static double corrected(const struct optimizer *o, double scheduled) {
    const double k = (double)numbers_of(o)->taken + 1;
    return o->config->prodigy_use_bias_correction
               ? scheduled * sqrt(1 - pow(o->config->adam_beta2, k)) /
                     (1 - pow(o->config->adam_beta1, k))
               : scheduled;
}

static double beta3_of(const struct optimizer *o) {
    return o->config->prodigy_beta3 > 0 ? o->config->prodigy_beta3 : sqrt(o->config->adam_beta2);
}

static double scheduled_of(const struct parameter_range *r, const struct optimizer_now *now) {
    return learning_rate_at(now->schedule, r->learning_rate, now->schedule_step);
}

static void look(struct optimizer *o, const struct parameter_range *r, float *own,
    const struct optimizer_now *now) {
    const struct train_config *c = o->config;
    struct numbers *n = numbers_of(o);
    const struct tensor values = optimizer_floats(o, own, 0, r->count);
    const struct tensor start = optimizer_state_of(o, START, r);
    const struct tensor gradients = optimizer_gradients_of(o, r);
    struct tensor m = optimizer_state_of(o, M, r), v = optimizer_state_of(o, V, r);
    struct tensor s = optimizer_state_of(o, S, r), sums = optimizer_floats(o, o->sums, 0, 2);
    const double d = n->d, scheduled = scheduled_of(r, now);
    if (r == o->parameters->ranges) { /* the first one */
        n->present = d * corrected(o, scheduled);
        struct error err = { 0 };
        if (!o->parameters->kernels->memory->zero(o->sums, 2 * sizeof(float), &err))
            o->compute.error = err;
    }
    if (scheduled > 0)
        op_prodigy_sums(&o->compute,
            &(struct prodigy_sums_args){ .parameter = &values,
                .start = &start,
                .gradient = &gradients,
                .m = &m,
                .v = &v,
                .s = &s,
                .sums = &sums,
                .d = d,
                .s_rate = d / c->prodigy_d0 * (c->prodigy_safeguard_warmup ? d : n->present),
                .beta1 = c->adam_beta1,
                .beta2 = c->adam_beta2,
                .beta3 = beta3_of(o),
                .decay = c->prodigy_decouple ? 0 : r->weight_decay,
                .gradient_scale = now->scale,
                .gradient_limit = c->max_grad_value });
}

static bool decide(
    struct optimizer *o, const struct optimizer_now *now, bool *steps, struct error *err) {
    const struct train_config *c = o->config;
    struct numbers *n = numbers_of(o);
    (void)now;
    const float *sums = o->parameters->kernels->memory->view(o->sums, 2 * sizeof(float), err);
    if (!sums)
        return false;
    *steps = sums[1] > 0;
    if (!*steps)
        return true;
    n->numerator = n->numerator * beta3_of(o) + n->d / c->prodigy_d0 * n->present * (double)sums[0];
    const double wanted = c->prodigy_d_coef * n->numerator / (double)sums[1];
    if (n->d == c->prodigy_d0)
        n->d = fmax(n->d, wanted);
    n->d_max = fmax(n->d_max, wanted);
    n->d = c->prodigy_growth_rate > 0 ? fmin(n->d_max, n->d * c->prodigy_growth_rate) : n->d_max;
    n->taken++;
    return true;
}

static void step(struct optimizer *o, const struct parameter_range *r, float *own,
    const struct optimizer_now *now) {
    const struct numbers *n = numbers_of(o);
    (void)now;
    struct tensor values = optimizer_floats(o, own, 0, r->count);
    const struct tensor m = optimizer_state_of(o, M, r), v = optimizer_state_of(o, V, r);
    op_prodigy(
        &o->compute, &(struct prodigy_args){ .parameter = &values,
                         .m = &m,
                         .v = &v,
                         .rate = n->present,
                         .eps = n->d * o->config->adam_epsilon,
                         .weight_decay = o->config->prodigy_decouple ? r->weight_decay : 0 });
}

static double rate(const struct optimizer *o, double scheduled, int64_t schedule_step) {
    (void)schedule_step;
    return numbers_of(o)->d * scheduled;
}

const struct optimizer_kind optimizer_prodigy = { .title = "Prodigy",
    .bytes_each = 4 * sizeof(float),
    .add_states = add_states,
    .look = look,
    .decide = decide,
    .step = step,
    .rate = rate };
