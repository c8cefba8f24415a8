#include "train/deepspeed_config.h"

#include "base/text/json.h"

#include <stdio.h>
#include <string.h>

#define PATH_MAX_BYTES 128

/* Values that are copied unchanged to a field of ours. */
static const struct {
    const char *path, *field;
} taken[] = {
    { "num_epochs", "num_train_epochs" },
    { "save_interval", "checkpointing_steps" },
    { "seed", "seed" },
    { "dataset_dir", "dataset" },
    { "dataloader_num_workers", "dataloader_num_workers" },
    { "use_ema", "use_ema" },
    { "resolution", "resolution" },
    { "center_crop", "center_crop" },
    { "random_flip", "random_flip" },
    { "train_micro_batch_size_per_gpu", "train_batch_size" },
    { "gradient_accumulation_steps", "gradient_accumulation_steps" },
    { "gradient_clipping", "max_grad_norm" },
    { "optimizer.params.lr", "learning_rate" },
    { "optimizer.params.eps", "adam_epsilon" },
    { "optimizer.params.weight_decay", "adam_weight_decay" },
};

/* Keys with one accepted value; other values ask for something unsupported. */
static const struct {
    const char *path, *value, *why;
} fixed[] = {
    { "optimizer.type", "\"AdamW\"", "there is no other optimizer" },
    { "scheduler.type", "\"WarmupLR\"", "other schedules are had by lr_scheduler of a job" },
    { "scheduler.params.warmup_min_lr", "0", "the warm-up begins at 0" },
    { "use_fp16.auto_cast", "false", "inputs have the type of the weights" },
    { "use_fp16.consecutive_hysteresis", "false", "overflows need not follow one another" },
    { "wandb.enabled", "false", "nothing is sent anywhere" },
    { "flops_profiler.enabled", "false", "latentd bench measures" },
};

/* Keys that have no effect, including everything below them. */
static const struct {
    const char *path, *why;
} idle[] = {
    { "pretrained_model_name_or_path", "the checkpoint that is served is trained" },
    { "checkpoint_dir", "the daemon decides where a job's files go" },
    { "output_dir", "the daemon decides where a job's files go" },
    { "imagefolder", "the folder itself shows how it is laid out" },
    { "offline", "nothing is sent anywhere" },
    { "wall_clock_breakdown", "times are reported always" },
    { "wandb", "nothing is sent anywhere" },
    { "flops_profiler", "latentd bench measures" },
    { "zero_optimization", "each process keeps all states itself; the numbers are the same" },
    { "scheduler.params.warmup_max_lr", "optimizer.params.lr replaces it" },
    { "scheduler.params.warmup_num_steps", "lr_warmup_steps replaces it" },
};

/* Removes the value at "a.b" and returns it; NULL if there is none. */
static json_t *take(json_t *from, const char *path) {
    const char *dot = strchr(path, '.');
    if (!dot) {
        json_t *value = json_incref(json_object_get(from, path));
        json_object_del(from, path);
        return value;
    }
    char key[PATH_MAX_BYTES];
    snprintf(key, sizeof(key), "%.*s", (int)(dot - path), path);
    return take(json_object_get(from, key), dot + 1);
}

static void note(json_t *notes, const char *path, const char *why) {
    json_array_append_new(notes, json_sprintf("%s has no effect: %s", path, why));
}

/* Removes a value and notes that it has no effect. */
static void drop(json_t *from, const char *path, const char *why, json_t *notes) {
    json_t *value = take(from, path);
    if (value)
        note(notes, path, why);
    json_decref(value);
}

static bool refuse(const char *path, const json_t *value, const char *why, struct error *err) {
    char shown[100];
    return error_field(err, path, json_describe(value, shown, sizeof(shown)), "%s", why);
}

