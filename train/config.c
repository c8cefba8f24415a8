#include "train/config.h"

#include "base/fields.h"
#include "base/text/json.h"
#include "base/text/words.h"
#include "kernels/dtype.h"
#include "models/adapter/adapter_file_name.h"
#include "train/checkpoint.h"
#include "train/optimizer/learning_rate.h"
#include "train/optimizer/parameters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Kinds of fields that base/fields.h does not have: lists of texts, and groups of parameters. */
enum list { LIST_NONE, LIST_TEXTS, LIST_GROUPS };

struct train_field {
    FIELD_COLUMNS;
    enum list list;
    const char *texts; /* the default of LIST_TEXTS, separated by spaces */
    struct need {
        const char *field;
        unsigned when;
    } needs[2]; /* the values of other fields that give this one an effect */
};

#define COLUMNS_FLAG .kind = FIELD_FLAG
#define COLUMNS_INTEGER .kind = FIELD_INTEGER
#define COLUMNS_NUMBER .kind = FIELD_NUMBER
#define COLUMNS_WORD .kind = FIELD_WORD
#define COLUMNS_TEXT .kind = FIELD_TEXT, .min = 1
#define COLUMNS_TEXTS .kind = FIELD_OTHER, .list = LIST_TEXTS
#define COLUMNS_GROUPS .kind = FIELD_OTHER, .list = LIST_GROUPS
#define WORDS FIELD_WORDS
#define NEED(field, when) .needs[0] = { field, when }
#define ONLY_WITH(flag) NEED(#flag, 1 << true)
#define ONLY_LORA .needs[1] = { "method", 1 << TRAIN_LORA }
#define ONLY_ADAPTER(name) NEED("adapter_type", 1 << TRAIN_ADAPTER_##name)
#define ONLY_PROMPTS NEED("validation_prompts", 1 << true)
#define ONLY_FP16 NEED("mixed_precision", 1 << TRAIN_PRECISION_FP16)
#define ONLY_OPTIMIZER(bits) NEED("optimizer", bits)
#define ONLY_ADAMW ONLY_OPTIMIZER(1 << TRAIN_ADAMW)
#define ONLY_ADAM ONLY_OPTIMIZER(1 << TRAIN_ADAMW | 1 << TRAIN_PRODIGY)
#define ONLY_LION ONLY_OPTIMIZER(1 << TRAIN_LION)
#define ONLY_ADAFACTOR ONLY_OPTIMIZER(1 << TRAIN_ADAFACTOR)
#define ONLY_PRODIGY ONLY_OPTIMIZER(1 << TRAIN_PRODIGY)
#define ONLY_SCHEDULE(name) NEED("lr_scheduler", 1 << LEARNING_RATE_##name)
#define ONLY_WARMUP                                                                                \
    NEED("lr_scheduler", ~(1u << LEARNING_RATE_CONSTANT | 1u << LEARNING_RATE_PIECEWISE_CONSTANT))
