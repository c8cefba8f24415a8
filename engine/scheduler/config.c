/* Resolves scheduler_config.json, a class's defaults and a request's choice to a struct
 * scheduler_config. Also converts such a configuration to JSON. */
#include "base/limits.h"
#include "base/text/json.h"
#include "base/text/words.h"
#include "engine/scheduler/class.h"

#include <stdlib.h>
#include <string.h>

/* Keys that diffusers' schedulers write but ours do not need. They are ignored silently, as
 * from_config ignores the keys of another class. All other keys that are not options are
 * reported. */
static const char *const foreign_keys[] = { "_class_name", "_diffusers_version",
    "_use_default_values", "base_image_seq_len", "clip_sample_range", "disable_corrector",
    "dynamic_thresholding_ratio", "flow_shift", "lambda_min_clipped", "noise_sampler_seed",
    "sample_max_value", "sigma_max", "sigma_min", "solver_p", "time_shift_type", "trained_betas",
    "use_dynamic_shifting", "use_flow_sigmas", NULL };

bool scheduler_has_option(enum scheduler_kind kind, enum scheduler_option_id id) {
    const struct class_option *own = &scheduler_get_class(kind)->options[id];
    return own->has || (scheduler_options[id].shared && !own->lacks);
}

unsigned scheduler_known_words(enum scheduler_kind kind, enum scheduler_option_id id) {
    unsigned words = scheduler_get_class(kind)->options[id].words;
    return words ? words : FIELD_ALL_WORDS;
}

bool scheduler_config_kind(const json_t *json, enum scheduler_kind *out) {
    const char *class_name = json_string_value(json_object_get(json, "_class_name"));
    for (int kind = 0; class_name && kind < SCHEDULER_COUNT; kind++)
        if (strcmp(scheduler_get_info(kind)->class_name, class_name) == 0) {
            *out = (enum scheduler_kind)kind;
            return true;
        }
    return false;
}

/* --- a request's "scheduler" --- */

void scheduler_choose(struct scheduler_choice *choice, enum scheduler_option_id id, double value) {
    choice->given[id] = true;
    field_set(&scheduler_options[id].field, &choice->values, value);
}

static bool bad_option(
    struct error *err, const char *name, const json_t *value, const char *allowed) {
    char param[64], text[128];
    snprintf(param, sizeof(param), "scheduler.%s", name);
    return error_field(err, param, json_describe(value, text, sizeof(text)), "%s", allowed);
}

static bool read_name(
    const char *param, const json_t *value, struct scheduler_choice *choice, struct error *err) {
    const char *name = json_string_value(value);
    choice->has_kind = name && scheduler_kind_from_name(name, &choice->kind);
    if (choice->has_kind)
        return true;
    char text[128], allowed[ERROR_ALLOWED_BYTES];
    return error_field(err, param, json_describe(value, text, sizeof(text)), "%s",
        scheduler_list_names(allowed, sizeof(allowed), "\""));
}

/* Lists the options that requests may set for one class, or with kind SCHEDULER_COUNT for any
 * class. */
static const char *list_options(enum scheduler_kind kind, char *out, size_t size) {
    const char *names[SCHEDULER_OPTION_COUNT];
    size_t count = 0;
    for (int id = 0; id < SCHEDULER_OPTION_COUNT; id++) {
        if (scheduler_options[id].from != FILE_ONLY &&
            (kind == SCHEDULER_COUNT || scheduler_has_option(kind, id)))
            names[count++] = scheduler_options[id].name;
    }
    return words_list(out, size, names, count, "", " and ");
}

static bool read_option(
    const char *name, const json_t *value, struct scheduler_choice *choice, struct error *err) {
    char allowed[ERROR_ALLOWED_BYTES];
    double number;
    if (strcmp(name, "name") == 0)
        return read_name("scheduler.name", value, choice, err);
    enum scheduler_option_id id;
    if (!scheduler_option_find(name, &id)) {
        char known[ERROR_ALLOWED_BYTES - 64];
        snprintf(allowed, sizeof(allowed), "known options are name, %s",
            list_options(SCHEDULER_COUNT, known, sizeof(known)));
        return bad_option(err, name, value, allowed);
    }
    if (!field_value_from_json(&scheduler_options[id].field, value, &number))
        return bad_option(err, name, value,
            field_allowed(
                &scheduler_options[id].field, FIELD_ALL_WORDS, "\"", allowed, sizeof(allowed)));
    scheduler_choose(choice, id, number);
    return true;
}

bool scheduler_choice_from_json(
    const json_t *json, struct scheduler_choice *out, struct error *err) {
    *out = (struct scheduler_choice){ 0 };
    if (!json_is_object(json))
        return read_name("scheduler", json, out, err);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)json, name, value) {
        if (!read_option(name, value, out, err))
            return false;
    }
    return true;
}

