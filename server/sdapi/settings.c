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

/* Options that may have only one value here, because another would change pictures. `other` is
 * another spelling of that value. */
static const struct {
    const char *name, *value, *other; /* as JSON */
} fixed[] = {
    { "eta_noise_seed_delta", "0", NULL },
    { "emphasis", "\"Original\"", NULL },
    { "enable_emphasis", "true", NULL },
    { "use_old_emphasis_implementation", "false", NULL },
    { "use_old_karras_scheduler_sigmas", "false", NULL },
    { "no_dpmpp_sde_batch_determinism", "false", NULL },
    { "always_discard_next_to_last_sigma", "false", NULL },
    { "sgm_noise_multiplier", "false", NULL },
    { "sd_noise_schedule", "\"Default\"", NULL },
    { "img2img_fix_steps", "false", NULL },
    { "img2img_color_correction", "false", NULL },
    { "initial_noise_multiplier", "1", "1.0" },
    { "img2img_extra_noise", "0", "0.0" },
    { "enable_batch_seeds", "true", NULL },
    { "face_restoration", "false", NULL },
    { "comma_padding_backtrack", "20", NULL },
    { "pad_cond_uncond", "false", NULL },
    { "s_min_uncond", "0", "0.0" },
    { "token_merging_ratio", "0", "0.0" },
    { "eta_ancestral", "1", "1.0" },
    { "eta_ddim", "0", "0.0" },
    { "sd_hypernetwork", "\"None\"", NULL },
};

/* Options of AUTOMATIC1111 that change no picture here: they concern its page, its files, its
 * memory, or models of kinds that are not there. They are kept and given back. */
#define VAE 0 /* the index of sd_vae; one that is not there is passed over, as in AUTOMATIC1111 */
static const struct {
    const char *name, *value; /* AUTOMATIC1111's default, as JSON */
} kept[] = {
    [VAE] = { "sd_vae", "\"Automatic\"" },
    { "sd_vae_checkpoint_cache", "0" },
    { "sd_vae_overrides_per_model_preferences", "true" },
    { "sd_checkpoint_cache", "0" },
    { "sd_checkpoints_limit", "1" },
    { "sd_checkpoints_keep_in_cpu", "true" },
    { "sd_checkpoint_hash", "\"\"" },
    { "upcast_attn", "false" },
    { "cross_attention_optimization", "\"Automatic\"" },
    { "persistent_cond_cache", "true" },
    { "batch_cond_uncond", "true" },
    { "samples_save", "true" },
    { "samples_filename_pattern", "\"\"" },
    { "save_images_add_number", "true" },
    { "save_to_dirs", "true" },
    { "grid_save_to_dirs", "true" },
    { "use_save_to_dirs_for_ui", "false" },
    { "directories_filename_pattern", "\"[date]\"" },
    { "directories_max_prompt_words", "8" },
    { "save_init_img", "false" },
    { "save_mask", "false" },
    { "save_mask_composite", "false" },
    { "save_txt", "false" },
    { "save_selected_only", "true" },
    { "grid_save", "true" },
    { "grid_format", "\"png\"" },
    { "grid_extended_filename", "false" },
    { "grid_only_if_multiple", "true" },
    { "grid_prevent_empty_spots", "false" },
    { "n_rows", "-1" },
    { "export_for_4chan", "true" },
    { "return_grid", "true" },
    { "return_mask", "false" },
    { "return_mask_composite", "false" },
    { "enable_pnginfo", "true" },
    { "do_not_show_images", "false" },
    { "send_seed", "true" },
    { "send_size", "true" },
    { "add_model_hash_to_info", "true" },
    { "add_model_name_to_info", "true" },
    { "show_progressbar", "true" },
    { "show_progress_type", "\"Approx NN\"" },
    { "show_progress_grid", "true" },
    { "live_preview_content", "\"Prompt\"" },
    { "live_preview_refresh_period", "1000" },
    { "live_previews_image_format", "\"png\"" },
    { "face_restoration_model", "\"CodeFormer\"" },
    { "code_former_weight", "0.5" },
    { "upscaler_for_img2img", "null" },
    { "ESRGAN_tile", "192" },
    { "ESRGAN_tile_overlap", "8" },
    { "memmon_poll_rate", "8" },
};
_Static_assert(ARRAY_SIZE(kept) <= SDAPI_KEPT_MAX, "each option has its place");

bool sdapi_json_is(const json_t *value, const char *text) {
    json_t *other = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    const bool same = other && json_equal((json_t *)value, other);
    json_decref(other);
    return same;
}

/* Keeps a value, which is no list and no object. null stands for the default. */
static bool keep(char out[SDAPI_KEPT_BYTES], const json_t *value, struct error *err) {
    const bool is_plain = !json_is_object(value) && !json_is_array(value);
    const size_t size = is_plain && !json_is_null(value)
                            ? json_dumpb(
                                  value, out, SDAPI_KEPT_BYTES - 1, JSON_ENCODE_ANY | JSON_COMPACT)
                            : 0;
    const bool fits = is_plain && size < SDAPI_KEPT_BYTES;
    out[fits ? size : 0] = 0;
    return fits ||
           json_bad_field("", value, "a text, a number or a boolean of at most 127 bytes", err);
}

json_t *sdapi_settings_vae(const struct sdapi_settings *settings) {
    const char *text = settings->kept[VAE];
    json_t *name = text[0] ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    const char *given = json_string_value(name);
    if (given && given[0] && strcmp(given, "Automatic") != 0 && strcmp(given, "None") != 0)
        return name;
    json_decref(name);
    return NULL;
}

/* Folders of AUTOMATIC1111's files are ignored. */
static bool is_ignored(const char *name) {
    return strncmp(name, "outdir_", 7) == 0 || strcmp(name, "sd_model_checkpoint") == 0;
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
            return sdapi_json_is(value, fixed[i].value) || sdapi_json_is(value, fixed[i].other) ||
                   json_bad_field("", value, fixed[i].value, err);
    for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
        if (strcmp(name, kept[i].name) == 0)
            return keep(s->kept[i], value, err);
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
    for (size_t i = 0; ok && i < ARRAY_SIZE(kept); i++) {
        const char *text = settings->kept[i][0] ? settings->kept[i] : kept[i].value;
        ok = json_object_set_new(options, kept[i].name, json_loads(text, JSON_DECODE_ANY, NULL)) ==
             0;
    }
    if (ok)
        return options;
    json_decref(options);
    return NULL;
}