#define ROW(kind, member, ...)                                                                     \
    { .name = #member, FIELD_OF(struct train_config, member), COLUMNS_##kind, __VA_ARGS__ },
static const struct train_field fields[] = { TRAIN_FIELDS(ROW) };
#define WORD_BYTES 64
#define FIELD_COUNT (sizeof(fields) / sizeof(fields[0]))

/* Other names of fields: from other scripts and earlier versions. */
static const struct {
    const char *name, *field;
} aliases[] = {
    { "batch_size", "train_batch_size" },
    { "num_epochs", "num_train_epochs" },
    { "weight_decay", "adam_weight_decay" },
    { "r", "rank" },
    { "lora_alpha", "alpha" },
    { "lora_dropout", "dropout" },
    { "resume_from", "resume_from_checkpoint" },
    { "prior_preservation", "with_prior_preservation" },
    { "min_snr_gamma", "snr_gamma" },
    { "text_encoder_lr", "text_encoder_learning_rate" },
    { "train_data_dir", "dataset" },
    { "instance_data_dir", "dataset" },
    { "output_name", "name" },
    { "flip_aug", "random_flip" },
};

/* Options of diffusers' scripts that are not supported. */
static const struct {
    const char *name, *why;
} refused[] = {
    { "pretrained_model_name_or_path",
        "model names a checkpoint, and GET /models those there are" },
    { "revision", "nothing is downloaded" },
    { "variant", "a job trains the checkpoint that the daemon serves" },
    { "non_ema_revision", "nothing is downloaded" },
    { "dataset_name", "nothing is downloaded: send the pictures by PUT /datasets/NAME" },
    { "dataset_config_name", "nothing is downloaded" },
    { "cache_dir", "nothing is downloaded" },
    { "output_dir", "the daemon decides where a job's files go" },
    { "logging_dir", "the daemon decides where a job's files go" },
    { "push_to_hub", "nothing is uploaded" },
    { "hub_token", "nothing is uploaded" },
    { "hub_model_id", "nothing is uploaded" },
    { "hub_private_repo", "nothing is uploaded" },
    { "tracker_project_name", "there is one log of a job" },
    { "local_rank", "mpirun or srun tells each process which it is" },
    { "allow_tf32", "f32 is f32" },
    { "enable_xformers_memory_efficient_attention", "attention never keeps its scores" },
    { "set_grads_to_none", "gradients have their place from the start" },
    { "offload_ema", "the average is in host memory always" },
    { "foreach_ema", "the average is in host memory always" },
    { "dream_training", "DREAM is not implemented" },
    { "dream_detail_preservation", "DREAM is not implemented" },
    { "offset_noise", "use noise_offset: 0.1" },
    { "validation_prompt", "use validation_prompts, a list" },
    { "pre_compute_text_embeddings",
        "texts are encoded ahead always, unless their encoder trains" },
    { "text_encoder_use_attention_mask", "Stable Diffusion's text encoder takes none" },
    { "tokenizer_max_length", "it is the text encoder's" },
    { "class_labels_conditioning", "Stable Diffusion has no class labels" },
    { "network_module", "adapter_type is \"lora\", \"loha\" or \"lokr\"" },
};

/* Single values that are not supported. */
static const struct {
    const char *field, *value, *why;
} refused_values[] = {
    { "mixed_precision", "fp8", "there are no operations on fp8; bf16 is the narrowest" },
    { "report_to", "wandb", "nothing is sent anywhere; \"tensorboard\" writes event files" },
    { "report_to", "comet_ml", "nothing is sent anywhere; \"tensorboard\" writes event files" },
    { "report_to", "mlflow", "nothing is sent anywhere; \"tensorboard\" writes event files" },
    { "report_to", "clearml", "nothing is sent anywhere; \"tensorboard\" writes event files" },
    { "report_to", "all", "there is one; \"tensorboard\" writes event files" },
};

static const struct train_field *field_named(const char *name) {
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static void *member(const struct train_field *f, const struct train_config *config) {
    return (char *)config + f->offset; /* callers with a const config must not write */
}

/* Returns the value of a flag, an integer, a number or a word; for a list of texts, whether it has
 * any. */
static double number_of(const struct train_field *f, const struct train_config *config) {
    return f->list == LIST_TEXTS ? ((const struct train_texts *)member(f, config))->count > 0
                                 : field_get(&f->field, config);
}

/* --- errors --- */

static const char *allowed(const struct train_field *f, char *out, size_t size) {
    if (f->list == LIST_TEXTS)
        snprintf(out, size, "a list of 1 to %d texts", TRAIN_TEXTS_MAX);
    else if (f->list == LIST_GROUPS)
        snprintf(out, size,
            "a list of at most %d {\"pattern\": text, \"learning_rate\": 0 to 10, "
            "\"weight_decay\": 0 to 10}",
            TRAIN_TEXTS_MAX);
    else
        field_allowed(&f->field, FIELD_ALL_WORDS, "\"", out, size);
    return out;
}

static bool refuse(const struct train_field *f, const json_t *value, struct error *err) {
    char what[ERROR_ALLOWED_BYTES];
    return json_bad_field(f->name, value, allowed(f, what, sizeof(what)), err);
}

/* Returns the edit distance between two words shorter than WORD_BYTES. Longer words have distance
 * WORD_BYTES. */
static int distance(const char *a, const char *b) {
    int row[WORD_BYTES];
    const int length = (int)strlen(b);
    if (length >= WORD_BYTES || strnlen(a, WORD_BYTES) >= WORD_BYTES)
        return WORD_BYTES;
    for (int j = 0; j <= length; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= length; j++) {
            const int changed = corner + (a[i - 1] != b[j - 1]);
            const int least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            corner = row[j];
            row[j] = changed < least ? changed : least;
        }
    }
    return row[length];
}

static bool refuse_key(const char *key, const json_t *value, struct error *err) {
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        if (strcmp(refused[i].name, key) == 0) {
            error_field(err, key, "(given)", "not to be given: %s", refused[i].why);
            if (err)
                err->code = ERROR_UNSUPPORTED;
            return false;
        }
    const char *nearest = NULL;
    int least = WORD_BYTES;
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        const int edits = distance(key, fields[i].name);
        nearest = edits < least ? fields[i].name : nearest;
        least = edits < least ? edits : least;
    }
    char shown[100];
    return error_field(err, key, json_describe(value, shown, sizeof(shown)),
        "there is no such field%s%s", nearest ? "; the nearest is " : "", nearest ? nearest : "");
}

