/* Adafactor (Shazeer and Stern 2018), as transformers has it, without a first moment. For each
 * matrix it keeps the mean squares of rows and columns, so its states are much smaller than the
 * parameters. Weights have the shapes that they have in torch: the kernel of a convolution is a
 * matrix for each pair of channels, so a 1x1 convolution and a vector have two states for each
 * number. A 1x1 convolution that the model computes as a linear layer is a matrix. */
#include "train/optimizer/optimizer_kind.h"

#include <math.h>

/* Adds up the states of all tensors. */
static void count_states(const struct parameters *p, int64_t *rows, int64_t *cols) {
    struct parameters_tensor t;
    *rows = *cols = 0;
    for (size_t i = 0; parameters_tensor_at(p, i, &t); i++) {
        *rows += factored_rows(&t.shape);
        *cols += factored_cols(&t.shape);
    }
}

static size_t measure(const struct parameters *p) {
    int64_t rows, cols;
    count_states(p, &rows, &cols);
    return (size_t)(rows + cols) * sizeof(float);
}

static double rate(const struct optimizer *o, double scheduled, int64_t schedule_step) {
    const double step = (double)schedule_step + 1;
    const double most = o->config->adafactor_warmup_init ? 1e-6 * step : 1e-2;
    return o->config->adafactor_relative_step ? fmin(most, 1 / sqrt(step)) : scheduled;
}

/* Steps a tensor whose values are at `own`. */
static void step_tensor(struct optimizer *o, struct compute *c, float *own,
    const struct parameters_tensor *t, const struct adafactor_args *settings) {
    const int64_t floats = factored_floats(&t->shape);
    struct adafactor_args args = *settings;
    struct tensor values = optimizer_floats(o, own, 0, floats);
    const struct tensor gradients = optimizer_floats(o, o->parameters->gradients, t->at, floats);
    struct tensor rows = optimizer_floats(
        o, o->states[0].data, o->cursor.rows, factored_rows(&t->shape));
    struct tensor cols = optimizer_floats(
        o, o->states[1].data, o->cursor.cols, factored_cols(&t->shape));
    args.parameter = &values;
    args.gradient = &gradients;
    args.shape = t->shape;
    args.rows = &rows;
    args.cols = &cols;
    op_adafactor(c, &args);
    o->cursor.rows += factored_rows(&t->shape);
    o->cursor.cols += factored_cols(&t->shape);
}

/* Plans the memory of a step. */
static void plan(struct compute *c, void *user) {
    struct optimizer *o = user;
    const struct parameters *p = o->parameters;
    const struct adafactor_args settings = { .clip_threshold = 1 };
    struct parameters_tensor t;
    for (size_t i = 0; parameters_tensor_at(p, i, &t); i++)
        step_tensor(o, c, p->values ? p->values + t.at : p->work, &t, &settings);
    o->cursor = (struct optimizer_cursor){ 0 };
}

static bool add_states(struct optimizer *o, struct error *err) {
    int64_t rows, cols;
    count_states(o->parameters, &rows, &cols);
    return optimizer_add_state(o, "rows", (size_t)rows * sizeof(float), false, err) &&
           optimizer_add_state(o, "cols", (size_t)cols * sizeof(float), false, err) &&
           arena_create(o->parameters->kernels->memory, &o->compute.arena, err) &&
           compute_plan(&o->compute, plan, o, err);
}

/* The tensors of a range follow those of the range before. */
static void step(struct optimizer *o, const struct parameter_range *r, float *own,
    const struct optimizer_now *now) {
    const struct train_config *c = o->config;
    const struct adafactor_args settings = { .lr = optimizer_rate(o, now->schedule,
                                                 r->learning_rate, now->schedule_step),
        .beta2 = 1 - pow((double)o->steps, c->adafactor_decay_rate),
        .clip_threshold = c->adafactor_clip_threshold,
        .weight_decay = r->weight_decay,
        .scale_parameter = c->adafactor_scale_parameter,
        .gradient_scale = now->scale,
        .gradient_limit = c->max_grad_value };
    struct parameters_tensor t;
    for (; parameters_tensor_at(o->parameters, o->cursor.tensor, &t) && t.at < r->at + r->count;
         o->cursor.tensor++)
        step_tensor(o, &o->compute, own + (t.at - r->at), &t, &settings);
}

const struct optimizer_kind optimizer_adafactor = { .title = "Adafactor",
    .bytes_each = 2 * sizeof(float),
    .add_states = add_states,
    .measure = measure,
    .step = step,
    .rate = rate };
