#include "train/optimizer/optimizer.h"

#include <math.h>

static int64_t blocks_of(int64_t count) {
    return (count + ADAMW_8BIT_BLOCK - 1) / ADAMW_8BIT_BLOCK;
}

static struct tensor whole(const struct parameters *p, float *buffer, int64_t at, int64_t count) {
    struct tensor t = tensor_1d(buffer + at, DTYPE_F32, count);
    t.device = p->kernels->device;
    return t;
}

static void sum_squares(struct compute *c, void *user) {
    const struct optimizer *o = user;
    const struct tensor x = whole(
        o->parameters, o->parameters->gradients, 0, o->parameters->floats);
    struct tensor sums = whole(o->parameters, o->sums, 0, 2);
    op_sum_squares(c, &(struct sum_squares_args){ .x = &x, .sums = &sums });
}

static bool make_states(struct optimizer *o, struct error *err) {
    const struct parameters *p = o->parameters;
    const struct device_memory *memory = p->kernels->memory;
    const size_t bytes = (size_t)p->floats * sizeof(float);
    if (o->eight_bit) {
        int64_t blocks = 0;
        for (size_t i = 0; i < p->range_count; i++)
            blocks += blocks_of(p->ranges[i].count);
        return adamw_8bit_init(&o->small, blocks, err);
    }
    return memory->alloc(MEMORY_WEIGHTS, bytes, (void **)&o->m, err) &&
           memory->alloc(MEMORY_WEIGHTS, bytes, (void **)&o->v, err) &&
           memory->zero(o->m, bytes, err) && memory->zero(o->v, bytes, err);
}

bool optimizer_init(struct optimizer *o, const struct train_config *config,
    struct parameters *parameters, struct error *err) {
    const struct kernels *kernels = parameters->kernels;
    *o = (struct optimizer){ .parameters = parameters,
        .compute = { .kernels = kernels },
        .beta1 = config->adam_beta1,
        .beta2 = config->adam_beta2,
        .eps = config->adam_epsilon,
        .max_grad_norm = config->max_grad_norm,
        .max_grad_value = config->max_grad_value,
        .eight_bit = config->use_8bit_adam };
    if (o->eight_bit && kernels->device != DEVICE_CPU)
        return error_set(err, ERROR_UNSUPPORTED,
            "use_8bit_adam: 8-bit states are stepped on the CPU only, and this job runs on a GPU");
    bool ok = arena_create(kernels->memory, &o->compute.arena, err) &&
              kernels->memory->alloc(MEMORY_WEIGHTS, 2 * sizeof(float), (void **)&o->sums, err) &&
              make_states(o, err) && compute_plan(&o->compute, sum_squares, o, err);
    if (!ok)
        optimizer_finish(o);
    return ok;
}

void optimizer_finish(struct optimizer *o) {
    if (o->parameters) {
        const struct device_memory *memory = o->parameters->kernels->memory;
        const size_t bytes = (size_t)o->parameters->floats * sizeof(float);
        memory->release(MEMORY_WEIGHTS, o->m, bytes);
        memory->release(MEMORY_WEIGHTS, o->v, bytes);
        memory->release(MEMORY_WEIGHTS, o->sums, 2 * sizeof(float));
    }
    arena_destroy(o->compute.arena);
    adamw_8bit_finish(&o->small);
    *o = (struct optimizer){ 0 };
}

size_t optimizer_measure(const struct train_config *config, int64_t floats) {
    return (size_t)floats * (config->use_8bit_adam ? 2 : 2 * sizeof(float));
}

static bool failed(const struct compute *c, struct error *err) {
    if (compute_ok(c))
        return false;
    if (err)
        *err = c->error;
    return true;
}

/* Steps one range, whose values are `own`. Advances *block, the index into the 8-bit states. */
static void step_range(struct optimizer *o, const struct parameter_range *r, float *own, double lr,
    double scale, int64_t *block) {
    struct parameters *p = o->parameters;
    if (o->eight_bit) {
        adamw_8bit_step(&o->small, *block, own, p->gradients + r->at, r->count,
            &(struct adamw_8bit_step){ lr, o->beta1, o->beta2, o->eps, r->weight_decay, scale,
                o->steps, o->max_grad_value });
        *block += blocks_of(r->count);
        return;
    }
    struct tensor values = whole(p, own, 0, r->count);
    const struct tensor gradients = whole(p, p->gradients, r->at, r->count);
    struct tensor m = whole(p, o->m, r->at, r->count), v = whole(p, o->v, r->at, r->count);
    op_adamw(&o->compute, &(struct adamw_args){ .parameter = &values,
                              .gradient = &gradients,
                              .m = &m,
                              .v = &v,
                              .lr = lr,
                              .beta1 = o->beta1,
                              .beta2 = o->beta2,
                              .eps = o->eps,
                              .weight_decay = r->weight_decay,
                              .gradient_scale = scale,
                              .step = o->steps,
                              .gradient_limit = o->max_grad_value });
}

static bool step_ranges(struct optimizer *o, const struct learning_rate *schedule,
    int64_t schedule_step, double scale, struct error *err) {
    struct parameters *p = o->parameters;
    int64_t block = 0;
    for (size_t i = 0; i < p->range_count; i++) {
        const struct parameter_range *r = &p->ranges[i];
        step_range(o, r, p->values + r->at,
            learning_rate_at(schedule, r->learning_rate, schedule_step), scale, &block);
    }
    return !failed(&o->compute, err) && parameters_scatter(p, err);
}

/* The variant of step_ranges for values that only the model holds (p->values is NULL): takes each
 * weight's values from the model, steps them and puts them back. */
static bool step_weights(struct optimizer *o, const struct learning_rate *schedule,
    int64_t schedule_step, double scale, struct error *err) {
    struct parameters *p = o->parameters;
    int64_t block = 0;
    for (size_t i = 0; i < p->weight_count; i++) {
        const struct trained_weight *w = &p->weights[i];
        float *own = parameters_take(p, w, err);
        if (!own)
            return false;
        for (size_t k = w->first_range; k < w->first_range + w->range_count; k++) {
            const struct parameter_range *r = &p->ranges[k];
            step_range(o, r, own + (r->at - w->at),
                learning_rate_at(schedule, r->learning_rate, schedule_step), scale, &block);
        }
        if (failed(&o->compute, err) || !parameters_put(p, w, own, err))
            return false;
    }
    return true;
}

bool optimizer_step(struct optimizer *o, const struct learning_rate *schedule,
    int64_t schedule_step, double loss_scale, struct optimizer_report *report, struct error *err) {
    const struct parameters *p = o->parameters;
    const struct device_memory *memory = p->kernels->memory;
    sum_squares(&o->compute, o);
    if (failed(&o->compute, err))
        return false;
    const float *sums = memory->view(o->sums, 2 * sizeof(float), err);
    if (!sums)
        return false;
    *report = (struct optimizer_report){ sqrt((double)sums[0]) / loss_scale, (int64_t)sums[1],
        .stepped = sums[1] == 0 && isfinite(sums[0]) };
    if (report->stepped) {
        double scale = 1 / loss_scale;
        if (o->max_grad_norm > 0 && report->grad_norm + 1e-6 > o->max_grad_norm)
            scale *= o->max_grad_norm / (report->grad_norm + 1e-6);
        o->steps++;
        if (!(p->values ? step_ranges : step_weights)(o, schedule, schedule_step, scale, err))
            return false;
    }
    return parameters_clear_gradients(o->parameters, err);
}
