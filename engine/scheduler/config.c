/* scheduler_config.json, class defaults and request options to one struct scheduler_config. */
#include "base/limits.h"
#include "engine/scheduler/class.h"

#include <stdlib.h>
#include <string.h>

/* Every key that a scheduler of diffusers may write. Keys of another class are passed over, as
 * from_config does; whatever is not here is reported. */
static const char *const known_keys[] = { "_class_name", "_diffusers_version",
    "_use_default_values", "algorithm_type", "base_image_seq_len", "beta_end", "beta_schedule",
    "beta_start", "clip_sample", "clip_sample_range", "dynamic_thresholding_ratio",
    "euler_at_final", "final_sigmas_type", "flow_shift", "interpolation_type", "lambda_min_clipped",
    "lower_order_final", "noise_sampler_seed", "num_train_timesteps", "original_inference_steps",
    "predict_x0", "prediction_type", "rescale_betas_zero_snr", "sample_max_value",
    "set_alpha_to_one", "sigma_max", "sigma_min", "skip_prk_steps", "solver_order", "solver_p",
    "solver_type", "steps_offset", "thresholding", "timestep_scaling", "timestep_spacing",
    "timestep_type", "trained_betas", "use_beta_sigmas", "use_dynamic_shifting",
    "use_exponential_sigmas", "use_flow_sigmas", "use_karras_sigmas", "use_lu_lambdas",
    "variance_type", "disable_corrector", NULL };

bool scheduler_config_kind(const json_t *json, enum scheduler_kind *out) {
    const char *class_name = json_string_value(json_object_get(json, "_class_name"));
    for (int kind = 0; class_name && kind < SCHEDULER_COUNT; kind++)
        if (strcmp(scheduler_get_info(kind)->class_name, class_name) == 0) {
            *out = (enum scheduler_kind)kind;
            return true;
        }
    return false;
}

static bool bad_key(struct error *err, const char *key, const json_t *value, const char *allowed) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    error_field(err, key, text ? text : "?", "%s", allowed);
    error_prefix(err, "scheduler_config.json");
    free(text);
    return false;
}

/* Each reader leaves *out alone where the key is absent. */
static bool read_bool(const json_t *json, const char *key, bool *out, struct error *err) {
    const json_t *value = json_object_get(json, key);
    if (!value)
        return true;
    if (!json_is_boolean(value))
        return bad_key(err, key, value, "true or false");
    *out = json_is_true(value);
    return true;
}

static bool read_int(
    const json_t *json, const char *key, int low, int high, int *out, struct error *err) {
    const json_t *value = json_object_get(json, key);
    if (!value)
        return true;
    json_int_t number = json_integer_value(value);
    char allowed[64];
    snprintf(allowed, sizeof(allowed), "an integer from %d to %d", low, high);
    if (!json_is_integer(value) || number < low || number > high)
        return bad_key(err, key, value, allowed);
    *out = (int)number;
    return true;
}

static bool read_beta(const json_t *json, const char *key, double *out, struct error *err) {
    const json_t *value = json_object_get(json, key);
    if (!value)
        return true;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= 0 && number < 1))
        return bad_key(err, key, value, "a number from 0 to below 1");
    *out = number;
    return true;
}

/* A word of a closed list; `parse` is one of the *_from_name functions through an int. */
#define READ_WORD(json, key, from_name, out, allowed, err)                                         \
    (!json_object_get(json, key) ||                                                                \
        (json_is_string(json_object_get(json, key)) &&                                             \
            from_name(json_string_value(json_object_get(json, key)), out)) ||                      \
        bad_key(err, key, json_object_get(json, key), allowed))

static bool variance_type_from_name(const char *name, enum variance_type *out) {
    static const char *const names[] = { "fixed_small", "fixed_small_log", "fixed_large" };
    for (int i = 0; i < 3; i++)
        if (strcmp(names[i], name) == 0) {
            *out = (enum variance_type)i;
            return true;
        }
    return false;
}

static bool read_trained_betas(
    const json_t *json, struct scheduler_config *config, struct error *err) {
    const json_t *value = json_object_get(json, "trained_betas"), *beta;
    size_t i;
    if (!value || json_is_null(value))
        return true;
    bool numbers = json_array_size(value) == (size_t)config->num_train_timesteps;
    json_array_foreach(value, i, beta) numbers = numbers && json_is_number(beta);
    if (!numbers)
        return error_set(err, ERROR_INVALID,
            "scheduler_config.json: trained_betas is not null or an array of num_train_timesteps "
            "(%d) numbers",
            config->num_train_timesteps);
    config->trained_betas = value;
    return true;
}

static bool read_shared(const json_t *json, struct scheduler_config *config, struct error *err) {
    return read_int(json, "num_train_timesteps", 1, TRAIN_TIMESTEPS_MAX,
               &config->num_train_timesteps, err) &&
           read_beta(json, "beta_start", &config->beta_start, err) &&
           read_beta(json, "beta_end", &config->beta_end, err) &&
           READ_WORD(json, "beta_schedule", beta_schedule_from_name, &config->beta_schedule,
               "linear, scaled_linear or squaredcos_cap_v2", err) &&
           READ_WORD(json, "prediction_type", prediction_type_from_name, &config->prediction,
               "epsilon, v_prediction or sample", err) &&
           READ_WORD(json, "timestep_spacing", timestep_spacing_from_name, &config->spacing,
               "leading, trailing or linspace", err) &&
           read_int(json, "steps_offset", 0, config->num_train_timesteps - 1, &config->steps_offset,
               err) &&
           read_trained_betas(json, config, err);
}