/* --- values from JSON --- */

static bool copy_text(const json_t *value, char **out, struct error *err) {
    *out = strdup(json_string_value(value));
    return *out || error_set(err, ERROR_NO_MEMORY, "no memory for a text");
}

static bool is_text(const json_t *value) {
    return json_is_string(value) && json_string_length(value) >= 1 &&
           json_string_length(value) <= PROMPT_MAX_BYTES;
}

/* Refuses a word that other scripts know and that is not supported, with the reason. */
static bool refuse_word(const struct train_field *f, const char *text, struct error *err) {
    for (size_t i = 0; text && i < sizeof(refused_values) / sizeof(refused_values[0]); i++)
        if (strcmp(refused_values[i].field, f->name) == 0 &&
            strcmp(refused_values[i].value, text) == 0) {
            error_field(err, f->name, text, "%s", refused_values[i].why);
            if (err)
                err->code = ERROR_UNSUPPORTED;
            return true;
        }
    return false;
}

static bool set_texts(
    const struct train_field *f, const json_t *value, struct train_texts *out, struct error *err) {
    const size_t count = json_array_size(value);
    if (!json_is_array(value) || count < 1 || count > TRAIN_TEXTS_MAX)
        return refuse(f, value, err);
    out->items = calloc(count, sizeof(*out->items));
    if (!out->items)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %s", f->name);
    for (; out->count < count; out->count++) {
        const json_t *item = json_array_get(value, out->count);
        if (!is_text(item))
            return refuse(f, value, err);
        if (!copy_text(item, &out->items[out->count], err))
            return false;
    }
    return true;
}

/* Reads a group's rate or decay; NAN if it is not given. */
static bool group_number(const json_t *group, const char *key, double *out, size_t *known) {
    const json_t *value = json_object_get(group, key);
    *out = value ? json_number_value(value) : NAN;
    *known += value != NULL;
    return !value || (json_is_number(value) && *out >= 0 && *out <= 10);
}

static bool set_groups(
    const struct train_field *f, const json_t *value, struct train_groups *out, struct error *err) {
    const size_t count = json_array_size(value);
    if (!json_is_array(value) || count > TRAIN_TEXTS_MAX)
        return refuse(f, value, err);
    out->items = calloc(count ? count : 1, sizeof(*out->items));
    if (!out->items)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %s", f->name);
    for (; out->count < count; out->count++) {
        const json_t *item = json_array_get(value, out->count);
        const json_t *pattern = json_object_get(item, "pattern");
        struct train_group *group = &out->items[out->count];
        size_t known = 1;
        if (!is_text(pattern) ||
            !group_number(item, "learning_rate", &group->learning_rate, &known) ||
            !group_number(item, "weight_decay", &group->weight_decay, &known) ||
            json_object_size(item) != known || known == 1)
            return refuse(f, item, err);
        if (!copy_text(pattern, &group->pattern, err))
            return false;
    }
    return true;
}

static bool set(const struct train_field *f, const json_t *value, struct train_config *config,
    struct error *err) {
    if (f->list == LIST_TEXTS)
        return set_texts(f, value, member(f, config), err);
    if (f->list == LIST_GROUPS)
        return set_groups(f, value, member(f, config), err);
    if (f->kind == FIELD_WORD && refuse_word(f, json_string_value(value), err))
        return false;
    return field_from_json(&f->field, value, config, err);
}

