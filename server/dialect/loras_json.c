#include "server/dialect/loras_json.h"

#include "base/text/json.h"

#include <string.h>

#define UNMATCHED_SHOWN 100

static json_t *words_json(const char *const *words, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_lenient_string(words[i]));
    return list;
}

/* Writes whole numbers as integers: 16, not 16.0. */
static json_t *number_json(double value) {
    return value == (double)(json_int_t)value ? json_integer((json_int_t)value) : json_real(value);
}

static json_t *values_json(const struct adapter_value *values, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:o, s:I}", "value", number_json(values[i].value),
                                        "modules", (json_int_t)values[i].count));
    return list;
}

static json_t *targets_json(const struct adapter_summary *summary) {
    json_t *object = json_object();
    for (size_t i = 0; i < summary->target_count; i++)
        json_object_set_new(
            object, summary->targets[i].name, json_integer((json_int_t)summary->targets[i].count));
    return object;
}

/* Adds what is known about the contents of the adapter's file. Its alphas are tensors, which are
 * read when it is loaded. */
static void add_summary(json_t *json, const struct adapter_summary *s, bool reads_alphas) {
    json_object_set_new(json, "format", json_string(s->format));
    json_object_set_new(json, "kinds", words_json(s->kinds, s->kind_count));
    json_object_set_new(json, "ranks", values_json(s->ranks, s->rank_count));
    if (reads_alphas)
        json_object_set_new(json, "alphas", values_json(s->alphas, s->alpha_count));
    json_object_set_new(json, "targets", targets_json(s));
    json_object_set_new(json, "unet_modules", json_integer((json_int_t)s->unet_modules));
    json_object_set_new(
        json, "text_encoder_modules", json_integer((json_int_t)s->text_encoder_modules));
    json_object_set_new(
        json, "trigger_words", s->trigger[0] ? json_lenient_string(s->trigger) : json_null());
}

static json_t *error_json(const struct error *err) {
    return err->code == ERROR_NONE ? json_null()
                                   : json_pack("{s:s, s:o}", "code", error_code_name(err->code),
                                         "message", json_lenient_string(err->message));
}

json_t *lora_json(const struct adapter_info *info) {
    const size_t shown = info->unmatched_count < UNMATCHED_SHOWN ? info->unmatched_count
                                                                 : UNMATCHED_SHOWN;
    json_t *json = json_pack("{s:s, s:s, s:I, s:I, s:I, s:i, s:b, s:o, s:o}", "name", info->name,
        "state", adapter_state_name(info->state), "version", (json_int_t)info->version,
        "file_bytes", (json_int_t)info->file_bytes, "resident_bytes",
        (json_int_t)info->resident_bytes, "users", info->users, "pinned", info->pinned,
        "default_weight", info->is_default ? number_json(info->default_weight) : json_null(),
        "text_encoder_weight",
        info->is_default ? number_json(info->default_text_encoder_weight) : json_null());
    if (!json)
        return NULL;
    if (info->has_summary)
        add_summary(
            json, &info->summary, info->state == ADAPTER_LOADED || info->summary.alpha_count > 0);
    if (info->state == ADAPTER_LOADED) {
        json_object_set_new(json, "matched", json_integer((json_int_t)info->matched));
        json_object_set_new(
            json, "unmatched_count", json_integer((json_int_t)info->unmatched_count));
        json_object_set_new(
            json, "unmatched", words_json((const char *const *)info->unmatched, shown));
        json_object_set_new(json, "load_s", json_real(info->load_s));
        json_object_set_new(json, "sync_s", json_real(info->sync_s));
    }
    json_object_set_new(json, "error", error_json(&info->error));
    return json;
}

json_t *loras_json(const struct adapters_listing *listing) {
    json_t *list = json_array();
    for (size_t i = 0; i < listing->count; i++)
        json_array_append_new(list, lora_json(&listing->items[i]));
    return json_pack("{s:o, s:o, s:I, s:o, s:b}", "loras", list, "folder",
        listing->folder ? json_lenient_string(listing->folder) : json_null(), "resident_bytes",
        (json_int_t)listing->resident_bytes, "limit_bytes",
        listing->limit_bytes ? json_integer((json_int_t)listing->limit_bytes) : json_null(),
        "merge", listing->merge);
}

/* --- POST /loras/{name} --- */

static bool parse_weight(const char *name, const json_t *value, double *out, struct error *err) {
    char text[128];
    *out = json_number_value(value);
    return (json_is_number(value) && *out >= -ADAPTER_WEIGHT_MAX && *out <= ADAPTER_WEIGHT_MAX) ||
           error_field(err, name, json_describe(value, text, sizeof(text)),
               "a number from %g to %g", -ADAPTER_WEIGHT_MAX, ADAPTER_WEIGHT_MAX);
}

static bool parse_flag(const char *name, const json_t *value, bool *out, struct error *err) {
    *out = json_is_true(value);
    return json_is_boolean(value) || json_bad_field(name, value, "true or false", err);
}

static bool parse_default(const json_t *value, struct adapter_settings *s, struct error *err) {
    s->has_default = true;
    s->is_default = !json_is_null(value);
    char text[128];
    s->weight = json_number_value(value);
    return !s->is_default ||
           (json_is_number(value) && s->weight >= -ADAPTER_WEIGHT_MAX &&
               s->weight <= ADAPTER_WEIGHT_MAX) ||
           error_field(err, "default_weight", json_describe(value, text, sizeof(text)),
               "a number from %g to %g, or null for none", -ADAPTER_WEIGHT_MAX, ADAPTER_WEIGHT_MAX);
}

static bool parse_member(
    const char *key, const json_t *value, struct lora_change *out, struct error *err) {
    struct adapter_settings *s = &out->settings;
    if (strcmp(key, "default_weight") == 0)
        return parse_default(value, s, err);
    if (strcmp(key, "text_encoder_weight") == 0)
        return parse_weight(key, value, &s->text_encoder_weight, err);
    if (strcmp(key, "pinned") == 0) {
        s->has_pinned = true;
        return parse_flag(key, value, &s->pinned, err);
    }
    if (strcmp(key, "loaded") == 0) {
        out->has_loaded = true;
        return parse_flag(key, value, &out->loaded, err);
    }
    return json_bad_field(key, value,
        "there is no such field; known are default_weight, text_encoder_weight, pinned and loaded",
        err);
}

static bool parse_object(const json_t *root, struct lora_change *out, struct error *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value) {
        if (!parse_member(key, value, out, err))
            return false;
    }
    const json_t *text_encoder_weight = json_object_get(root, "text_encoder_weight");
    if (!text_encoder_weight)
        out->settings.text_encoder_weight = out->settings.weight;
    else if (!out->settings.is_default)
        return json_bad_field("text_encoder_weight", text_encoder_weight,
            "together with a default_weight, which is that of the UNet", err);
    return true;
}

bool lora_change_parse(
    const char *text, size_t length, struct lora_change *out, struct error *err) {
    *out = (struct lora_change){ 0 };
    if (length == 0)
        return error_set(err, ERROR_INVALID, "the body is empty; it must be a JSON object");
    json_t *root = json_parse_request(text, length, err);
    if (!root)
        return error_prefix(err, "the body");
    const bool ok = json_object_size(root) > 0
                        ? parse_object(root, out, err)
                        : error_set(err, ERROR_INVALID,
                              "the body must be a JSON object with at least one of "
                              "default_weight, text_encoder_weight, pinned and loaded");
    json_decref(root);
    return ok;
}
