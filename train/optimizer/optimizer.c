#include "train/optimizer/optimizer.h"

#include "train/optimizer/optimizer_kind.h"

#include <math.h>
#include <stdlib.h>

static const struct optimizer_kind *const kinds[] = { [TRAIN_ADAMW] = &optimizer_adamw,
    [TRAIN_LION] = &optimizer_lion,
    [TRAIN_ADAFACTOR] = &optimizer_adafactor,
    [TRAIN_PRODIGY] = &optimizer_prodigy };

static const struct optimizer_kind *kind_of(const struct train_config *config) {
    return config->use_8bit_adam ? &optimizer_adamw_8bit : kinds[config->optimizer];
}

const char *optimizer_title(const struct train_config *config) {
    return kind_of(config)->title;
}

/* --- states --- */

struct tensor optimizer_floats(const struct optimizer *o, void *buffer, int64_t at, int64_t count) {
    struct tensor t = tensor_1d((float *)buffer + at, DTYPE_F32, count);
    t.device = o->parameters->kernels->device;
    return t;
}

struct tensor optimizer_state_of(
    const struct optimizer *o, size_t state, const struct parameter_range *r) {
    return optimizer_floats(o, o->states[state].data, r->at, r->count);
}

struct tensor optimizer_gradients_of(const struct optimizer *o, const struct parameter_range *r) {
    return optimizer_floats(o, o->parameters->gradients, r->at, r->count);
}

bool optimizer_add_state(
    struct optimizer *o, const char *name, size_t bytes, bool on_host, struct error *err) {
    const struct device_memory *memory = o->parameters->kernels->memory;
    struct checkpoint_part *state = &o->states[o->state_count];
    *state = (struct checkpoint_part){ name, NULL, bytes, on_host ? NULL : memory };
    if (on_host)
        state->data = calloc(1, bytes);
    if (on_host ? !state->data : !memory->alloc(MEMORY_WEIGHTS, bytes, &state->data, err))
        return on_host && error_set(err, ERROR_NO_MEMORY, "no memory for an optimizer's %s", name);
    o->state_count++;
    return on_host || memory->zero(state->data, bytes, err);
}

bool optimizer_add_floats(struct optimizer *o, const char *name, struct error *err) {
    return optimizer_add_state(o, name, (size_t)o->parameters->floats * sizeof(float), false, err);
}

/* Bytes of the pieces whose squares are summed (backward.h). */
static size_t pieces_bytes(const struct parameters *p) {
    return (size_t)square_pieces_count(p->floats) * 2 * sizeof(double);
}

bool optimizer_init(struct optimizer *o, const struct train_config *config,
    struct parameters *parameters, struct error *err) {
    const struct kernels *kernels = parameters->kernels;
    *o = (struct optimizer){ .kind = kind_of(config),
        .config = config,
        .parameters = parameters,
        .compute = { .kernels = kernels } };
    if (o->kind->on_host_only && kernels->device != DEVICE_CPU)
        return error_set(err, ERROR_UNSUPPORTED,
            "use_8bit_adam: 8-bit states are stepped on the CPU only, and this job runs on a GPU");
    bool ok = kernels->memory->alloc(
                  MEMORY_WEIGHTS, pieces_bytes(parameters), (void **)&o->pieces, err) &&
              kernels->memory->alloc(MEMORY_WEIGHTS, 2 * sizeof(float), (void **)&o->sums, err) &&
              o->kind->add_states(o, err);
    if (!ok)
        optimizer_finish(o);
    return ok;
}

void optimizer_finish(struct optimizer *o) {
    for (size_t i = 0; i < o->state_count; i++) {
        const struct checkpoint_part *state = &o->states[i];
        if (state->memory)
            state->memory->release(MEMORY_WEIGHTS, state->data, state->bytes);
        else
            free(state->data);
    }
    arena_destroy(o->compute.arena);
    if (o->parameters) {
        const struct device_memory *memory = o->parameters->kernels->memory;
        memory->release(MEMORY_WEIGHTS, o->sums, 2 * sizeof(float));
        memory->release(MEMORY_WEIGHTS, o->pieces, pieces_bytes(o->parameters));
    }
    *o = (struct optimizer){ 0 };
}

size_t optimizer_measure(const struct train_config *config, const struct parameters *p) {
    const struct optimizer_kind *kind = kind_of(config);
    return kind->measure ? kind->measure(p) : optimizer_measure_most(config, p->floats);
}