/* --- defaults --- */

static bool default_texts(const struct train_field *f, struct train_texts *out, struct error *err) {
    out->items = calloc(TRAIN_TEXTS_MAX, sizeof(*out->items));
    for (const char *at = f->texts; out->items && *at;) {
        const size_t length = strcspn(at, " ");
        if (!(out->items[out->count] = strndup(at, length)))
            break;
        out->count++;
        at += length + (at[length] == ' ');
        if (!*at)
            return true;
    }
    return error_set(err, ERROR_NO_MEMORY, "no memory for %s", f->name);
}

static bool set_default(
    const struct train_field *f, struct train_config *config, struct error *err) {
    if (f->texts)
        return default_texts(f, member(f, config), err);
    field_reset(&f->field, config);
    return true;
}

/* Draws a seed of 32 bits, because torch's CPU generator uses no more. */
static bool random_seed(int64_t *out, struct error *err) {
    uint32_t drawn;
    if (getrandom(&drawn, sizeof(drawn), 0) != sizeof(drawn))
        return error_set(err, ERROR_INTERNAL, "no random seed can be had; give one");
    *out = drawn;
    return true;
}

/* --- which fields have an effect --- */

static bool has_effect(const struct train_field *f, const struct train_config *config) {
    for (size_t i = 0; i < sizeof(f->needs) / sizeof(f->needs[0]); i++) {
        const struct need *need = &f->needs[i];
        const struct train_field *other = need->field ? field_named(need->field) : NULL;
        if (need->field && !(other && need->when >> (unsigned)number_of(other, config) & 1 &&
                               has_effect(other, config)))
            return false;
    }
    return true;
}

static size_t describe_need(const struct need *need, char *out, size_t size) {
    const struct train_field *other = field_named(need->field);
    const char *words[32];
    size_t count = 0;
    for (int i = 0; other->kind == FIELD_WORD && other->words[i]; i++)
        if (need->when >> i & 1)
            words[count++] = other->words[i];
    char list[300] = "true";
    if (other->kind == FIELD_WORD)
        words_list(list, sizeof(list), words, count, "\"", " or ");
    const bool is_list = other->list == LIST_TEXTS;
    return (size_t)snprintf(
        out, size, "%s%s%s", other->name, is_list ? "" : " ", is_list ? "" : list);
}

/* Describes when a field has an effect: "mixed_precision \"fp16\"", "use_ema true", or two
 * conditions joined by "and". "" if it always has an effect. */
static const char *condition(const struct train_field *f, char *out, size_t size) {
    size_t used = 0;
    *out = 0;
    for (size_t i = 0; i < sizeof(f->needs) / sizeof(f->needs[0]) && used < size; i++) {
        if (!f->needs[i].field)
            continue;
        if (used)
            used += (size_t)snprintf(out + used, size - used, " and ");
        if (used < size)
            used += describe_need(&f->needs[i], out + used, size - used);
    }
    return out;
}

