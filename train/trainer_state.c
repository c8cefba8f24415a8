/* Saves a trainer's state as a checkpoint, and restores it: everything on which its next step
 * depends. */
#include "train/checkpoint.h"
#include "train/save_adapter.h"
#include "train/save_model.h"
#include "train/trainer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARTS_MAX (OPTIMIZER_STATES_MAX + 4)
#define MULTIPLIED_BY "multiplied_by" /* left out if it is 1 */

/* Lists the parts of a checkpoint. `values` is where the values are, or will be read to. */
static size_t list_parts(const struct trainer *t, float *values, struct noise_generator *generator,
    struct mt19937 *masks, struct checkpoint_part *out) {
    const struct parameters *p = t->parameters;
    const struct optimizer *o = &t->optimizer;
    const struct device_memory *device = p->kernels->memory;
    const size_t bytes = (size_t)p->floats * sizeof(float);
    size_t n = 0;
    out[n++] = (struct checkpoint_part){ "values", values, bytes, device };
    for (size_t i = 0; i < o->state_count; i++)
        out[n++] = o->states[i];
    if (t->average)
        out[n++] = (struct checkpoint_part){ "average", t->average, bytes, NULL };
    out[n++] = (struct checkpoint_part){ "generator", &generator->mt, sizeof(generator->mt), NULL };
    if (t->inpainting)
        out[n++] = (struct checkpoint_part){ "masks", masks, sizeof(*masks), NULL };
    return n;
}