size_t optimizer_measure_most(const struct train_config *config, int64_t floats) {
    return (size_t)floats * kind_of(config)->bytes_each;
}

/* --- a step --- */

static bool failed(const struct compute *c, struct error *err) {
    if (compute_ok(c))
        return false;
    if (err)
        *err = c->error;
    return true;
}

/* Visits each range of values that only the model holds: takes each weight's values from the model
 * and, if they are changed, puts them back. */
static bool visit_weights(struct optimizer *o, optimizer_visit *visit, bool changes,
    const struct optimizer_now *now, struct error *err) {
    struct parameters *p = o->parameters;
    for (size_t i = 0; i < p->weight_count; i++) {
        const struct trained_weight *w = &p->weights[i];
        float *own = parameters_take(p, w, err);
        if (!own)
            return false;
        for (size_t k = w->first_range; k < w->first_range + w->range_count; k++)
            visit(o, &p->ranges[k], own + (p->ranges[k].at - w->at), now);
        if (failed(&o->compute, err) || (changes && !parameters_put(p, w, own, err)))
            return false;
    }
    return true;
}

static bool visit_ranges(struct optimizer *o, optimizer_visit *visit, bool changes,
    const struct optimizer_now *now, struct error *err) {
    struct parameters *p = o->parameters;
    o->cursor = (struct optimizer_cursor){ 0 };
    if (!p->values)
        return visit_weights(o, visit, changes, now, err);
    for (size_t i = 0; i < p->range_count; i++)
        visit(o, &p->ranges[i], p->values + p->ranges[i].at, now);
    return !failed(&o->compute, err) && (!changes || parameters_scatter(p, err));
}

static bool step_all(struct optimizer *o, const struct optimizer_now *now, struct error *err) {
    bool steps = true;
    o->steps++;
    if (o->kind->look &&
        (!visit_ranges(o, o->kind->look, false, now, err) || !o->kind->decide(o, now, &steps, err)))
        return false;
    return !steps || visit_ranges(o, o->kind->step, true, now, err);
}

/* Sums the squares of all gradients. *sum is rounded to f32: beyond its range there is no step.
 * *broken: the number of gradients that are not finite. */
static bool sum_squares(struct optimizer *o, double *sum, int64_t *broken, struct error *err) {
    const struct parameters *p = o->parameters;
    const int64_t count = square_pieces_count(p->floats);
    const struct tensor x = optimizer_floats(o, p->gradients, 0, p->floats);
    struct tensor pieces = tensor_2d(o->pieces, DTYPE_F64, count, 2);
    pieces.device = p->kernels->device;
    op_square_pieces(&o->compute, &(struct square_pieces_args){ .x = &x, .pieces = &pieces });
    if (failed(&o->compute, err))
        return false;
    const double *seen = p->kernels->memory->view(o->pieces, pieces_bytes(p), err);
    if (!seen)
        return false;
    square_pieces_fold(seen, count, sum, broken);
    *sum = (double)(float)*sum;
    return true;
}

bool optimizer_step(struct optimizer *o, const struct learning_rate *schedule,
    int64_t schedule_step, double loss_scale, struct optimizer_report *report, struct error *err) {
    const double max_norm = o->config->max_grad_norm;
    double sum;
    int64_t broken;
    if (!parameters_pull_gradients(o->parameters, err) || !sum_squares(o, &sum, &broken, err))
        return false;
    *report = (struct optimizer_report){ sqrt(sum) / loss_scale, broken,
        .stepped = broken == 0 && isfinite(sum) };
    if (report->stepped) {
        struct optimizer_now now = { schedule, schedule_step, 1 / loss_scale };
        if (max_norm > 0 && report->grad_norm + 1e-6 > max_norm)
            now.scale *= max_norm / (report->grad_norm + 1e-6);
        if (!step_all(o, &now, err))
            return false;
    }
    return parameters_clear_gradients(o->parameters, err);
}

double optimizer_rate(const struct optimizer *o, const struct learning_rate *schedule,
    double learning_rate, int64_t schedule_step) {
    const double scheduled = learning_rate_at(schedule, learning_rate, schedule_step);
    return o->kind->rate ? o->kind->rate(o, scheduled, schedule_step) : scheduled;
}