static bool fits(const struct train_config *c, struct error *err) {
    char text[64];
    if (!c->max_train_steps && !c->num_train_epochs)
        return error_field(err, "max_train_steps", "(missing)", "it or num_train_epochs, from 1");
    if (c->resolution % IMAGE_MULTIPLE_PX) {
        snprintf(text, sizeof(text), "%lld", (long long)c->resolution);
        return error_field(err, "resolution", text, "a multiple of %d", IMAGE_MULTIPLE_PX);
    }
    if (c->enable_bucket &&
        (c->bucket_reso_steps % IMAGE_MULTIPLE_PX || c->min_bucket_reso > c->max_bucket_reso)) {
        const bool steps = c->bucket_reso_steps % IMAGE_MULTIPLE_PX != 0;
        snprintf(text, sizeof(text), "%lld",
            (long long)(steps ? c->bucket_reso_steps : c->min_bucket_reso));
        return steps ? error_field(
                           err, "bucket_reso_steps", text, "a multiple of %d", IMAGE_MULTIPLE_PX)
                     : error_field(err, "min_bucket_reso", text, "at most max_bucket_reso, %lld",
                           (long long)c->max_bucket_reso);
    }
    if (c->lr_warmup_steps && c->lr_warmup_ratio > 0) {
        snprintf(text, sizeof(text), "%g", c->lr_warmup_ratio);
        return error_field(err, "lr_warmup_ratio", text, "0 beside lr_warmup_steps");
    }
    if (c->use_dora && c->dropout > 0) {
        snprintf(text, sizeof(text), "%g", c->dropout);
        return error_field(err, "dropout", text,
            "0 beside use_dora: dropping inputs of DoRA is "
            "not implemented");
    }
    if (c->optimizer == TRAIN_ADAFACTOR && c->method == TRAIN_LORA &&
        train_config_changes_weights(c))
        return error_field(err, "optimizer", "adafactor",
            "\"adamw\", \"lion\" or \"prodigy\" beside %s: Adafactor is not implemented for it",
            c->use_dora ? "use_dora" : "this adapter_type");
    if (c->lokr_factor == 0)
        return error_field(err, "lokr_factor", "0", "-1, or a whole number from 1");
    const double rate = c->learning_rate * parameters_rate_scale(c);
    if (c->lr_scheduler == LEARNING_RATE_POLYNOMIAL && c->lr_end >= rate) {
        snprintf(text, sizeof(text), "%g", c->lr_end);
        return error_field(err, "lr_end", text, "below the learning_rate, %g%s", rate,
            c->scale_lr ? " as scale_lr makes it" : "");
    }
    if (c->use_ema && c->ema_min_decay > c->ema_decay) {
        snprintf(text, sizeof(text), "%g", c->ema_min_decay);
        return error_field(err, "ema_min_decay", text, "at most ema_decay, %g", c->ema_decay);
    }
    return true;
}

static bool texts_fit(const struct train_config *c, struct error *err) {
    struct learning_rate rules;
    struct error why = { 0 };
    if (c->lr_scheduler == LEARNING_RATE_PIECEWISE_CONSTANT &&
        !learning_rate_rules_parse(c->lr_step_rules ? c->lr_step_rules : "", &rules, &why))
        return error_field(err, "lr_step_rules", c->lr_step_rules ? c->lr_step_rules : "(missing)",
            "%s", why.message);
    if (c->with_prior_preservation && !c->class_prompt)
        return error_field(
            err, "class_prompt", "(missing)", "a string, beside with_prior_preservation");
    if (c->with_prior_preservation && c->enable_bucket)
        return error_field(err, "enable_bucket", "true",
            "false, beside with_prior_preservation: all pictures of a batch have one size");
    if (c->resume_from_checkpoint && strcmp(c->resume_from_checkpoint, "latest") != 0 &&
        checkpoint_step(c->resume_from_checkpoint) < 0)
        return error_field(err, "resume_from_checkpoint", c->resume_from_checkpoint,
            "\"latest\" or the name of a checkpoint's folder, \"checkpoint-STEP\"");
    const bool validates = c->validation_prompts.count || c->validation_share > 0;
    if ((c->validation_steps || c->validation_epochs) && !validates)
        return error_field(err, "validation_prompts", "(missing)",
            "prompts, or validation_share, beside validation_steps or validation_epochs");
    if (validates && !c->validation_steps && !c->validation_epochs)
        return error_field(err, "validation_steps", "0",
            "it or validation_epochs, from 1, beside %s",
            c->validation_prompts.count ? "validation_prompts" : "validation_share");
    return true;
}

/* Refuses a field that has a value, with the reason. */
static bool is_unset(
    bool has_value, const json_t *json, const char *field, const char *why, struct error *err) {
    char shown[100];
    return !has_value ||
           error_field(err, field,
               json_describe(json_object_get(json, field), shown, sizeof(shown)), "%s", why);
}

static bool groups_have_rates(const struct train_config *c) {
    for (size_t i = 0; i < c->parameter_groups.count; i++)
        if (!isnan(c->parameter_groups.items[i].learning_rate))
            return true;
    return false;
}

