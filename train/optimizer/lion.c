/* Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"), as lion-pytorch has
 * it: steps by the sign of a mean of gradients. */
#include "train/optimizer/optimizer_kind.h"

static bool add_states(struct optimizer *o, struct error *err) {
    return optimizer_add_floats(o, "m", err);
}

static void step(struct optimizer *o, const struct parameter_range *r, float *own,
    const struct optimizer_now *now) {
    struct tensor values = optimizer_floats(o, own, 0, r->count);
    struct tensor m = optimizer_state_of(o, 0, r);
    const struct tensor gradients = optimizer_gradients_of(o, r);
    op_lion(&o->compute,
        &(struct lion_args){ .parameter = &values,
            .gradient = &gradients,
            .m = &m,
            .lr = learning_rate_at(now->schedule, r->learning_rate, now->schedule_step),
            .beta1 = o->config->lion_beta1,
            .beta2 = o->config->lion_beta2,
            .weight_decay = r->weight_decay,
            .gradient_scale = now->scale,
            .gradient_limit = o->config->max_grad_value });
}

const struct optimizer_kind optimizer_lion = {
    .title = "Lion", .bytes_each = sizeof(float), .add_states = add_states, .step = step
};
