/* AdamW (Loshchilov and Hutter 2017), as torch has it. */
#include "train/optimizer/optimizer_kind.h"

static bool add_states(struct optimizer *o, struct error *err) {
    return optimizer_add_floats(o, "m", err) && optimizer_add_floats(o, "v", err);
}

static void step(struct optimizer *o, const struct parameter_range *r, float *own,
    const struct optimizer_now *now) {
    struct tensor values = optimizer_floats(o, own, 0, r->count);
    struct tensor m = optimizer_state_of(o, 0, r), v = optimizer_state_of(o, 1, r);
    const struct tensor gradients = optimizer_gradients_of(o, r);
    op_adamw(&o->compute,
        &(struct adamw_args){ .parameter = &values,
            .gradient = &gradients,
            .m = &m,
            .v = &v,
            .lr = learning_rate_at(now->schedule, r->learning_rate, now->schedule_step),
            .beta1 = o->config->adam_beta1,
            .beta2 = o->config->adam_beta2,
            .eps = o->config->adam_epsilon,
            .weight_decay = r->weight_decay,
            .gradient_scale = now->scale,
            .step = o->steps,
            .gradient_limit = o->config->max_grad_value });
}

const struct optimizer_kind optimizer_adamw = {
    .title = "AdamW", .bytes_each = 2 * sizeof(float), .add_states = add_states, .step = step
};