/* The rules for rates: adafactor_relative_step decides them itself, and Prodigy has one for all. */
static bool rates_fit(const json_t *json, const struct train_config *c, struct error *err) {
    static const char relative[] = "nothing beside adafactor_relative_step, which sets the rate";
    const json_t *given = json_object_get(json, "learning_rate");
    const bool is_given = given && !json_is_null(given);
    const double text = c->text_encoder_learning_rate;
    if (c->optimizer == TRAIN_ADAFACTOR && c->adafactor_relative_step)
        return is_unset(is_given, json, "learning_rate", relative, err) &&
               is_unset(text > 0, json, "text_encoder_learning_rate", relative, err) &&
               is_unset(c->scale_lr, json, "scale_lr", relative, err) &&
               is_unset(c->lr_scheduler != LEARNING_RATE_CONSTANT, json, "lr_scheduler", relative,
                   err) &&
               is_unset(groups_have_rates(c), json, "parameter_groups",
                   "no learning_rate beside adafactor_relative_step, which sets the rate", err);
    if (c->optimizer == TRAIN_PRODIGY)
        return is_unset(!is_given, json, "learning_rate",
                   "a number beside Prodigy, usually 1: it is a factor of the step size that "
                   "Prodigy finds",
                   err) &&
               is_unset(text > 0 && text != c->learning_rate, json, "text_encoder_learning_rate",
                   "the learning_rate or 0: Prodigy has one rate", err) &&
               is_unset(groups_have_rates(c), json, "parameter_groups",
                   "no learning_rate: Prodigy has one rate", err);
    return true;
}

/* --- whole configurations --- */

static const struct train_field *field_of_key(const char *key) {
    for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++)
        if (strcmp(aliases[i].name, key) == 0)
            return field_named(aliases[i].field);
    return field_named(key);
}

static bool read_keys(
    const json_t *json, struct train_config *out, const json_t **given, struct error *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)json, key, value) {
        const struct train_field *f = field_of_key(key);
        if (!f)
            return refuse_key(key, value, err);
        if (given[f - fields])
            return error_field(
                err, key, "(given)", "only one of its names: %s is given too", f->name);
        given[f - fields] = value;
        if (!json_is_null(value) && !set(f, value, out, err))
            return false;
    }
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if ((!given[i] || json_is_null(given[i])) && !set_default(&fields[i], out, err))
            return false;
    return true;
}

static bool all_have_effect(
    const struct train_config *config, const json_t *const *given, struct error *err) {
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (given[i] && !json_is_null(given[i]) && !has_effect(&fields[i], config)) {
            char shown[100], only[360];
            return error_field(err, fields[i].name, json_describe(given[i], shown, sizeof(shown)),
                "nothing: it has an effect with %s only",
                condition(&fields[i], only, sizeof(only)));
        }
    return true;
}

static bool parse(const json_t *json, struct train_config *out, struct error *err) {
    const json_t *given[FIELD_COUNT] = { NULL };
    if (!read_keys(json, out, given, err) || !all_have_effect(out, given, err))
        return false;
    if (!out->name || !out->dataset)
        return error_field(err, out->name ? "dataset" : "name", "(missing)", "a string");
    const json_t *seed = json_object_get(json, "seed");
    if ((!seed || json_is_null(seed)) && !random_seed(&out->seed, err))
        return false;
    if (out->alpha == 0)
        out->alpha = (double)out->rank;
    return adapter_name_check("name", out->name, err) && fits(out, err) && texts_fit(out, err) &&
           rates_fit(json, out, err);
}

bool train_config_parse(const json_t *json, struct train_config *out, struct error *err) {
    *out = (struct train_config){ 0 };
    if (!json_is_object(json)) {
        char shown[100];
        return error_set(err, ERROR_INVALID, "a training job is a JSON object, not %s",
            json_describe(json, shown, sizeof(shown)));
    }
    if (parse(json, out, err))
        return true;
    train_config_finish(out);
    return false;
}

void train_config_finish(struct train_config *config) {
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        void *at = member(&fields[i], config);
        struct train_texts *texts = at;
        struct train_groups *groups = at;
        if (fields[i].kind == FIELD_TEXT)
            free(*(char **)at);
        for (size_t k = 0; fields[i].list == LIST_TEXTS && k < texts->count; k++)
            free(texts->items[k]);
        for (size_t k = 0; fields[i].list == LIST_GROUPS && k < groups->count; k++)
            free(groups->items[k].pattern);
        if (fields[i].list == LIST_TEXTS)
            free(texts->items);
        if (fields[i].list == LIST_GROUPS)
            free(groups->items);
    }
    *config = (struct train_config){ 0 };
}

