#include "engine/training_job/validation.h"

#include "base/file.h"
#include "base/log.h"
#include "engine/training_job/folder.h"
#include "pictures/png_encode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct validation {
    struct validation_options options;
    struct drawing drawing;
    bool busy;
    int64_t step;
    double loss;
    const struct row_overlay *overlay;
    json_t *pictures; /* owned: list of the pictures written so far */
    size_t prompt;    /* index of the current prompt */
    int written;      /* number of its pictures */
};

/* --- the request of one prompt --- */

struct scheduler_choice validation_scheduler(const struct train_config *c) {
    struct scheduler_choice choice = { 0 };
    choice.has_kind = c->validation_scheduler &&
                      scheduler_kind_from_name(c->validation_scheduler, &choice.kind);
    if (c->prediction_type != TRAIN_PREDICTION_OF_MODEL)
        scheduler_choose(&choice, OPTION_PREDICTION_TYPE,
            c->prediction_type == TRAIN_PREDICTION_V ? PREDICTION_V : PREDICTION_EPSILON);
    return choice;
}

int validation_steps(const struct train_config *c, const struct generate_request *defaults) {
    struct generate_request standard;
    generate_request_init(&standard);
    return c->validation_inference_steps         ? (int)c->validation_inference_steps
           : defaults->num_inference_steps_given ? defaults->num_inference_steps
                                                 : standard.num_inference_steps;
}

/* What the job does not say is left open, so that it gets the defaults of requests. */
static struct generate_request request_of(
    const struct train_config *c, const struct generate_request *defaults, size_t prompt) {
    struct generate_request r;
    generate_request_init(&r);
    r.prompts = &c->validation_prompts.items[prompt];
    r.prompt_count = 1;
    r.negative_prompt = c->validation_negative_prompt;
    r.width = r.height = (int)c->resolution;
    r.num_inference_steps = validation_steps(c, defaults);
    r.num_inference_steps_given = true;
    if (c->validation_guidance_scale > 0) {
        r.guidance_scale = c->validation_guidance_scale;
        r.guidance_scale_given = true;
    }
    r.scheduler = validation_scheduler(c);
    r.seed = (uint64_t)(c->validation_seed ? c->validation_seed : c->seed);
    r.seed_given = true;
    r.num_images = (int)c->num_validation_images;
    return r;
}

/* Adds the fields that a job does not have and that a default has changed. */
static void describe_others(const struct generate_request *asked, json_t *json) {
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++) {
        const struct generate_field *f = &generate_fields[id];
        if (f->by_model && f->kind != FIELD_TEXT && f->kind != FIELD_OTHER &&
            !json_object_get(json, f->name) && field_get(&f->field, asked) != f->value)
            json_object_set_new(json, f->name, field_to_json(&f->field, asked));
    }
}

/* Returns the request for image `index` as a client would send it, malloc'd. It becomes a text
 * chunk of the PNG file. */
static char *describe(const struct validation *v, int index) {
    const struct generate_request *asked = &v->drawing.request.asked;
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    const bool named = job_folder_checkpoint_name(v->options.config->name, v->step, name);
    json_t *json = json_pack("{s:s, s:s, s:I, s:i, s:f, s:i, s:i, s:o, s:[{s:s, s:i}]}", "prompt",
        asked->prompts[0], "negative_prompt", asked->negative_prompt ? asked->negative_prompt : "",
        "seed", (json_int_t)resolved_request_seed(&v->drawing.request, index),
        "num_inference_steps", asked->num_inference_steps, "guidance_scale", asked->guidance_scale,
        "width", asked->width, "height", asked->height, "scheduler",
        scheduler_config_to_json(&v->drawing.request.scheduler), "loras", "name",
        named ? name : v->options.config->name, "weight", 1);
    describe_others(asked, json);
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(json);
    return text;
}

static bool resolve(struct validation *v, size_t prompt, struct error *err) {
    const struct generate_request request = request_of(
        v->options.config, v->options.models.defaults, prompt);
    return drawing_resolve(&v->drawing, &request, err);
}

/* Requests the pictures of the current prompt. If the text encoder is trained, the texts get a new
 * key, and so are encoded again, at every step. */
static bool ask(struct validation *v, struct error *err) {
    const bool texts = v->options.config->train_text_encoder;
    return resolve(v, v->prompt, err) &&
           adapter_set_create(v->overlay, texts ? v->overlay : NULL,
               texts ? (uint64_t)v->step + 1 : 0, &v->drawing.request.adapters, err) &&
           drawing_admit(&v->drawing, err);
}

/* `why`: the reason if the prompt's pictures were not drawn. */
static void next_prompt(struct validation *v, const struct error *why) {
    if (why->code != ERROR_NONE)
        log_warning(
            "validation at step %lld, prompt %zu: %s", (long long)v->step, v->prompt, why->message);
    drawing_forget(&v->drawing);
    v->written = 0;
    v->prompt++;
}

/* --- files --- */

static bool write_bytes(
    const char *folder, const char *name, const void *bytes, size_t size, struct error *err) {
    char *path = file_join(folder, name);
    const struct file_part part = { bytes, size };
    const bool ok = path ? file_write(path, &part, 1, err)
                         : error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    free(path);
    return ok;
}