/* Keys that only some classes have. */
static bool read_own(const json_t *json, const struct scheduler_class *class,
    struct scheduler_config *config, struct error *err) {
    bool thresholding = false, clip_sample = class->keys & KEY_CLIP_SAMPLE;
    bool ok = (!(class->keys & KEY_SET_ALPHA_TO_ONE) ||
                  read_bool(json, "set_alpha_to_one", &config->set_alpha_to_one, err)) &&
              (!(class->keys & KEY_RESCALE_ZERO_SNR) ||
                  read_bool(json, "rescale_betas_zero_snr", &config->rescale_zero_snr, err)) &&
              (!(class->keys & KEY_SKIP_PRK_STEPS) ||
                  read_bool(json, "skip_prk_steps", &config->skip_prk_steps, err)) &&
              (!(class->keys & KEY_VARIANCE_TYPE) ||
                  READ_WORD(json, "variance_type", variance_type_from_name, &config->variance_type,
                      "fixed_small, fixed_small_log or fixed_large", err)) &&
              (!(class->keys & KEY_CLIP_SAMPLE) ||
                  (read_bool(json, "thresholding", &thresholding, err) &&
                      read_bool(json, "clip_sample", &clip_sample, err)));
    if (!ok)
        return false;
    if (thresholding)
        return error_set(err, ERROR_UNSUPPORTED,
            "scheduler_config.json: thresholding true is for pixels, not for latents, and is not "
            "supported; it must be false");
    config->replaced_clip_sample = clip_sample;
    return true;
}

static void list_unknown_keys(const json_t *json, char *out, size_t size) {
    const char *key;
    json_t *value;
    out[0] = 0;
    json_object_foreach((json_t *)json, key, value) {
        bool known = false;
        for (const char *const *k = known_keys; *k && !known; k++)
            known = strcmp(*k, key) == 0;
        size_t used = strlen(out);
        if (!known)
            snprintf(out + used, size - used, "%s%s", used ? ", " : "", key);
    }
}

static bool refuse_option(
    struct error *err, const char *option, const char *value, const struct scheduler_class *class) {
    return error_field(err, option, value, "%s has no such option", class->info.name);
}

static bool apply_options(const struct scheduler_options *options,
    const struct scheduler_class *class, struct scheduler_config *config, struct error *err) {
    char value[32];
    if (options->has_eta) {
        snprintf(value, sizeof(value), "%g", options->eta);
        if (!(class->keys & KEY_ETA))
            return refuse_option(err, "eta", value, class);
        if (!(options->eta >= 0 && options->eta <= 1))
            return error_field(err, "eta", value, "a number from 0 to 1");
        config->eta = options->eta;
    }
    if (options->has_set_alpha_to_one) {
        if (!(class->keys & KEY_SET_ALPHA_TO_ONE))
            return refuse_option(
                err, "set_alpha_to_one", options->set_alpha_to_one ? "true" : "false", class);
        config->set_alpha_to_one = options->set_alpha_to_one;
    }
    if (options->has_rescale_zero_snr) {
        if (!(class->keys & KEY_RESCALE_ZERO_SNR))
            return refuse_option(
                err, "rescale_betas_zero_snr", options->rescale_zero_snr ? "true" : "false", class);
        config->rescale_zero_snr = options->rescale_zero_snr;
    }
    if (options->has_steps_offset) {
        snprintf(value, sizeof(value), "%d", options->steps_offset);
        if (options->steps_offset < 0 || options->steps_offset >= config->num_train_timesteps)
            return error_field(err, "steps_offset", value, "an integer from 0 to %d",
                config->num_train_timesteps - 1);
        config->steps_offset = options->steps_offset;
    }
    if (options->has_beta_schedule) {
        config->beta_schedule = options->beta_schedule;
        config->trained_betas = NULL;
    }
    if (options->has_spacing)
        config->spacing = options->spacing;
    if (options->has_prediction)
        config->prediction = options->prediction;
    return true;
}

static bool choose_kind(const json_t *json, const struct scheduler_options *options,
    enum scheduler_kind *out, struct error *err) {
    if (options->has_kind) {
        *out = options->kind;
        return true;
    }
    if (scheduler_config_kind(json, out))
        return true;
    const char *class_name = json_string_value(json_object_get(json, "_class_name"));
    return error_set(err, ERROR_UNSUPPORTED,
        "scheduler: the checkpoint's own scheduler, %s, is not supported; name one that is",
        class_name ? class_name : "which has no _class_name");
}

bool scheduler_config_resolve(const json_t *json, const struct scheduler_options *options,
    struct scheduler_config *out, struct error *err) {
    memset(out, 0, sizeof(*out));
    enum scheduler_kind kind = SCHEDULER_DDPM; /* choose_kind sets it */
    if (!json_is_object(json))
        return error_set(err, ERROR_INVALID, "scheduler_config.json is not a JSON object");
    if (!choose_kind(json, options, &kind, err))
        return false;
    const struct scheduler_class *class = scheduler_get_class(kind);
    *out = (struct scheduler_config){ .kind = kind,
        .num_train_timesteps = 1000,
        .beta_start = 0.0001,
        .beta_end = 0.02,
        .set_alpha_to_one = class->set_alpha_to_one };
    if (!read_shared(json, out, err) || !read_own(json, class, out, err))
        return false;
    list_unknown_keys(json, out->ignored_keys, sizeof(out->ignored_keys));
    if (out->steps_offset != 1) {
        out->replaced_steps_offset = true;
        out->steps_offset = 1;
    }
    if (!apply_options(options, class, out, err))
        return false;
    if (!(class->predictions & 1u << out->prediction))
        return error_field(err, "prediction_type", prediction_type_name(out->prediction),
            "%s knows epsilon and v_prediction", class->info.name);
    return true;
}
