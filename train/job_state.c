#include "train/job_state.h"

#include "base/file.h"
#include "base/json.h"
#include "train/checkpoint.h"

#include <stdlib.h>
#include <string.h>

/* torch's CPU generator: its words, the next one's index, the number that a small draw left. */
#define GENERATOR_WORDS (MT19937_WORDS + 4)
#define PARTS_MAX 7

static void generator_save(const struct noise_generator *g, int32_t words[GENERATOR_WORDS]) {
    memcpy(words, g->mt.state, sizeof(g->mt.state));
    words[MT19937_WORDS] = g->mt.next;
    words[MT19937_WORDS + 1] = g->has_cached;
    memcpy(words + MT19937_WORDS + 2, &g->cached, sizeof(g->cached));
}

static bool generator_load(
    struct noise_generator *g, const int32_t words[GENERATOR_WORDS], struct error *err) {
    const int32_t next = words[MT19937_WORDS];
    if (next < 0 || next > MT19937_WORDS)
        return error_set(err, ERROR_INVALID, "a generator has no word %d", (int)next);
    noise_init(g, RNG_CPU, 0);
    memcpy(g->mt.state, words, sizeof(g->mt.state));
    g->mt.next = next;
    g->has_cached = words[MT19937_WORDS + 1] != 0;
    memcpy(&g->cached, words + MT19937_WORDS + 2, sizeof(g->cached));
    return true;
}

/* Every array of the job; how many. */
static size_t list_parts(
    const struct job_state *s, int32_t *generator, struct checkpoint_part parts[PARTS_MAX]) {
    const struct optimizer *o = s->optimizer;
    const struct device_memory *device = o->parameters->kernels->memory;
    const size_t bytes = (size_t)o->parameters->floats * sizeof(float);
    size_t count = 0;
    parts[count++] = (struct checkpoint_part){ "values", o->parameters->values, bytes, device };
    parts[count++] = (struct checkpoint_part){ "generator", generator,
        GENERATOR_WORDS * sizeof(int32_t), NULL };
    if (s->average)
        parts[count++] = (struct checkpoint_part){ "average", s->average, bytes, NULL };
    if (o->eight_bit) {
        const size_t places = (size_t)o->small.blocks * ADAMW_8BIT_BLOCK;
        const size_t largest = (size_t)o->small.blocks * sizeof(float);
        parts[count++] = (struct checkpoint_part){ "m", o->small.m, places, NULL };
        parts[count++] = (struct checkpoint_part){ "v", o->small.v, places, NULL };
        parts[count++] = (struct checkpoint_part){ "m_largest", o->small.m_largest, largest, NULL };
        parts[count++] = (struct checkpoint_part){ "v_largest", o->small.v_largest, largest, NULL };
    } else {
        parts[count++] = (struct checkpoint_part){ "m", o->m, bytes, device };
        parts[count++] = (struct checkpoint_part){ "v", o->v, bytes, device };
    }
    return count;
}

/* --- numbers --- */

static json_t *save_numbers(const struct job_state *s) {
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:i, s:o}", "step", (json_int_t)*s->step,
        "epoch", (json_int_t)*s->epoch, "batch", (json_int_t)*s->batch, "passes",
        (json_int_t)*s->passes, "optimizer_steps", (json_int_t)s->optimizer->steps, "loss_scale",
        s->scaler->scale, "good_steps", (json_int_t)s->scaler->good_steps, "forgiven",
        s->scaler->forgiven, "config", train_config_to_json(s->config));
}

/* What may be another value when a job goes on: it changes nothing of what has been. */
static bool may_change(const char *field) {
    static const char *const fields[] = { "max_train_steps", "num_train_epochs",
        "checkpointing_steps", "checkpoints_total_limit", "resume_from_checkpoint",
        "validation_prompts", "validation_steps", "validation_epochs", "num_validation_images",
        "save_format", "save_precision", "report_to", "dataloader_num_workers", "name",
        "gradient_checkpointing" };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (strcmp(fields[i], field) == 0)
            return true;
    return false;
}