bool scheduler_choice_is_given(const struct scheduler_choice *choice) {
    bool given = choice->has_kind;
    for (int id = 0; id < SCHEDULER_OPTION_COUNT; id++)
        given = given || choice->given[id];
    return given;
}

/* Returns the value of an option that is given. */
static json_t *given_json(const struct scheduler_choice *choice, int id) {
    const struct field *field = &scheduler_options[id].field;
    return field_value_to_json(field, field_get(field, &choice->values));
}

json_t *scheduler_choice_to_json(const struct scheduler_choice *choice) {
    json_t *object = json_object();
    bool ok = object &&
              (!choice->has_kind || json_object_set_new(object, "name",
                                        json_string(scheduler_kind_name(choice->kind))) == 0);
    for (int id = 0; ok && id < SCHEDULER_OPTION_COUNT; id++)
        if (choice->given[id])
            ok = json_object_set_new(object, scheduler_options[id].name, given_json(choice, id)) ==
                 0;
    if (ok)
        return object;
    json_decref(object);
    return NULL;
}

bool scheduler_config_replace(
    json_t *json, const struct scheduler_choice *choice, struct error *err) {
    struct scheduler_config checked;
    if (!scheduler_choice_is_given(choice))
        return true;
    if (!scheduler_config_resolve(json, choice, &checked, err))
        return false;
    bool ok = !choice->has_kind ||
              json_object_set_new(json, "_class_name",
                  json_string(scheduler_get_info(choice->kind)->class_name)) == 0;
    for (int id = 0; ok && id < SCHEDULER_OPTION_COUNT; id++) {
        if (!choice->given[id])
            continue;
        json_t *value = given_json(choice, id);
        if (scheduler_options[id].from == REQUEST_ONLY) {
            bad_option(err, scheduler_options[id].name, value, "only a request can set it");
            json_decref(value);
            return false;
        }
        ok = json_object_set_new(json, scheduler_options[id].name, value) == 0;
    }
    return ok || error_set(err, ERROR_NO_MEMORY, "no memory for a scheduler");
}

json_t *scheduler_config_to_json(const struct scheduler_config *config) {
    json_t *object = json_object();
    bool ok = object && json_object_set_new(
                            object, "name", json_string(scheduler_kind_name(config->kind))) == 0;
    for (int id = 0; ok && id < SCHEDULER_OPTION_COUNT; id++) {
        const struct scheduler_option *option = &scheduler_options[id];
        if (option->from != FILE_ONLY && scheduler_has_option(config->kind, id))
            ok = json_object_set_new(object, option->name,
                     field_value_to_json(
                         &option->field, field_get(&option->field, &config->values))) == 0;
    }
    if (ok)
        return object;
    json_decref(object);
    return NULL;
}

/* --- scheduler_config.json --- */

static bool bad_key(struct error *err, const char *key, const json_t *value, const char *allowed) {
    char text[128];
    error_field(err, key, json_describe(value, text, sizeof(text)), "%s", allowed);
    return error_prefix(err, "scheduler_config.json");
}

static void fill_defaults(const struct scheduler_class *class, struct scheduler_values *values) {
    for (int id = 0; id < SCHEDULER_OPTION_COUNT; id++) {
        const struct class_option *own = &class->options[id];
        field_set(&scheduler_options[id].field, values,
            own->has ? own->value : scheduler_options[id].value);
    }
}

/* Reads the options in the file. A missing key keeps the class's default. */
static bool read_file(const json_t *json, struct scheduler_config *config, struct error *err) {
    for (int id = 0; id < SCHEDULER_OPTION_COUNT; id++) {
        const struct scheduler_option *option = &scheduler_options[id];
        const json_t *value = json_object_get(json, option->name);
        double number;
        /* diffusers writes null for a constructor argument whose default is None. */
        if (!value || json_is_null(value) || option->from == REQUEST_ONLY ||
            !scheduler_has_option(config->kind, id) ||
            scheduler_get_class(config->kind)->options[id].not_filed)
            continue;
        if (!field_value_from_json(&option->field, value, &number)) {
            char allowed[ERROR_ALLOWED_BYTES];
            return bad_key(err, option->name, value,
                field_allowed(&option->field, FIELD_ALL_WORDS, "\"", allowed, sizeof(allowed)));
        }
        unsigned foreign = scheduler_get_class(config->kind)->options[id].foreign;
        if (option->kind != FIELD_WORD || !(foreign & 1u << (unsigned)number))
            field_set(&option->field, &config->values, number);
    }
    return true;
}

