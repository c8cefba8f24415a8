/* PEFT's configuration of an adapter: strengths that the tensors do not contain. */
#include "models/adapter/adapter_internal.h"

#include "base/text/json.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#define PATTERN_MAX_BYTES 1024
#define PATTERN_MATCH_LIMIT 10000 /* limit of steps: a pattern may be malicious */
#define PATTERNS_MAX 8192
#define REGULAR_PATTERNS_MAX 256 /* limit of regular expressions: each layer tries all */
#define PEFT_DEFAULT_RANK 8      /* PEFT's defaults of r and alpha */

static const json_t *get(
    const struct adapter_config *config, enum component component, const char *key) {
    char full[64];
    const char *prefix = !config->prefixed             ? ""
                         : component == COMPONENT_UNET ? "unet."
                                                       : "text_encoder.";
    snprintf(full, sizeof(full), "%s%s", prefix, key);
    return json_object_get(config->json, full);
}

/* Refuses initialisations that change the base's weights, because the factors alone are then not
 * sufficient. */
static bool check_start(const json_t *start, struct error *err) {
    static const char *const changing[] = { "pissa", "olora", "corda", "loftq", "lora_ga" };
    const char *word = json_string_value(start);
    for (size_t i = 0; word && i < sizeof(changing) / sizeof(changing[0]); i++)
        if (strncmp(word, changing[i], strlen(changing[i])) == 0)
            return error_set(err, ERROR_UNSUPPORTED,
                "init_lora_weights is \"%.20s\", which changed the base's own weights; save the "
                "adapter with path_initial_model_for_weight_conversion",
                word);
    return true;
}

static bool check_type(struct adapter_config *config, struct error *err) {
    const char *type = json_string_value(json_object_get(config->json, "peft_type"));
    config->peft_type = type ? type : "LORA";
    if (strcmp(config->peft_type, "LORA") == 0 || strcmp(config->peft_type, "LOHA") == 0 ||
        strcmp(config->peft_type, "LOKR") == 0)
        return true;
    return error_set(err, ERROR_UNSUPPORTED,
        "peft_type is \"%.40s\"; LORA, LOHA and LOKR are taken", config->peft_type);
}

/* Returns whether the pattern is a plain name: its only special characters are dots. Nearly every
 * pattern is. diffusers writes a ^ before patterns that are whole names. */
static bool is_plain(const char *pattern) {
    const char *name = pattern + (pattern[0] == '^');
    return !name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.")];
}

static bool check_patterns(const struct adapter_config *config, enum component component,
    const char *key, struct error *err) {
    const json_t *patterns = get(config, component, key);
    const char *pattern;
    json_t *value;
    size_t regular = 0;
    if (json_object_size(patterns) > PATTERNS_MAX)
        return error_set(err, ERROR_TOO_LARGE, "%s has %zu patterns; at most %d are taken", key,
            json_object_size(patterns), PATTERNS_MAX);
    json_object_foreach((json_t *)patterns, pattern, value) regular += !is_plain(pattern);
    return regular <= REGULAR_PATTERNS_MAX ||
           error_set(err, ERROR_TOO_LARGE,
               "%s has %zu regular expressions; at most %d are taken, and %d names", key, regular,
               REGULAR_PATTERNS_MAX, PATTERNS_MAX);
}

static bool config_check(struct adapter_config *config, struct error *err) {
    if (!json_is_object(config->json))
        return error_set(err, ERROR_INVALID, "it is not a JSON object");
    return check_type(config, err) &&
           check_start(json_object_get(config->json, "init_lora_weights"), err) &&
           check_start(get(config, COMPONENT_UNET, "init_lora_weights"), err) &&
           check_start(get(config, COMPONENT_TEXT_ENCODER, "init_lora_weights"), err) &&
           check_patterns(config, COMPONENT_UNET, "rank_pattern", err) &&
           check_patterns(config, COMPONENT_UNET, "alpha_pattern", err) &&
           check_patterns(config, COMPONENT_TEXT_ENCODER, "rank_pattern", err) &&
           check_patterns(config, COMPONENT_TEXT_ENCODER, "alpha_pattern", err);
}

bool adapter_config_read(const char *path, struct adapter_config *out, struct error *err) {
    *out = (struct adapter_config){ .json = json_parse_file(path, CONFIG_MAX_BYTES, err) };
    if (!out->json)
        return false;
    if (config_check(out, err))
        return true;
    adapter_config_finish(out);
    return error_prefix(err, "%s", path);
}

bool adapter_config_from_metadata(
    const json_t *metadata, struct adapter_config *out, struct error *err) {
    static const char key[] = "lora_adapter_metadata";
    *out = (struct adapter_config){ 0 };
    const json_t *text = json_object_get(metadata, key);
    if (!text)
        return true;
    out->prefixed = true;
    out->json = json_parse(json_string_value(text), json_string_length(text), err);
    if (out->json && config_check(out, err))
        return true;
    adapter_config_finish(out);
    return error_prefix(err, "%s", key);
}