/* The first field of `a` that `b` has otherwise. */
static bool check_fields(const json_t *a, const json_t *b, bool now_first, struct error *err) {
    const char *field;
    json_t *value;
    json_object_foreach((json_t *)a, field, value) {
        const json_t *other = json_object_get(b, field);
        if (may_change(field) || (other && json_equal(value, other)))
            continue;
        char now[100], then[100];
        json_describe(now_first ? value : other, now, sizeof(now));
        json_describe(now_first ? other : value, then, sizeof(then));
        return error_field(
            err, field, now, "%s, as in the checkpoint that the job goes on from", then);
    }
    return true;
}

static bool check_config(const struct job_state *s, const json_t *numbers, struct error *err) {
    const json_t *then = json_object_get(numbers, "config");
    json_t *now = train_config_to_json(s->config);
    const bool ok = now ? check_fields(now, then, true, err) && check_fields(then, now, false, err)
                        : error_set(err, ERROR_NO_MEMORY, "no memory to compare jobs");
    json_decref(now);
    return ok;
}

static bool load_numbers(const struct job_state *s, const json_t *numbers, struct error *err) {
    json_int_t step, epoch, batch, passes, steps, good_steps;
    double scale;
    int forgiven;
    if (json_unpack((json_t *)numbers, "{s:I, s:I, s:I, s:I, s:I, s:F, s:I, s:i}", "step", &step,
            "epoch", &epoch, "batch", &batch, "passes", &passes, "optimizer_steps", &steps,
            "loss_scale", &scale, "good_steps", &good_steps, "forgiven", &forgiven) != 0)
        return error_set(err, ERROR_INVALID, "the checkpoint is not of a LoRA job");
    if (step < 0 || epoch < 0 || batch < 0 || passes < 0 || steps < 0)
        return error_set(err, ERROR_INVALID, "the checkpoint's place in the job is negative");
    *s->step = step;
    *s->epoch = epoch;
    *s->batch = batch;
    *s->passes = (uint64_t)passes;
    s->optimizer->steps = steps;
    s->scaler->scale = scale;
    s->scaler->good_steps = good_steps;
    s->scaler->forgiven = forgiven;
    return true;
}

/* --- the whole --- */

bool job_state_write(const char *folder, const struct job_state *s,
    bool (*beside)(void *user, const char *folder, struct error *err), void *user,
    struct error *err) {
    int32_t generator[GENERATOR_WORDS];
    struct checkpoint_part parts[PARTS_MAX];
    generator_save(s->generator, generator);
    const struct checkpoint_state state = { parts, list_parts(s, generator, parts),
        save_numbers(s) };
    const bool ok = state.numbers
                        ? checkpoint_write(folder, *s->step, &state,
                              s->config->checkpoints_total_limit, beside, user, err)
                        : error_set(err, ERROR_NO_MEMORY, "no memory to save a job's numbers");
    json_decref(state.numbers);
    return ok;
}

static bool read_named(
    const char *folder, const char *name, struct checkpoint_state *state, struct error *err) {
    if (strchr(name, '/'))
        return error_field(err, "resume_from_checkpoint", name,
            "\"latest\", or the name of one of the job's checkpoints");
    char *path = file_join(folder, name);
    const bool ok = path ? checkpoint_read(path, state, err)
                         : error_set(err, ERROR_NO_MEMORY, "no memory for a file name");
    free(path);
    return ok;
}

bool job_state_read(
    const char *folder, const struct job_state *s, bool *resumed, struct error *err) {
    const char *from = s->config->resume_from_checkpoint;
    int32_t generator[GENERATOR_WORDS];
    struct checkpoint_part parts[PARTS_MAX];
    struct checkpoint_state state = { parts, list_parts(s, generator, parts), NULL };
    int64_t step = 0;
    *resumed = false;
    if (!from)
        return true;
    if (!(strcmp(from, "latest") == 0 ? checkpoint_read_last(folder, &state, &step, err)
                                      : read_named(folder, from, &state, err)))
        return false;
    if (step < 0)
        return true;
    const bool ok = check_config(s, state.numbers, err) && load_numbers(s, state.numbers, err) &&
                    generator_load(s->generator, generator, err);
    json_decref(state.numbers);
    *resumed = ok;
    return ok;
}