static json_t *texts_to_json(const struct train_texts *texts) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < texts->count; i++)
        json_array_append_new(list, json_string(texts->items[i]));
    return list;
}

static json_t *groups_to_json(const struct train_groups *groups) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < groups->count; i++) {
        const struct train_group *group = &groups->items[i];
        json_t *item = json_pack("{s:s}", "pattern", group->pattern);
        if (!isnan(group->learning_rate))
            json_object_set_new(item, "learning_rate", json_real(group->learning_rate));
        if (!isnan(group->weight_decay))
            json_object_set_new(item, "weight_decay", json_real(group->weight_decay));
        json_array_append_new(list, item);
    }
    return list;
}

/* Writes every number as a real (1.0, not 1), as in the configurations of existing checkpoints. */
static json_t *value_to_json(const struct train_field *f, const struct train_config *config) {
    const void *at = member(f, config);
    if (f->list == LIST_TEXTS)
        return ((const struct train_texts *)at)->count ? texts_to_json(at) : json_null();
    if (f->list == LIST_GROUPS)
        return ((const struct train_groups *)at)->count ? groups_to_json(at) : json_null();
    return f->kind == FIELD_NUMBER ? json_real(*(const double *)at)
                                   : field_to_json(&f->field, config);
}

/* Returns whether the optimizer decides the field's value itself. */
static bool is_replaced(const struct train_field *f, const struct train_config *config) {
    return config->optimizer == TRAIN_ADAFACTOR && config->adafactor_relative_step &&
           strcmp(f->name, "learning_rate") == 0;
}

json_t *train_config_to_json(const struct train_config *config) {
    json_t *json = json_object();
    for (size_t i = 0; json && i < FIELD_COUNT; i++) {
        if (!has_effect(&fields[i], config) || is_replaced(&fields[i], config))
            continue;
        json_t *value = value_to_json(&fields[i], config);
        if (json_is_null(value)) {
            json_decref(value);
        } else if (json_object_set_new(json, fields[i].name, value) != 0) {
            json_decref(json);
            return NULL;
        }
    }
    return json;
}

/* Returns whether a field may differ when a job resumes. */
static bool may_change(const char *field) {
    static const char *const names[] = { "name", "max_train_steps", "num_train_epochs",
        "checkpointing_steps", "checkpointing_epochs", "checkpoints_total_limit",
        "resume_from_checkpoint",
        "validation_prompts", "validation_steps", "validation_epochs", "num_validation_images",
        "validation_negative_prompt", "validation_inference_steps", "validation_guidance_scale",
        "validation_scheduler", "validation_seed", "save_format", "save_precision", "report_to",
        "dataloader_num_workers", "gradient_checkpointing", "data_parallel" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], field) == 0)
            return true;
    return false;
}

/* Returns whether the field has its default value. Called for a field that the stored configuration
 * lacks. If the configuration is from an older daemon that did not have the field, the default
 * applied. If the field is missing because it had no effect, the other field that gives it an
 * effect differs too, and that is an error. */
static bool is_default(const struct train_field *f, const struct train_config *config) {
    return f->list == LIST_NONE && f->kind < FIELD_TEXT && field_get(&f->field, config) == f->value;
}

bool train_config_continues(
    const struct train_config *config, const json_t *then, struct error *err) {
    json_t *now = train_config_to_json(config);
    if (!now)
        return error_set(err, ERROR_NO_MEMORY, "no memory to compare jobs");
    bool ok = true;
    for (size_t i = 0; ok && i < FIELD_COUNT; i++) {
        const char *name = fields[i].name;
        const json_t *a = json_object_get(now, name), *b = json_object_get(then, name);
        char now_text[100], then_text[100];
        if (may_change(name) || (!a && !b) || (a && b && json_equal(a, b)) ||
            (a && !b && is_default(&fields[i], config)))
            continue;
        ok = error_field(err, name, json_describe(a, now_text, sizeof(now_text)),
            "%s, as in the checkpoint that the job goes on from",
            json_describe(b, then_text, sizeof(then_text)));
    }
    json_decref(now);
    return ok;
}