/* Writes the bits of a double, because a JSON number cannot be infinite. */
static json_int_t bits_of(double value) {
    json_int_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static double double_of(json_int_t bits) {
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static json_t *numbers_of(const struct trainer *t) {
    const struct resume_point *r = &t->resume_point;
    json_t *numbers = json_pack("{s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:I, s:I, s:i, s:o}", "step",
        (json_int_t)t->step, "optimizer_steps", (json_int_t)t->optimizer.steps, "epoch",
        (json_int_t)r->epoch, "batch", (json_int_t)r->batch, "passes", (json_int_t)r->passes,
        "has_cached", (int)r->generator.has_cached, "cached", bits_of(r->generator.cached),
        "loss_scale", bits_of(t->scaler.scale), "good_steps", (json_int_t)t->scaler.good_steps,
        "forgiven", t->scaler.forgiven, "config", train_config_to_json(t->config));
    if (numbers && t->multiplied_by > 1)
        json_object_set_new(numbers, MULTIPLIED_BY, json_integer(t->multiplied_by));
    return numbers;
}

/* Writes the adapter into the checkpoint's folder, so that each checkpoint can be used for
 * drawing. */
struct beside {
    struct trainer *trainer;
    const struct adapter_facts *facts;
};

static bool write_beside(void *user, const char *folder, struct error *err) {
    const struct beside *b = user;
    char path[4096];
    const int length = snprintf(path, sizeof(path), "%s/adapter.safetensors", folder);
    if (length < 0 || (size_t)length >= sizeof(path))
        return error_set(err, ERROR_INVALID, "%.200s...: the path is too long", folder);
    return trainer_save(b->trainer, path, TRAIN_SAVE_DIFFUSERS, b->facts, err);
}

bool trainer_save(struct trainer *t, const char *path, enum train_save_format format,
    const struct adapter_facts *facts, struct error *err) {
    const float *values = trainer_values(t, err);
    return values && save_adapter(path, format, t->parameters, values, t->config, facts, err);
}

bool trainer_save_model(struct trainer *t, struct checkpoint *checkpoint, const char *path,
    const char *out, struct error *err) {
    const struct parameters *p = t->parameters;
    const bool on_host = p->kernels->device == DEVICE_CPU;
    const float *values = trainer_values(t, err);
    float *room = on_host ? p->gradients : malloc((size_t)p->floats * sizeof(*room));
    bool ok = room || error_set(err, ERROR_NO_MEMORY, "no memory to save a model");
    t->gradients_lost = true;
    ok = ok && values && save_model(p, values, room, t->config, checkpoint, path, out, err);
    if (!on_host)
        free(room);
    return ok;
}

bool trainer_checkpoint(
    struct trainer *t, const char *folder, const struct adapter_facts *facts, struct error *err) {
    struct checkpoint_part parts[PARTS_MAX];
    struct beside beside = { t, facts };
    struct noise_generator generator = t->resume_point.generator;
    struct mt19937 masks = t->resume_point.masks;
    float *values = trainer_gather(t, err);
    if (!values)
        return false;
    const struct checkpoint_state state = {
        .parts = parts,
        .count = list_parts(t, values, &generator, &masks, parts),
        .numbers = numbers_of(t),
    };
    const bool lora = t->config->method == TRAIN_LORA;
    const bool ok = state.numbers ? checkpoint_write(folder, t->step, &state,
                                        t->config->checkpoints_total_limit,
                                        lora ? write_beside : NULL, &beside, err)
                                  : error_set(err, ERROR_NO_MEMORY, "no memory for a checkpoint");
    json_decref(state.numbers);
    return ok;
}

static json_int_t integer_of(const json_t *numbers, const char *name) {
    return json_integer_value(json_object_get(numbers, name));
}

/* Restores the numbers of a checkpoint; the arrays have been read already. */
static bool go_on(struct trainer *t, struct noise_generator *generator, const struct mt19937 *masks,
    const json_t *n, struct error *err) {
    if (!train_config_continues(t->config, json_object_get(n, "config"), err))
        return false;
    generator->has_cached = json_is_true(json_object_get(n, "has_cached"));
    generator->cached = double_of(integer_of(n, "cached"));
    /* A job that is resumed with the product in its configuration ("share") says nothing of the
     * factor. It must stay with the job, which may be resumed with "multiply" again. */
    if (t->options.multiplied_by <= 1)
        t->multiplied_by = integer_of(n, MULTIPLIED_BY);
    t->step = integer_of(n, "step");
    t->optimizer.steps = integer_of(n, "optimizer_steps");
    t->scaler.scale = double_of(integer_of(n, "loss_scale"));
    t->scaler.good_steps = integer_of(n, "good_steps");
    t->scaler.forgiven = (int)integer_of(n, "forgiven");
    t->generator = *generator;
    t->masks = *masks;
    t->epoch = integer_of(n, "epoch");
    t->batch = integer_of(n, "batch");
    t->passes = (uint64_t)integer_of(n, "passes");
    t->resume_point = (struct resume_point){ t->generator, t->masks, t->epoch, t->batch,
        t->passes };
    if (t->step < 0 || t->step > t->steps || t->epoch < 0 || t->batch < 0 || t->batch >= t->batches)
        return error_set(err, ERROR_INVALID,
            "the checkpoint is at step %lld and batch %lld, the job has %lld steps and %lld "
            "batches an epoch",
            (long long)t->step, (long long)t->batch, (long long)t->steps, (long long)t->batches);
    if (t->step == t->steps)
        t->phase = TRAINER_DONE;
    return true;
}

/* After the state of a checkpoint could not be read: if the job differs from that of the checkpoint
 * in a field, so that it has other arrays, names the field in place of the arrays. `step`: -1: the
 * last checkpoint. */
static void name_field(
    const struct trainer *t, const char *folder, int64_t step, struct error *err) {
    struct error ignored = { 0 }, why = { 0 };
    json_t *numbers = NULL;
    (void)!checkpoint_read_numbers(folder, step, &numbers, &ignored);
    const json_t *config = json_object_get(numbers, "config");
    if (config && !train_config_continues(t->config, config, &why) && err)
        *err = why;
    json_decref(numbers);
}

/* Returns the step of the checkpoint that resume_from_checkpoint names, or -1. */
static int64_t named_step(const struct train_config *config) {
    return config->resume_from_checkpoint ? checkpoint_step(config->resume_from_checkpoint) : -1;
}

bool trainer_multiplied_by(
    const char *folder, const struct train_config *config, int64_t *out, struct error *err) {
    json_t *numbers;
    if (!checkpoint_read_numbers(folder, named_step(config), &numbers, err))
        return false;
    const json_t *value = json_object_get(numbers, MULTIPLIED_BY);
    *out = !numbers ? 0 : value ? json_integer_value(value) : 1;
    json_decref(numbers);
    return *out >= 0 ||
           error_set(err, ERROR_INVALID, "%s: a checkpoint's " MULTIPLIED_BY " is below 0", folder);
}

bool trainer_resume(struct trainer *t, const char *folder, bool *resumed, struct error *err) {
    struct checkpoint_part parts[PARTS_MAX];
    struct noise_generator generator = { .kind = RNG_CPU };
    struct mt19937 masks = t->masks;
    struct parameters *p = t->parameters;
    float *values = p->values ? p->values : p->gradients;
    struct checkpoint_state state = { .parts = parts,
        .count = list_parts(t, values, &generator, &masks, parts) };
    const int64_t named = named_step(t->config);
    int64_t step = named;
    *resumed = false;
    if (!(named < 0 ? checkpoint_read_last(folder, &state, &step, err)
                    : checkpoint_read_step(folder, named, &state, err))) {
        name_field(t, folder, named, err);
        return false;
    }
    if (step < 0)
        return true;
    *resumed = go_on(t, &generator, &masks, state.numbers, err) && parameters_scatter(p, err) &&
               parameters_clear_gradients(p, err) &&
               (named < 0 || !agreement_is_first(t->options.ranks) ||
                   checkpoint_put_aside(folder, named, err));
    json_decref(state.numbers);
    return *resumed;
}
