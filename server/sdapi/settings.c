#include "server/sdapi/settings.h"

#include "base/fields.h"
#include "base/text/json.h"

#include <string.h>
#include <strings.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* --- options with AUTOMATIC1111's own words --- */

static bool read_format(struct sdapi_settings *s, const json_t *value, struct error *err) {
    static const char *const names[] = { "png", "jpg", "jpeg", "webp" };
    static const enum picture_format formats[] = { PICTURE_PNG, PICTURE_JPEG, PICTURE_JPEG,
        PICTURE_WEBP };
    const char *name = json_string_value(value);
    for (size_t i = 0; name && i < ARRAY_SIZE(names); i++)
        if (strcasecmp(name, names[i]) == 0) {
            s->samples_format = formats[i];
            return true;
        }
    return json_bad_field("", value, "\"png\", \"jpg\" or \"webp\"", err);
}

static json_t *write_format(const struct sdapi_settings *s) {
    return json_string(
        s->samples_format == PICTURE_JPEG ? "jpg" : picture_format_name(s->samples_format));
}

/* In AUTOMATIC1111 "NV" computes the numbers that an NVIDIA GPU would draw. RNG_CUDA does the same,
 * so "GPU" and "NV" mean the same here. */
static bool read_randn_source(struct sdapi_settings *s, const json_t *value, struct error *err) {
    const char *name = json_string_value(value);
    if (!name || (strcmp(name, "GPU") != 0 && strcmp(name, "NV") != 0 && strcmp(name, "CPU") != 0))
        return json_bad_field("", value, "\"GPU\", \"NV\" or \"CPU\"", err);
    s->rng = strcmp(name, "CPU") == 0 ? RNG_CPU : RNG_CUDA;
    return true;
}

static json_t *write_randn_source(const struct sdapi_settings *s) {
    return json_string(s->rng == RNG_CPU ? "CPU" : "NV");
}

#define MEMBER(kind_, member) .kind = FIELD_##kind_, FIELD_OF(struct sdapi_settings, member)
static const struct setting {
    FIELD_COLUMNS; /* of struct sdapi_settings; FIELD_OTHER uses `read` and `write` */
    bool (*read)(struct sdapi_settings *s, const json_t *value, struct error *err);
    json_t *(*write)(const struct sdapi_settings *s);
} settings_table[] = {
    { .name = "CLIP_stop_at_last_layers",
        MEMBER(INTEGER, clip_stop_at_last_layers),
        .min = 1,
        .max = CLIP_SKIP_MAX + 1,
        .value = 1,
        .note = "1 is the last layer" },
    { .name = "samples_format", .kind = FIELD_OTHER, .read = read_format, .write = write_format },
    { .name = "jpeg_quality",
        MEMBER(INTEGER, jpeg_quality),
        .min = 1,
        .max = PICTURE_QUALITY_MAX,
        .value = 80 },
    { .name = "randn_source",
        .kind = FIELD_OTHER,
        .read = read_randn_source,
        .write = write_randn_source },
    { .name = "live_previews_enable", MEMBER(FLAG, live_previews), .value = true },
    { .name = "show_progress_every_n_steps",
        MEMBER(INTEGER, preview_every),
        .min = -1,
        .max = STEPS_MAX,
        .value = 10,
        .note = "-1 for none" },
};

void sdapi_settings_init(struct sdapi_settings *settings) {
    *settings = (struct sdapi_settings){ .samples_format = PICTURE_PNG, .rng = RNG_CUDA };
    for (size_t i = 0; i < ARRAY_SIZE(settings_table); i++)
        field_reset(&settings_table[i].field, settings);
}

/* Options that may have only one value here. `other` is another spelling of that value. */
static const struct {
    const char *name, *value, *other; /* as JSON */
} fixed[] = {
    { "sd_vae", "\"Automatic\"", "\"None\"" },
    { "eta_noise_seed_delta", "0", NULL },
    { "emphasis", "\"Original\"", NULL },
    { "use_old_emphasis_implementation", "false", NULL },
    { "use_old_karras_scheduler_sigmas", "false", NULL },
    { "always_discard_next_to_last_sigma", "false", NULL },
    { "img2img_fix_steps", "false", NULL },
    { "img2img_color_correction", "false", NULL },
    { "initial_noise_multiplier", "1", "1.0" },
    { "sd_hypernetwork", "\"None\"", NULL },
};

/* Options that are ignored: they concern AUTOMATIC1111's own page, or files that we do not
 * write. */
static const char *const ignored[] = { "samples_save", "grid_save", "save_images_add_number",
    "save_init_img", "return_grid", "return_mask", "return_mask_composite", "enable_pnginfo",
    "do_not_show_images", "show_progressbar", "show_progress_type", "show_progress_grid",
    "live_preview_content", "live_preview_refresh_period", "live_previews_image_format",
    "add_model_hash_to_info", "add_model_name_to_info", "sd_checkpoint_cache",
    "sd_checkpoints_limit", "face_restoration_model", "face_restoration", "upscaler_for_img2img" };

static bool is_ignored(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(ignored); i++)
        if (strcmp(name, ignored[i]) == 0)
            return true;
    return strncmp(name, "outdir_", 7) == 0 || strcmp(name, "sd_model_checkpoint") == 0;
}

static bool is_json(const json_t *value, const char *text) {
    json_t *other = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    const bool same = other && json_equal((json_t *)value, other);
    json_decref(other);
    return same;
}

static bool read_one(
    struct sdapi_settings *s, const char *name, const json_t *value, struct error *err) {
    for (size_t i = 0; i < ARRAY_SIZE(settings_table); i++)
        if (strcmp(name, settings_table[i].name) == 0)
            return settings_table[i].read
                       ? settings_table[i].read(s, value, err)
                       : field_from_json(&settings_table[i].field, value, s, err);
    for (size_t i = 0; i < ARRAY_SIZE(fixed); i++)
        if (strcmp(name, fixed[i].name) == 0)
            return is_json(value, fixed[i].value) || is_json(value, fixed[i].other) ||
                   json_bad_field("", value, fixed[i].value, err);
    return is_ignored(name) || json_bad_field("", value, "there is no such option here", err);
}

bool sdapi_settings_read(
    struct sdapi_settings *settings, const json_t *options, const char *prefix, struct error *err) {
    struct sdapi_settings read = *settings;
    struct error found = { 0 };
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)options, name, value) {
        if (read_one(&read, name, value, &found))
            continue;
        char param[64];
        snprintf(param, sizeof(param), "%s%.40s", prefix, name);
        return error_field(err, param, found.value, "%s", found.allowed);
    }
    *settings = read;
    return true;
}

json_t *sdapi_settings_json(const struct sdapi_settings *settings, const char *model_name) {
    json_t *options = json_object();
    bool ok = options && json_object_set_new(
                             options, "sd_model_checkpoint", json_lenient_string(model_name)) == 0;
    for (size_t i = 0; ok && i < ARRAY_SIZE(settings_table); i++) {
        const struct setting *row = &settings_table[i];
        ok = json_object_set_new(options, row->name,
                 row->write ? row->write(settings) : field_to_json(&row->field, settings)) == 0;
    }
    for (size_t i = 0; ok && i < ARRAY_SIZE(fixed); i++)
        ok = json_object_set_new(
                 options, fixed[i].name, json_loads(fixed[i].value, JSON_DECODE_ANY, NULL)) == 0;
    if (ok)
        return options;
    json_decref(options);
    return NULL;
}