static bool read_trained_betas(
    const json_t *json, struct scheduler_config *config, struct error *err) {
    const json_t *value = json_object_get(json, "trained_betas"), *beta;
    int count = config->values.num_train_timesteps;
    size_t i;
    if (!value || json_is_null(value))
        return true;
    bool numbers = json_array_size(value) == (size_t)count;
    json_array_foreach(value, i, beta) numbers = numbers && json_is_number(beta);
    if (!numbers) {
        char allowed[80];
        snprintf(allowed, sizeof(allowed), "null or num_train_timesteps (%d) numbers", count);
        return bad_key(err, "trained_betas", value, allowed);
    }
    config->trained_betas = value;
    return true;
}

/* Refuses keys of diffusers' multistep classes that are not supported here, unless they have their
 * default values. */
static bool check_multistep_keys(
    const json_t *json, const struct scheduler_config *config, struct error *err) {
    static const struct {
        const char *key, *allowed;
    } keys[] = { { "lambda_min_clipped", "-Infinity" }, { "disable_corrector", "[]" },
        { "solver_p", "null" }, { "use_flow_sigmas", "false" }, { "use_dynamic_shifting", "false" },
        { "sigma_min", "null" }, { "sigma_max", "null" } };
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *value = json_object_get(json, keys[i].key);
        if (!scheduler_has_option(config->kind, OPTION_SOLVER_ORDER) || !value ||
            json_is_null(value) || json_is_false(value) ||
            (json_is_array(value) && json_array_size(value) == 0))
            continue;
        char text[128];
        return error_set(err, ERROR_UNSUPPORTED,
            "scheduler_config.json: %s %s is not supported by %s; it must be %s", keys[i].key,
            json_describe(value, text, sizeof(text)), scheduler_kind_name(config->kind),
            keys[i].allowed);
    }
    return true;
}

static bool is_known_key(const char *key) {
    for (const char *const *foreign = foreign_keys; *foreign; foreign++)
        if (strcmp(*foreign, key) == 0)
            return true;
    for (int id = 0; id < SCHEDULER_OPTION_COUNT; id++)
        if (scheduler_options[id].from != REQUEST_ONLY &&
            strcmp(scheduler_options[id].name, key) == 0)
            return true;
    return false;
}

static void list_unknown_keys(const json_t *json, char *out, size_t size) {
    const char *key;
    json_t *value;
    out[0] = 0;
    json_object_foreach((json_t *)(uintptr_t)json, key, value) {
        size_t used = strlen(out);
        if (!is_known_key(key))
            snprintf(out + used, size - used, "%s%s", used ? ", " : "", key);
    }
}

/* Refuses numbers that limit the sigmas of diffusers' Euler. No Stable Diffusion checkpoint has
 * them. */
static bool refuse_sigma_range(
    const json_t *json, const struct scheduler_config *config, struct error *err) {
    static const char *const keys[] = { "sigma_min", "sigma_max" };
    for (int i = 0; i < 2 && config->kind == SCHEDULER_EULER; i++) {
        const json_t *value = json_object_get(json, keys[i]);
        if (value && !json_is_null(value))
            return bad_key(err, keys[i], value, "null");
    }
    return true;
}

/* Changes the file's values as diffusers' Stable Diffusion pipelines do. */
static bool adapt_to_pipeline(struct scheduler_config *config, struct error *err) {
    struct scheduler_values *values = &config->values;
    if (values->thresholding)
        return error_set(err, ERROR_UNSUPPORTED,
            "scheduler_config.json: thresholding true is for pixels, not for latents, and is not "
            "supported; it must be false");
    config->replaced_clip_sample = values->clip_sample;
    config->replaced_steps_offset = values->steps_offset != 1;
    values->clip_sample = false;
    values->steps_offset = 1;
    return true;
}

/* --- the file and the choice combined --- */

static bool refuse_option(
    struct error *err, const struct scheduler_option *option, double value, const char *allowed) {
    json_t *json = field_value_to_json(&option->field, value);
    bad_option(err, option->name, json, allowed);
    json_decref(json);
    return false;
}