static bool multiply(
    struct train_config *config, const char *field, int64_t factor, struct error *err) {
    const struct train_field *f = field_named(field);
    int64_t *value = member(f, config);
    char text[64];
    if ((double)*value * (double)factor <= f->max) {
        *value *= factor;
        return true;
    }
    snprintf(text, sizeof(text), "%lld", (long long)*value);
    return error_field(err, field, text,
        "at most %lld, because data_parallel multiplies it by %lld",
        (long long)f->max / (long long)factor, (long long)factor);
}

bool train_config_multiply(
    struct train_config *config, int64_t factor, bool warmup, struct error *err) {
    config->data_parallel = TRAIN_PARALLEL_SHARE;
    return multiply(config, "gradient_accumulation_steps", factor, err) &&
           (!warmup || multiply(config, "lr_warmup_steps", factor, err));
}

bool train_config_line(size_t index, struct train_config_line *out) {
    if (index >= FIELD_COUNT)
        return false;
    const struct train_field *f = &fields[index];
    *out = (struct train_config_line){ .name = f->name, .help = f->help };
    if (f == field_named("seed"))
        snprintf(out->standard, sizeof(out->standard), "random");
    else if (f->texts)
        snprintf(out->standard, sizeof(out->standard), "%s", f->texts);
    else
        field_default(&f->field, out->standard, sizeof(out->standard));
    allowed(f, out->allowed, sizeof(out->allowed));
    condition(f, out->only, sizeof(out->only));
    return true;
}

/* --- the schema --- */

static json_t *list_schema(const struct train_field *f) {
    return json_pack("{s:s, s:{s:s}, s:i, s:i, s:s}", "type", "array", "items", "type",
        f->list == LIST_TEXTS ? "string" : "object", "minItems", f->list == LIST_TEXTS ? 1 : 0,
        "maxItems", TRAIN_TEXTS_MAX, "description", f->help);
}

json_t *train_config_schema(void) {
    json_t *properties = json_object();
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        json_t *schema = fields[i].list ? list_schema(&fields[i]) : field_schema(&fields[i].field);
        if (fields[i].needs[0].field || fields[i].needs[1].field)
            field_schema_hide_default(schema);
        json_object_set_new(properties, fields[i].name, schema);
    }
    json_object_del(json_object_get(properties, "seed"), "default"); /* it is random */
    return json_pack("{s:s, s:o, s:[s, s]}", "type", "object", "properties", properties, "required",
        "name", "dataset");
}

bool train_config_predicts_v(const struct train_config *config, bool model_does) {
    return config->prediction_type == TRAIN_PREDICTION_OF_MODEL
               ? model_does
               : config->prediction_type == TRAIN_PREDICTION_V;
}

bool train_config_changes_weights(const struct train_config *config) {
    return config->method == TRAIN_FULL || config->use_dora ||
           config->adapter_type != TRAIN_ADAPTER_LORA;
}

enum dtype train_save_dtype(const struct train_config *config) {
    static const enum dtype dtypes[] = {
        [TRAIN_SAVE_F32] = DTYPE_F32, [TRAIN_SAVE_F16] = DTYPE_F16, [TRAIN_SAVE_BF16] = DTYPE_BF16
    };
    return dtypes[config->save_precision];
}

bool train_config_fits_device(const struct train_config *config, unsigned dtypes,
    enum device_kind device, const char *name, struct error *err) {
    static const struct {
        enum dtype dtype;
        const char *name;
    } precisions[] = { [TRAIN_PRECISION_NO] = { DTYPE_F32, "no" },
        [TRAIN_PRECISION_BF16] = { DTYPE_BF16, "bf16" },
        [TRAIN_PRECISION_FP16] = { DTYPE_F16, "fp16" } };
    if (config->use_8bit_adam && device != DEVICE_CPU)
        return error_field(err, "use_8bit_adam", "true",
            "false on %s: 8-bit states are stepped on the CPU only", name);
    if (dtypes >> precisions[config->mixed_precision].dtype & 1)
        return true;
    const char *words[3];
    size_t count = 0;
    for (int i = 0; i < 3; i++)
        if (dtypes >> precisions[i].dtype & 1)
            words[count++] = precisions[i].name;
    char list[64];
    return error_field(err, "mixed_precision", precisions[config->mixed_precision].name, "%s on %s",
        words_list(list, sizeof(list), words, count, "\"", " or "), name);
}