static bool note_picture(struct validation *v, int index, const char *name, struct error *err) {
    json_t *json = json_pack("{s:s, s:s, s:I}", "file", name, "prompt",
        v->drawing.request.asked.prompts[0], "seed",
        (json_int_t)resolved_request_seed(&v->drawing.request, index));
    return json_array_append_new(v->pictures, json) == 0 ||
           error_set(err, ERROR_NO_MEMORY, "no memory for a list of pictures");
}

static bool keep_picture(struct validation *v, int index, const char *folder, struct error *err) {
    const struct generate_result *r = &v->drawing.result;
    char name[32], tag[48], *text = describe(v, index);
    const struct png_text_chunk chunk = { "latentd", text };
    uint8_t *png;
    size_t size;
    snprintf(name, sizeof(name), "%zu-%d.png", v->prompt, index);
    snprintf(tag, sizeof(tag), "validation/%zu-%d", v->prompt, index);
    bool ok = text || error_set(err, ERROR_NO_MEMORY, "no memory for a picture's text");
    ok = ok && png_encode(r->images[index], r->width, r->height, &chunk, 1, &png, &size, err);
    free(text);
    if (!ok)
        return false;
    const struct events_picture picture = { tag, r->height, r->width, png, size };
    ok = write_bytes(folder, name, png, size, err) && note_picture(v, index, name, err) &&
         (!v->options.events ||
             events_add_picture(v->options.events, (double)time(NULL), v->step, &picture, err));
    free(png);
    return ok;
}

static void write_one(struct validation *v) {
    struct error err = { 0 };
    char *folder = job_folder_validation_step(v->options.folder, v->step);
    if (!folder || !keep_picture(v, v->written, folder, &err))
        log_warning("validation at step %lld: %s", (long long)v->step, err.message);
    free(folder);
    v->written++;
}

/* Writes the list of pictures, after all pictures were written. */
static void finish(struct validation *v) {
    struct error err = { 0 };
    char *folder = job_folder_validation_step(v->options.folder, v->step);
    json_t *json = json_pack("{s:I, s:o, s:O}", "step", (json_int_t)v->step, "loss",
        isfinite(v->loss) ? json_real(v->loss) : json_null(), "pictures", v->pictures);
    char *text = json ? json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(json);
    if (!folder || !text)
        error_set(&err, ERROR_NO_MEMORY, "no memory for a list of pictures");
    else
        (void)!write_bytes(folder, VALIDATION_LIST, text, strlen(text), &err);
    if (err.code != ERROR_NONE)
        log_warning("validation at step %lld: %s", (long long)v->step, err.message);
    free(text);
    free(folder);
    json_decref(v->pictures);
    v->pictures = NULL;
    v->busy = false;
}

/* --- pieces --- */

bool validation_begin(struct validation *v, int64_t step, double loss,
    const struct row_overlay *overlay, struct error *err) {
    char *all = job_folder_validation(v->options.folder);
    char *folder = job_folder_validation_step(v->options.folder, step);
    bool ok = (all && folder) || error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    if (ok)
        job_folder_remove(folder);
    ok = ok && job_folder_make(folder, err);
    free(all);
    free(folder);
    v->pictures = ok ? json_array() : NULL;
    if (ok && !v->pictures)
        ok = error_set(err, ERROR_NO_MEMORY, "no memory for a list of pictures");
    v->step = step;
    v->loss = loss;
    v->overlay = overlay;
    v->prompt = 0;
    v->busy = ok;
    return ok;
}

bool validation_is_busy(const struct validation *v) {
    return v && v->busy;
}

bool validation_advance(struct validation *v, struct error *err) {
    struct error why = { 0 };
    if (!v->busy)
        return true;
    if (v->prompt == v->options.config->validation_prompts.count) {
        finish(v);
    } else if (!v->drawing.asked) {
        if (!ask(v, &why))
            next_prompt(v, &why);
    } else if (!v->drawing.drawn) {
        return studio_work(v->drawing.studio, err);
    } else if (v->written < v->drawing.result.image_count) {
        write_one(v);
    } else {
        next_prompt(v, &v->drawing.error);
    }
    return true;
}

/* --- creating and destroying --- */

/* Checks all prompts before training begins, and reserves the memory for one picture. */
static bool plan(struct validation *v, struct error *err) {
    bool ok = true;
    for (size_t i = 0; ok && i < v->options.config->validation_prompts.count; i++) {
        ok = resolve(v, i, err);
        for (int k = 0; ok && k < v->drawing.request.warning_count; k++)
            log_warning("validation_prompts[%zu]: %s", i, v->drawing.request.warnings[k]);
        ok = ok && model_stages_plan(v->drawing.stages, &v->drawing.request, err);
        drawing_forget(&v->drawing);
    }
    return ok || error_prefix(err, "validation pictures");
}

bool validation_create(
    const struct validation_options *options, struct validation **out, struct error *err) {
    *out = NULL;
    struct validation *v = calloc(1, sizeof(*v));
    if (!v)
        return error_set(err, ERROR_NO_MEMORY, "no memory for validation");
    v->options = *options;
    if (!options->config->validation_prompts.count ||
        (drawing_init(&options->models, &v->drawing, err) && plan(v, err))) {
        *out = v;
        return true;
    }
    validation_destroy(v);
    return false;
}

void validation_destroy(struct validation *v) {
    if (!v)
        return;
    json_decref(v->pictures);
    drawing_finish(&v->drawing);
    free(v);
}