static bool apply_choice(
    const struct scheduler_choice *choice, struct scheduler_config *config, struct error *err) {
    char allowed[ERROR_ALLOWED_BYTES];
    for (int id = 0; id < SCHEDULER_OPTION_COUNT; id++) {
        const struct scheduler_option *option = &scheduler_options[id];
        double value = field_get(&option->field, &choice->values);
        if (!choice->given[id])
            continue;
        if (!scheduler_has_option(config->kind, id)) {
            char known[ERROR_ALLOWED_BYTES - 64];
            snprintf(allowed, sizeof(allowed), "%s has no such option; it has %s",
                scheduler_kind_name(config->kind),
                list_options(config->kind, known, sizeof(known)));
            return refuse_option(err, option, value, allowed);
        }
        if (!field_allows(&option->field, value))
            return refuse_option(err, option, value,
                field_allowed(&option->field, FIELD_ALL_WORDS, "\"", allowed, sizeof(allowed)));
        double max = scheduler_option_max(option, &config->values);
        if (option->kind == FIELD_INTEGER && value > max) {
            snprintf(
                allowed, sizeof(allowed), "an integer from %g to %g", (double)option->min, max);
            return refuse_option(err, option, value, allowed);
        }
        field_set(&option->field, &config->values, value);
    }
    if (choice->given[OPTION_BETA_SCHEDULE])
        config->trained_betas = NULL;
    return true;
}

/* Refuses a word that the class does not accept. The error names the request's option or the file's
 * key. */
static bool check_words(const struct scheduler_choice *choice,
    const struct scheduler_config *config, struct error *err) {
    for (int id = 0; id < SCHEDULER_OPTION_COUNT; id++) {
        const struct scheduler_option *option = &scheduler_options[id];
        if (option->kind != FIELD_WORD)
            continue;
        double value = field_get(&option->field, &config->values);
        unsigned known = scheduler_known_words(config->kind, id);
        if (known & 1u << (unsigned)value)
            continue;
        char words[128], allowed[192];
        snprintf(allowed, sizeof(allowed), "%s knows %s", scheduler_kind_name(config->kind),
            field_allowed(&option->field, known, "\"", words, sizeof(words)));
        if (choice->given[id])
            return refuse_option(err, option, value, allowed);
        json_t *json = field_value_to_json(&option->field, value);
        bad_key(err, option->name, json, allowed);
        json_decref(json);
        return false;
    }
    return true;
}

/* Each of these options replaces the list of sigmas. At most one may be set, as in diffusers. */
static bool check_sigma_schedules(const struct scheduler_choice *choice,
    const struct scheduler_config *config, struct error *err) {
    static const enum scheduler_option_id exclusive[] = { OPTION_USE_KARRAS_SIGMAS,
        OPTION_USE_EXPONENTIAL_SIGMAS, OPTION_USE_BETA_SIGMAS, OPTION_USE_AYS_SIGMAS,
        OPTION_USE_KL_OPTIMAL_SIGMAS };
    int used[sizeof(exclusive) / sizeof(exclusive[0])], count = 0;
    for (size_t i = 0; i < sizeof(exclusive) / sizeof(exclusive[0]); i++)
        if (field_get(&scheduler_options[exclusive[i]].field, &config->values) != 0)
            used[count++] = (int)exclusive[i];
    if (count < 2)
        return true;
    bool first = choice->given[used[0]] && !choice->given[used[1]];
    const struct scheduler_option *option = &scheduler_options[used[first ? 0 : 1]];
    char allowed[96];
    snprintf(allowed, sizeof(allowed), "false, unless %s is: one list of sigmas at a time",
        scheduler_options[used[first ? 1 : 0]].name);
    return choice->given[used[0]] || choice->given[used[1]]
               ? refuse_option(err, option, 1, allowed)
               : bad_key(err, option->name, json_true(), allowed);
}

static bool choose_kind(const json_t *json, const struct scheduler_choice *choice,
    enum scheduler_kind *out, struct error *err) {
    if (choice->has_kind) {
        *out = choice->kind;
        return true;
    }
    if (scheduler_config_kind(json, out))
        return true;
    const char *class_name = json_string_value(json_object_get(json, "_class_name"));
    return error_set(err, ERROR_UNSUPPORTED,
        "scheduler: the checkpoint's own scheduler, %s, is not supported; name one that is",
        class_name ? class_name : "which has no _class_name");
}

bool scheduler_config_resolve(const json_t *json, const struct scheduler_choice *choice,
    struct scheduler_config *out, struct error *err) {
    memset(out, 0, sizeof(*out));
    if (!json_is_object(json))
        return error_set(err, ERROR_INVALID, "scheduler_config.json is not a JSON object");
    if (!choose_kind(json, choice, &out->kind, err))
        return false;
    fill_defaults(scheduler_get_class(out->kind), &out->values);
    list_unknown_keys(json, out->ignored_keys, sizeof(out->ignored_keys));
    return read_file(json, out, err) && read_trained_betas(json, out, err) &&
           refuse_sigma_range(json, out, err) && check_multistep_keys(json, out, err) &&
           adapt_to_pipeline(out, err) && apply_choice(choice, out, err) &&
           check_words(choice, out, err) && check_sigma_schedules(choice, out, err);
}