static bool is_true(json_t *from, const char *path, bool *out, struct error *err) {
    json_t *value = take(from, path);
    const bool ok = !value || json_is_boolean(value) || refuse(path, value, "true or false", err);
    *out = json_is_true(value);
    json_decref(value);
    return ok;
}

static void move(json_t *from, const char *path, json_t *job, const char *field) {
    json_t *value = take(from, path);
    if (value)
        json_object_set_new(job, field, value);
}

static bool check_fixed(json_t *from, struct error *err) {
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++) {
        json_t *value = take(from, fixed[i].path);
        json_t *wanted = json_loads(fixed[i].value, JSON_DECODE_ANY, NULL);
        const bool same = !value || json_equal(value, wanted) ||
                          (json_is_number(value) && json_is_number(wanted) &&
                              json_number_value(value) == json_number_value(wanted));
        char why[200];
        snprintf(why, sizeof(why), "%s: %s", fixed[i].value, fixed[i].why);
        const bool ok = same || refuse(fixed[i].path, value, why, err);
        json_decref(value);
        json_decref(wanted);
        if (!ok)
            return false;
    }
    return true;
}

/* Reads whether an adapter or the whole UNet is trained, and the precision. */
static bool read_objects(json_t *from, json_t *job, json_t *notes, struct error *err) {
    static const char *const lora[][2] = { { "use_lora.rank", "rank" },
        { "use_lora.alpha", "alpha" } };
    static const char *const scaler[][2] = { { "use_fp16.loss_scale", "loss_scale" },
        { "use_fp16.initial_scale_power", "initial_scale_power" },
        { "use_fp16.loss_scale_window", "loss_scale_window" },
        { "use_fp16.hysteresis", "hysteresis" }, { "use_fp16.min_loss_scale", "min_loss_scale" } };
    bool is_lora, is_fp16, is_bf16;
    if (!is_true(from, "use_lora.action", &is_lora, err) ||
        !is_true(from, "use_fp16.enabled", &is_fp16, err) ||
        !is_true(from, "bf16.enabled", &is_bf16, err))
        return false;
    if (is_fp16 && is_bf16)
        return error_field(err, "bf16.enabled", "true", "false beside use_fp16.enabled");
    json_object_set_new(job, "method", json_string(is_lora ? "lora" : "full"));
    json_object_set_new(job, "mixed_precision",
        json_string(is_fp16   ? "fp16"
                    : is_bf16 ? "bf16"
                              : "no"));
    for (size_t i = 0; i < sizeof(lora) / sizeof(lora[0]); i++)
        if (is_lora)
            move(from, lora[i][0], job, lora[i][1]);
        else
            drop(from, lora[i][0], "use_lora.action is not true", notes);
    for (size_t i = 0; i < sizeof(scaler) / sizeof(scaler[0]); i++)
        if (is_fp16)
            move(from, scaler[i][0], job, scaler[i][1]);
        else
            drop(from, scaler[i][0], "use_fp16.enabled is not true", notes);
    return true;
}

static bool read_schedule(json_t *from, json_t *job, struct error *err) {
    json_t *type = take(from, "scheduler.params.warmup_type");
    json_t *betas = take(from, "optimizer.params.betas");
    json_t *steps = take(from, "lr_warmup_steps");
    const char *word = type ? json_string_value(type) : "log";
    bool ok = word && (strcmp(word, "log") == 0 || strcmp(word, "linear") == 0);
    if (!ok)
        refuse("scheduler.params.warmup_type", type, "\"log\" or \"linear\"", err);
    if (ok && betas && json_array_size(betas) != 2)
        ok = refuse("optimizer.params.betas", betas, "a list of two numbers", err);
    if (ok && betas) {
        json_object_set(job, "adam_beta1", json_array_get(betas, 0));
        json_object_set(job, "adam_beta2", json_array_get(betas, 1));
    }
    if (ok)
        json_object_set_new(job, "lr_scheduler",
            json_string(strcmp(word, "log") == 0 ? "warmup_log" : "warmup_linear"));
    if (ok && steps)
        json_object_set(job, "lr_warmup_steps", steps);
    json_decref(type);
    json_decref(betas);
    json_decref(steps);
    return ok;
}