void adapter_config_finish(struct adapter_config *config) {
    json_decref(config->json);
    *config = (struct adapter_config){ 0 };
}

static bool number(
    const json_t *value, const char *key, double fallback, double *out, struct error *err) {
    char shown[64];
    *out = value && !json_is_null(value) ? json_number_value(value) : fallback;
    if ((value && !json_is_number(value) && !json_is_null(value)) || !isfinite(*out))
        return error_set(err, ERROR_INVALID, "%s is %s; a number is needed", key,
            json_describe(value, shown, sizeof(shown)));
    return true;
}

/* Returns 1 if the pattern is `layer` or, without a ^, the part of `layer` after one of its dots.
 * Returns 0 if it is not, and -1 if the pattern is a regular expression. */
static int matches_plainly(const char *pattern, const char *layer) {
    const bool is_whole = pattern[0] == '^';
    const char *name = pattern + is_whole;
    const size_t length = strlen(name), whole = strlen(layer);
    if (!is_plain(pattern))
        return -1;
    if (length > whole || (length < whole && (is_whole || layer[whole - length - 1] != '.')))
        return 0;
    for (size_t i = 0; i < length; i++)
        if (name[i] != '.' && name[i] != layer[whole - length + i])
            return 0;
    return 1;
}

/* Matches as PEFT's get_pattern_key does: re.match(rf"(.*\.)?({pattern})$", layer). */
static bool matches(const char *pattern, const char *layer, bool *out, struct error *err) {
    const int plainly = matches_plainly(pattern, layer);
    *out = plainly == 1;
    if (plainly >= 0)
        return true;
    char regex[PATTERN_MAX_BYTES + 16];
    if (strlen(pattern) > PATTERN_MAX_BYTES)
        return error_set(err, ERROR_INVALID, "the pattern \"%.40s...\" has %zu bytes; at most %d",
            pattern, strlen(pattern), PATTERN_MAX_BYTES);
    snprintf(regex, sizeof(regex), "(.*\\.)?(%s)$", pattern);
    int code = 0, found = PCRE2_ERROR_NOMEMORY;
    PCRE2_SIZE at;
    pcre2_code *compiled = pcre2_compile(
        (PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED, &code, &at, NULL);
    if (!compiled)
        return error_set(
            err, ERROR_INVALID, "the pattern \"%.100s\" is no regular expression", pattern);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    if (context && data) {
        pcre2_set_match_limit(context, PATTERN_MATCH_LIMIT);
        pcre2_set_depth_limit(context, PATTERN_MATCH_LIMIT);
        found = pcre2_match(compiled, (PCRE2_SPTR)layer, strlen(layer), 0, 0, data, context);
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_code_free(compiled);
    if (found == PCRE2_ERROR_NOMEMORY)
        return error_set(err, ERROR_NO_MEMORY, "no memory to match \"%.100s\"", pattern);
    *out = found >= 0;
    return found >= 0 || found == PCRE2_ERROR_NOMATCH ||
           error_set(err, ERROR_INVALID, "the pattern \"%.100s\" takes too long on \"%.200s\"",
               pattern, layer);
}

/* Sets *value to the value of the first pattern that matches the layer. Leaves *value unchanged if
 * no pattern does. */
static bool from_patterns(
    const json_t *patterns, const char *key, const char *layer, double *value, struct error *err) {
    const char *pattern;
    json_t *replacement;
    if (!patterns || json_is_null(patterns))
        return true;
    if (!json_is_object(patterns))
        return error_set(err, ERROR_INVALID, "%s is not an object", key);
    json_object_foreach((json_t *)patterns, pattern, replacement) {
        bool fits = false;
        if (!matches(pattern, layer, &fits, err))
            return error_prefix(err, "%s", key);
        if (fits)
            return number(replacement, key, *value, value, err);
    }
    return true;
}

bool adapter_config_scale(const struct adapter_config *config, enum component component,
    const char *layer, struct adapter_config_scale *out, struct error *err) {
    *out = (struct adapter_config_scale){ 0 };
    const bool lora = config->json && strcmp(config->peft_type, "LORA") == 0;
    const char *alpha_key = lora ? "lora_alpha" : "alpha";
    if (!config->json ||
        (config->prefixed && !get(config, component, "r") && !get(config, component, alpha_key)))
        return true;
    out->said = true;
    out->rslora = json_is_true(get(config, component, "use_rslora"));
    return number(get(config, component, "r"), "r", PEFT_DEFAULT_RANK, &out->rank, err) &&
           number(
               get(config, component, alpha_key), alpha_key, PEFT_DEFAULT_RANK, &out->alpha, err) &&
           from_patterns(
               get(config, component, "rank_pattern"), "rank_pattern", layer, &out->rank, err) &&
           from_patterns(
               get(config, component, "alpha_pattern"), "alpha_pattern", layer, &out->alpha, err);
}