/* Reads the validation prompts and the epochs between validations, which may both be missing. */
static bool read_validation(json_t *from, json_t *job, json_t *notes, struct error *err) {
    json_t *prompts = take(from, "validation_prompts"), *epochs = take(from, "validation_epochs");
    const bool none = !prompts || json_is_null(prompts);
    const bool ok = none || json_is_array(prompts) ||
                    refuse("validation_prompts", prompts, "a list of texts", err);
    if (ok && json_array_size(prompts) && epochs) {
        json_object_set(job, "validation_prompts", prompts);
        json_object_set(job, "validation_epochs", epochs);
    } else if (ok && json_array_size(prompts)) {
        note(notes, "validation_prompts", "there are no validation_epochs");
    } else if (ok && epochs) {
        note(notes, "validation_epochs", "there are no validation_prompts");
    }
    json_decref(prompts);
    json_decref(epochs);
    return ok;
}

/* Reads the values that need a conversion of their own. */
static bool read_values(json_t *from, json_t *job, json_t *notes, struct error *err) {
    bool resume;
    if (!is_true(from, "resume_from_checkpoint", &resume, err))
        return false;
    if (resume)
        json_object_set_new(job, "resume_from_checkpoint", json_string("latest"));
    json_t *steps = take(from, "max_train_steps");
    const bool is_limited = steps && !json_is_null(steps);
    const bool ok = !is_limited || json_is_number(steps) ||
                    refuse("max_train_steps", steps, "a number of steps; 0 or null: no limit", err);
    if (ok && is_limited && json_number_value(steps) != 0)
        json_object_set(job, "max_train_steps", steps);
    json_decref(steps);
    return ok && read_validation(from, job, notes, err);
}

/* Returns whether every key was read; otherwise the error names the first remaining key by its
 * path. */
static bool nothing_left(const json_t *from, const char *prefix, struct error *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)from, key, value) {
        char path[PATH_MAX_BYTES];
        snprintf(path, sizeof(path), "%s%s%s", prefix, prefix[0] ? "." : "", key);
        if (!json_is_object(value))
            return refuse(path, value, "it is no key that deepspeed-diffusers has", err);
        if (!nothing_left(value, path, err))
            return false;
    }
    return true;
}

static bool translate(
    json_t *from, const char *name, json_t *job, json_t *notes, struct error *err) {
    json_object_set_new(job, "name", json_string(name));
    json_object_set_new(job, "image_interpolation_mode", json_string("bilinear"));
    json_object_set_new(job, "max_grad_norm", json_integer(0)); /* default: no clipping */
    json_object_set_new(job, "data_parallel", json_string("multiply"));
    if (!check_fixed(from, err) || !read_objects(from, job, notes, err) ||
        !read_schedule(from, job, err) || !read_values(from, job, notes, err))
        return false;
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        move(from, taken[i].path, job, taken[i].field);
    for (size_t i = 0; i < sizeof(idle) / sizeof(idle[0]); i++)
        drop(from, idle[i].path, idle[i].why, notes);
    return nothing_left(from, "", err);
}

bool deepspeed_config_read(
    const json_t *config, const char *name, json_t **job, json_t **notes, struct error *err) {
    json_t *from = json_deep_copy(config);
    *job = json_object();
    *notes = json_array();
    bool ok = from && *job && *notes;
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory to read a configuration");
    else if (!json_is_object(from))
        ok = error_set(err, ERROR_INVALID, "a configuration is a JSON object");
    else
        ok = translate(from, name, *job, *notes, err);
    json_decref(from);
    if (!ok) {
        json_decref(*job);
        json_decref(*notes);
        *job = *notes = NULL;
    }
    return ok;
}
