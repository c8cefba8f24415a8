#include "server/sdapi/request.h"

#include "base/text/base64.h"
#include "base/text/json.h"

#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* Every field of the API model of StableDiffusionProcessingTxt2Img, with its default. */
static const char defaults_text[] =
    "{\"prompt\":\"\",\"negative_prompt\":\"\",\"styles\":[],\"seed\":-1,\"subseed\":-1,"
    "\"subseed_strength\":0,\"seed_resize_from_h\":-1,\"seed_resize_from_w\":-1,"
    "\"sampler_name\":null,\"scheduler\":null,\"batch_size\":1,\"n_iter\":1,\"steps\":50,"
    "\"cfg_scale\":7.0,\"width\":512,\"height\":512,\"restore_faces\":null,\"tiling\":null,"
    "\"do_not_save_samples\":false,\"do_not_save_grid\":false,\"eta\":null,"
    "\"denoising_strength\":null,\"s_min_uncond\":null,\"s_churn\":null,\"s_tmax\":null,"
    "\"s_tmin\":null,\"s_noise\":null,\"override_settings\":{},"
    "\"override_settings_restore_afterwards\":true,\"refiner_checkpoint\":null,"
    "\"refiner_switch_at\":null,\"disable_extra_networks\":false,\"firstpass_image\":null,"
    "\"comments\":null,\"sampler_index\":\"Euler\",\"script_name\":null,\"script_args\":[],"
    "\"send_images\":true,\"save_images\":false,\"alwayson_scripts\":{},"
    "\"force_task_id\":null,\"infotext\":null}";
static const char txt2img_defaults_text[] =
    "{\"enable_hr\":false,\"firstphase_width\":0,\"firstphase_height\":0,\"hr_scale\":2.0,"
    "\"hr_upscaler\":null,\"hr_second_pass_steps\":0,\"hr_resize_x\":0,\"hr_resize_y\":0,"
    "\"hr_checkpoint_name\":null,\"hr_sampler_name\":null,\"hr_scheduler\":null,"
    "\"hr_prompt\":\"\",\"hr_negative_prompt\":\"\"}";
static const char img2img_defaults_text[] =
    "{\"init_images\":null,\"resize_mode\":0,\"denoising_strength\":0.75,"
    "\"image_cfg_scale\":null,\"mask\":null,\"mask_blur_x\":4,\"mask_blur_y\":4,"
    "\"mask_blur\":null,\"mask_round\":true,\"inpainting_fill\":0,\"inpaint_full_res\":true,"
    "\"inpaint_full_res_padding\":0,\"inpainting_mask_invert\":0,"
    "\"initial_noise_multiplier\":null,\"latent_mask\":null,\"include_init_images\":false}";

/* Returns all fields: the body's value, or the default if the body has none or null. */
static json_t *all_fields(enum sdapi_kind kind, const json_t *body) {
    json_t *fields = json_loads(defaults_text, 0, NULL);
    json_t *more = json_loads(
        kind == SDAPI_IMG2IMG ? img2img_defaults_text : txt2img_defaults_text, 0, NULL);
    bool ok = fields && more && json_object_update(fields, more) == 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)body, name, value) {
        if (ok && !json_is_null(value) && json_object_get(fields, name))
            ok = json_object_set(fields, name, value) == 0;
    }
    json_decref(more);
    if (ok)
        return fields;
    json_decref(fields);
    return NULL;
}

/* --- single fields, as pydantic reads them: a number may be in a string --- */

static bool to_integer(const json_t *value, int64_t *out) {
    const char *text = json_string_value(value);
    char *end;
    if (!text)
        return json_exact_integer(value, out);
    const long long integer = strtoll(text, &end, 10);
    *out = integer;
    return *text && !*end && integer != LLONG_MIN && integer != LLONG_MAX;
}

static bool to_number(const json_t *value, double *out) {
    const char *text = json_string_value(value);
    char *end;
    *out = text ? strtod(text, &end) : json_number_value(value);
    return (text ? *text && !*end : json_is_number(value)) && *out - *out == 0;
}

static bool to_flag(const json_t *value, bool *out) {
    int64_t integer;
    *out = json_is_true(value);
    if (json_is_boolean(value))
        return true;
    if (!to_integer(value, &integer) || integer < 0 || integer > 1)
        return false;
    *out = integer == 1;
    return true;
}

/* Reads an integer and clamps it to the range of an int. generate_request_check, which knows the
 * field's range, refuses a clamped value. */
static bool get_int(const json_t *fields, const char *name, int *out, struct error *err) {
    const json_t *value = json_object_get(fields, name);
    int64_t integer;
    if (!to_integer(value, &integer))
        return json_bad_field(name, value, "a valid integer", err);
    *out = integer > INT_MAX ? INT_MAX : integer < INT_MIN ? INT_MIN : (int)integer;
    return true;
}

static bool get_int_between(
    const json_t *fields, const char *name, int min, int max, int *out, struct error *err) {
    char value[16];
    if (!get_int(fields, name, out, err))
        return false;
    snprintf(value, sizeof(value), "%d", *out);
    return (*out >= min && *out <= max) ||
           error_field(err, name, value, "an integer from %d to %d", min, max);
}

static bool get_number(const json_t *fields, const char *name, double *out, struct error *err) {
    const json_t *value = json_object_get(fields, name);
    return to_number(value, out) || json_bad_field(name, value, "a valid number", err);
}

static bool get_flag(const json_t *fields, const char *name, bool *out, struct error *err) {
    const json_t *value = json_object_get(fields, name);
    return to_flag(value, out) || json_bad_field(name, value, "a valid boolean", err);
}

/* Reads a string; null is read as "". */
static bool get_text(const json_t *fields, const char *name, const char **out, struct error *err) {
    const json_t *value = json_object_get(fields, name);
    *out = json_is_null(value) ? "" : json_string_value(value);
    return *out || json_bad_field(name, value, "a valid string", err);
}

static bool copy_text(const json_t *fields, const char *name, char **out, struct error *err) {
    const char *text;
    if (!get_text(fields, name, &text, err))
        return false;
    *out = strdup(text);
    return *out || error_set(err, ERROR_NO_MEMORY, "no memory for %s", name);
}

/* --- features that are not there --- */

/* Returns whether a script's arguments have no effect: they are not set, or every unit of the
 * script is off. */
static bool is_off(const json_t *args) {
    const char *name;
    json_t *value;
    size_t i;
    if (json_is_object(args)) { /* {"enabled": false} or {"args": [...]} */
        const json_t *enabled = json_object_get(args, "enabled");
        json_object_foreach((json_t *)args, name, value) {
            if (strcmp(name, "args") == 0)
                return is_off(value);
        }
        return json_object_size(args) == 0 || json_is_false(enabled);
    }
    if (!json_is_array(args))
        return json_is_null(args) || json_is_false(args);
    if (json_is_false(json_array_get(args, 0)))
        return true;
    json_array_foreach(args, i, value) {
        if (!json_is_object(value) || !is_off(value))
            return false;
    }
    return true;
}

static bool check_scripts(const json_t *fields, struct error *err) {
    const json_t *scripts = json_object_get(fields, "alwayson_scripts");
    const char *script, *name;
    json_t *value;
    if (!get_text(fields, "script_name", &script, err))
        return false;
    if (*script)
        return error_field(err, "script_name", script, "there are no scripts here");
    if (!json_is_object(scripts))
        return json_bad_field("alwayson_scripts", scripts, "a valid dictionary", err);
    json_object_foreach((json_t *)scripts, name, value) {
        if (!is_off(value))
            return error_field(err, "alwayson_scripts", name,
                "there are no scripts here; one that is not enabled is passed over");
    }
    return true;
}

/* Adds a comment to the answer. */
static bool comment(struct sdapi_request *out, struct error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool comment(struct sdapi_request *out, struct error *err, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return json_array_append_new(out->comments, json_lenient_string(text)) == 0 ||
           error_set(err, ERROR_NO_MEMORY, "no memory for a comment");
}

/* Merges one style into both prompts. A model's default replaces only a negative prompt that
 * neither the body nor a style has set. */
static bool apply_style(
    const struct sdapi_style *style, struct generate_request *generate, struct error *err) {
    struct error why = { 0 };
    if (sdapi_style_merge(style->prompt, &generate->prompts[0], &why) &&
        sdapi_style_merge(style->negative_prompt, &generate->negative_prompt, &why)) {
        if (generate->negative_prompt[0])
            generate->assumed &= ~(UINT64_C(1) << GENERATE_negative_prompt);
        return true;
    }
    if (why.code == ERROR_INVALID)
        return error_field(err, "styles", style->name,
            "styles with which a prompt has at most %d bytes", PROMPT_MAX_BYTES);
    *err = why;
    return false;
}

/* Applies the styles, in their order. AUTOMATIC1111 passes over styles that it does not have. Call
 * after read_prompts. */
static bool apply_styles(const json_t *fields, const struct sdapi_styles *known,
    struct sdapi_request *out, struct error *err) {
    const json_t *styles = json_object_get(fields, "styles"), *name;
    char count[32];
    size_t i;
    if (!json_is_array(styles))
        return json_bad_field("styles", styles, "a valid list", err);
    snprintf(count, sizeof(count), "%zu names", json_array_size(styles));
    if (json_array_size(styles) > STYLES_PER_REQUEST_MAX)
        return error_field(err, "styles", count, "at most %d names", STYLES_PER_REQUEST_MAX);
    json_array_foreach((json_t *)styles, i, name) {
        if (!json_is_string(name))
            return json_bad_field("styles", name, "a valid string", err);
        const struct sdapi_style *style = sdapi_styles_find(known, json_string_value(name));
        if (style ? !apply_style(style, &out->generate, err)
                  : !comment(
                        out, err, "styles: there is no style \"%.100s\"", json_string_value(name)))
            return false;
    }
    return true;
}

/* Fields that have no effect here. Unless they have a value that has none in AUTOMATIC1111 either,
 * a comment says so. */
static bool comment_ignored(const json_t *fields, struct sdapi_request *out, struct error *err) {
    static const struct {
        const char *name, *neutral, *other; /* as JSON; null is neutral too */
    } rows[] = {
        { "restore_faces", "false", NULL },
        { "tiling", "false", NULL },
        { "s_churn", "0", "0.0" },
        { "s_tmin", "0", "0.0" },
        { "s_noise", "1", "1.0" },
        { "s_min_uncond", "0", "0.0" },
        { "refiner_checkpoint", "\"\"", "\"None\"" },
    };
    bool ok = true;
    for (size_t i = 0; ok && i < ARRAY_SIZE(rows); i++) {
        const json_t *value = json_object_get(fields, rows[i].name);
        if (!json_is_null(value) && !sdapi_json_is(value, rows[i].neutral) &&
            !sdapi_json_is(value, rows[i].other))
            ok = comment(out, err, "%s has no effect here", rows[i].name);
    }
    return ok;
}

static bool check_hires(const json_t *fields, struct error *err) {
    bool on;
    return get_flag(fields, "enable_hr", &on, err) &&
           (!on || error_field(err, "enable_hr", "true", "false: there is no hires fix here"));
}

/* --- fields of both kinds of request --- */

/* Reads width or height. AUTOMATIC1111 draws latents of an eighth of the size, rounded down. */
static bool read_side(
    const json_t *fields, const char *name, int *px, struct sdapi_request *out, struct error *err) {
    if (!get_int(fields, name, px, err))
        return false;
    const bool in_range = *px > IMAGE_MIN_PX && *px < IMAGE_MAX_PX + IMAGE_MULTIPLE_PX;
    const int rest = in_range ? *px % IMAGE_MULTIPLE_PX : 0;
    *px -= rest;
    return rest == 0 || comment(out, err, "%s: %d is rounded down to %d", name, *px + rest, *px);
}

/* Reads one of stable-diffusion.cpp's LoRAs: {"path": FILE, "multiplier": WEIGHT}. */
static bool read_lora(const json_t *item, struct lora_choice *out, struct error *err) {
    static const char suffix[] = ".safetensors";
    const json_t *multiplier = json_object_get(item, "multiplier");
    const char *path = json_string_value(json_object_get(item, "path"));
    size_t length = path ? strlen(path) : 0;
    if (length > strlen(suffix) && strcmp(path + length - strlen(suffix), suffix) == 0)
        length -= strlen(suffix);
    if (length == 0 || length > ADAPTER_NAME_MAX_BYTES)
        return json_bad_field("lora", item, "{\"path\": a name of GET /sdapi/v1/loras, ...}", err);
    *out = (struct lora_choice){ .weight = 1 };
    memcpy(out->name, path, length);
    if (multiplier && !to_number(multiplier, &out->weight))
        return json_bad_field("lora", multiplier, "a multiplier that is a valid number", err);
    out->text_encoder_weight = out->weight;
    return true;
}

/* Reads the field "lora" of stable-diffusion.cpp's server. */
static bool read_loras(const json_t *body, struct generate_request *generate, struct error *err) {
    const json_t *list = json_object_get(body, "lora");
    const size_t count = json_array_size(list);
    if (!list || json_is_null(list))
        return true;
    if (!json_is_array(list) || count > LORAS_PER_REQUEST_MAX)
        return json_bad_field("lora", list, "a list of at most 64 {\"path\", \"multiplier\"}", err);
    generate->loras = calloc(count + 1, sizeof(*generate->loras));
    if (!generate->loras)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the LoRAs");
    generate->loras_given = count > 0;
    for (size_t i = 0; i < count; i++, generate->lora_count++)
        if (!read_lora(json_array_get(list, i), &generate->loras[i], err))
            return false;
    return true;
}

static bool read_prompts(
    const json_t *fields, struct generate_request *generate, struct error *err) {
    generate->prompts = calloc(1, sizeof(*generate->prompts));
    if (!generate->prompts)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the prompt");
    if (!copy_text(fields, "prompt", &generate->prompts[0], err))
        return false;
    generate->prompt_count = 1;
    return copy_text(fields, "negative_prompt", &generate->negative_prompt, err);
}

/* Reads a seed; a negative one means a random seed. The maximum leaves room for the seeds of the
 * request's other images, which count up from it. */
static bool read_seed(
    const json_t *fields, const char *name, uint64_t *out, bool *given, struct error *err) {
    const json_t *value = json_object_get(fields, name);
    int64_t seed;
    if (!to_integer(value, &seed) || seed > SEED_MAX)
        return json_bad_field(name, value, "an integer below 2^63; -1 for a random one", err);
    *given = seed >= 0;
    *out = seed >= 0 ? (uint64_t)seed : 0;
    return true;
}

/* Reads a size from which the seed is resized. It is off, as in AUTOMATIC1111, unless both sides
 * are above 0. */
static bool read_seed_resize(const json_t *fields, struct sdapi_request *out, struct error *err) {
    struct generate_request *generate = &out->generate;
    int *const width = &generate->seed_resize_from_w, *const height = &generate->seed_resize_from_h;
    if (!read_side(fields, "seed_resize_from_w", width, out, err) ||
        !read_side(fields, "seed_resize_from_h", height, out, err))
        return false;
    if (*width > 0 && *height > 0)
        return true;
    const bool half = *width > 0 || *height > 0;
    const char *given = *width > 0 ? "seed_resize_from_w" : "seed_resize_from_h";
    *width = *height = 0;
    return !half || comment(out, err, "%s has no effect without the other side", given);
}

static bool read_variation(const json_t *fields, struct sdapi_request *out, struct error *err) {
    struct generate_request *generate = &out->generate;
    return read_seed(fields, "subseed", &generate->subseed, &generate->subseed_given, err) &&
           get_number(fields, "subseed_strength", &generate->subseed_strength, err) &&
           read_seed_resize(fields, out, err);
}

static bool read_counts(const json_t *fields, struct sdapi_request *out, struct error *err) {
    char value[32];
    if (!get_int_between(fields, "batch_size", 1, IMAGES_PER_REQUEST_MAX, &out->batch_size, err) ||
        !get_int_between(fields, "n_iter", 1, IMAGES_PER_REQUEST_MAX, &out->n_iter, err))
        return false;
    out->generate.num_images = out->batch_size * out->n_iter;
    snprintf(value, sizeof(value), "%d", out->n_iter);
    return out->generate.num_images <= IMAGES_PER_REQUEST_MAX ||
           error_field(err, "n_iter", value, "with batch_size %d at most %d images in all",
               out->batch_size, IMAGES_PER_REQUEST_MAX);
}

static bool read_sampler(const json_t *fields, struct sdapi_request *out, struct error *err) {
    const json_t *eta_value = json_object_get(fields, "eta");
    const char *name, *index, *schedule;
    if (!get_text(fields, "sampler_name", &name, err) ||
        !get_text(fields, "sampler_index", &index, err) ||
        !get_text(fields, "scheduler", &schedule, err) ||
        (!json_is_null(eta_value) && !get_number(fields, "eta", &out->eta, err)) ||
        !sdapi_sampling_find(
            *name ? name : index, *schedule ? schedule : NULL, &out->sampling, err))
        return false;
    out->eta_given = !json_is_null(eta_value);
    if (out->sampling.sampler->takes_eta && (out->eta < 0 || out->eta > 1))
        return json_bad_field("eta", eta_value, "a number from 0 to 1", err);
    sdapi_sampling_choose(
        &out->sampling, out->eta_given ? &out->eta : NULL, &out->generate.scheduler);
    return true;
}

/* Applies AUTOMATIC1111's options for this request only. The caller handles the checkpoint. */
static bool read_overrides(const json_t *fields, struct sdapi_request *out, struct error *err) {
    json_t *vae;
    const json_t *overrides = json_object_get(fields, "override_settings");
    const json_t *checkpoint = json_object_get(overrides, "sd_model_checkpoint");
    struct generate_request *generate = &out->generate;
    if (!json_is_object(overrides))
        return json_bad_field("override_settings", overrides, "a valid dictionary", err);
    if (checkpoint && !json_is_null(checkpoint)) {
        if (!json_is_string(checkpoint))
            return json_bad_field("override_settings.sd_model_checkpoint", checkpoint,
                "a title of GET /sdapi/v1/sd-models", err);
        out->checkpoint = strdup(json_string_value(checkpoint));
        if (!out->checkpoint)
            return error_set(err, ERROR_NO_MEMORY, "no memory for the checkpoint's name");
    }
    if (!sdapi_settings_read(&out->settings, overrides, "override_settings.", err))
        return false;
    vae = sdapi_settings_vae(&out->settings);
    const bool ok = !vae || comment(out, err,
                                "sd_vae: there is no VAE \"%.100s\"; the checkpoint's "
                                "own is used",
                                json_string_value(vae));
    json_decref(vae);
    if (!ok)
        return false;
    generate->clip_skip = out->settings.clip_stop_at_last_layers - 1;
    generate->rng = out->settings.rng;
    generate->format = out->settings.samples_format;
    generate->format_given = true;
    generate->quality = generate->format == PICTURE_PNG ? 0 : out->settings.jpeg_quality;
    return true;
}

static bool read_task_id(const json_t *fields, struct sdapi_request *out, struct error *err) {
    const char *id;
    if (!get_text(fields, "force_task_id", &id, err))
        return false;
    if (strlen(id) > SDAPI_TASK_ID_MAX_BYTES)
        return json_bad_field("force_task_id", json_object_get(fields, "force_task_id"),
            "a string of at most 128 bytes", err);
    snprintf(out->task_id, sizeof(out->task_id), "%s", id);
    return true;
}

static bool read_common(const json_t *fields, const struct sdapi_styles *styles,
    struct sdapi_request *out, struct error *err) {
    struct generate_request *generate = &out->generate;
    return check_scripts(fields, err) && comment_ignored(fields, out, err) &&
           read_prompts(fields, generate, err) && apply_styles(fields, styles, out, err) &&
           read_seed(fields, "seed", &generate->seed, &generate->seed_given, err) &&
           read_variation(fields, out, err) &&
           get_int(fields, "steps", &generate->num_inference_steps, err) &&
           get_number(fields, "cfg_scale", &generate->guidance_scale, err) &&
           read_side(fields, "width", &generate->width, out, err) &&
           read_side(fields, "height", &generate->height, out, err) &&
           read_counts(fields, out, err) && read_sampler(fields, out, err) &&
           read_overrides(fields, out, err) && read_task_id(fields, out, err) &&
           get_flag(fields, "send_images", &out->send_images, err);
}

/* --- pictures --- */

bool sdapi_decode_picture(const char *text, struct picture_file *out, struct error *err) {
    if (strncasecmp(text, "http://", 7) == 0 || strncasecmp(text, "https://", 8) == 0)
        return error_set(err, ERROR_INVALID, "Requests not allowed");
    const char *comma = strncmp(text, "data:", 5) == 0 ? strchr(text, ',') : NULL;
    if (comma)
        text = comma + 1;
    size_t wrong, length = strlen(text);
    if (length > 0 && base64_decode(text, length, &out->bytes, &out->size, &wrong))
        return true;
    return length > 0 && wrong == SIZE_MAX
               ? error_set(err, ERROR_NO_MEMORY, "no memory for the picture")
               : error_set(err, ERROR_INVALID, "Invalid encoded image");
}

static bool read_init_images(
    const json_t *fields, struct generate_request *generate, struct error *err) {
    const json_t *images = json_object_get(fields, "init_images");
    char value[32];
    if (json_is_null(images) || (json_is_array(images) && json_array_size(images) == 0))
        return error_set(err, ERROR_NOT_FOUND, "Init image not found");
    if (!json_is_array(images))
        return json_bad_field("init_images", images, "a valid list", err);
    snprintf(value, sizeof(value), "%zu images", json_array_size(images));
    if (json_array_size(images) > 1)
        return error_field(err, "init_images", value, "one: each request begins with one picture");
    const json_t *image = json_array_get(images, 0);
    if (!json_is_string(image))
        return json_bad_field("init_images", image, "a valid string", err);
    return sdapi_decode_picture(json_string_value(image), &generate->init_image, err);
}

/* AUTOMATIC1111 runs int(min(denoising_strength, 0.999) * steps) + 1 of the steps, one more than
 * diffusers at the same strength. So the strength is set to the middle of the range for which
 * diffusers runs that many steps. */
static void set_strength(struct sdapi_request *out) {
    const double share = out->denoising_strength < 0.999 ? out->denoising_strength : 0.999;
    const int steps = out->generate.num_inference_steps, taken = (int)(share * steps) + 1;
    out->generate.strength = taken >= steps ? 1 : (taken + 0.5) / steps;
    out->generate.strength_given = true;
}

static bool read_blur(const json_t *fields, struct sdapi_inpainting *in, struct error *err) {
    const bool both = !json_is_null(json_object_get(fields, "mask_blur"));
    const char *x = both ? "mask_blur" : "mask_blur_x", *y = both ? "mask_blur" : "mask_blur_y";
    return get_int_between(fields, x, 0, SDAPI_MASK_BLUR_MAX_PX, &in->blur_x, err) &&
           get_int_between(fields, y, 0, SDAPI_MASK_BLUR_MAX_PX, &in->blur_y, err);
}

static bool read_fill(const json_t *fields, struct sdapi_inpainting *in, struct error *err) {
    int fill;
    if (!get_int_between(fields, "inpainting_fill", 0, SDAPI_FILLS - 1, &fill, err))
        return false;
    in->fill = (enum sdapi_fill)fill;
    return true;
}

static bool read_mask(const json_t *fields, struct sdapi_request *out, struct error *err) {
    struct sdapi_inpainting *in = &out->inpainting;
    const char *mask, *latent;
    bool round;
    if (!get_text(fields, "mask", &mask, err) || !get_text(fields, "latent_mask", &latent, err) ||
        !get_flag(fields, "mask_round", &round, err) || !read_blur(fields, in, err) ||
        !read_fill(fields, in, err) ||
        !get_flag(fields, "inpainting_mask_invert", &in->invert, err) ||
        !get_flag(fields, "inpaint_full_res", &in->full_res, err) ||
        !get_int_between(fields, "inpaint_full_res_padding", 0, IMAGE_MAX_PX, &in->padding, err))
        return false;
    if (*latent)
        return error_field(err, "latent_mask", "a picture", "null: only mask is there");
    if (!*mask)
        return true;
    in->given = true;
    return (round || error_field(err, "mask_round", "false", "true")) &&
           sdapi_decode_picture(mask, &in->mask, err);
}

static bool read_img2img(const json_t *fields, struct sdapi_request *out, struct error *err) {
    double multiplier = 1;
    const json_t *given = json_object_get(fields, "initial_noise_multiplier");
    if (!read_init_images(fields, &out->generate, err) || !read_mask(fields, out, err) ||
        !get_number(fields, "denoising_strength", &out->denoising_strength, err) ||
        !get_int(fields, "resize_mode", &out->resize_mode, err) ||
        (!json_is_null(given) && !get_number(fields, "initial_noise_multiplier", &multiplier, err)))
        return false;
    if (out->denoising_strength < 0 || out->denoising_strength > 1)
        return json_bad_field("denoising_strength", json_object_get(fields, "denoising_strength"),
            "a number from 0 to 1", err);
    if (out->resize_mode < 0 || out->resize_mode > 3)
        return json_bad_field("resize_mode", json_object_get(fields, "resize_mode"),
            "0 (just resize), 1 (crop and resize), 2 (resize and fill) or 3 (latent upscale)", err);
    if (multiplier != 1)
        return json_bad_field("initial_noise_multiplier", given, "1", err);
    static const enum resize_mode modes[] = { RESIZE_MODE_DEFAULT, RESIZE_MODE_CROP,
        RESIZE_MODE_FILL, RESIZE_MODE_LATENT };
    out->generate.resize_mode = modes[out->resize_mode];
    return true;
}

/* --- the whole request --- */

const char *sdapi_field_name(const char *param) {
    const struct generate_field *f = generate_field_named(param);
    if (f && f->sdapi)
        return f->sdapi;
    return strncmp(param, "loras[", 6) == 0 ? "lora" : param;
}

/* Checks the ranges that do not depend on the model. A size of 0 is refused, because natively it
 * means the model's default size. */
static bool check(const struct sdapi_request *request, struct error *err) {
    const struct generate_request *generate = &request->generate;
    struct error found = { 0 };
    if (generate->width == 0 || generate->height == 0)
        return error_field(err, generate->width == 0 ? "width" : "height", "0",
            "a multiple of %d from %d to %d", IMAGE_MULTIPLE_PX, IMAGE_MIN_PX, IMAGE_MAX_PX);
    if (generate_request_check(generate, &found))
        return true;
    if (found.code == ERROR_INVALID && found.param[0])
        return error_field(err, sdapi_field_name(found.param), found.value, "%s", found.allowed);
    if (err)
        *err = found;
    return false;
}

static bool read_all(const json_t *fields, const struct sdapi_styles *styles,
    struct sdapi_request *out, struct error *err) {
    if (!read_common(fields, styles, out, err))
        return false;
    if (out->kind == SDAPI_TXT2IMG)
        return check_hires(fields, err) && check(out, err);
    if (!read_img2img(fields, out, err))
        return false;
    if (out->generate.num_inference_steps >= 1) /* smaller numbers are refused by check() */
        set_strength(out);
    return check(out, err);
}

/* Keeps the fields that the answer repeats: all fields, but pictures only if the client wants
 * them. */
static bool keep_parameters(struct sdapi_request *out, struct error *err) {
    json_t *fields = out->parameters;
    bool wanted = false;
    if (out->kind == SDAPI_TXT2IMG)
        return true;
    if (!get_flag(fields, "include_init_images", &wanted, err))
        return false;
    json_object_del(fields, "include_init_images");
    return wanted || (json_object_set_new(fields, "init_images", json_null()) == 0 &&
                         json_object_set_new(fields, "mask", json_null()) == 0);
}

/* Looks at the fields whose default depends on the model. Notes which of them the body sets, and
 * which keep AUTOMATIC1111's default. */
static void note_given(
    const json_t *body, const json_t *fields, struct generate_request *generate) {
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++) {
        const struct generate_field *f = &generate_fields[id];
        const char *name = f->sdapi ? f->sdapi : f->name;
        const json_t *value = json_object_get(body, name);
        if (!f->by_model || f->kind == FIELD_OTHER || !json_object_get(fields, name))
            continue;
        if (value && !json_is_null(value))
            generate_field_set_given(f, generate);
        else
            generate->assumed |= UINT64_C(1) << id;
    }
    static const char *const sampling[] = { "sampler_name", "sampler_index", "scheduler" };
    bool named = false;
    for (size_t i = 0; i < sizeof(sampling) / sizeof(sampling[0]); i++) {
        const json_t *value = json_object_get(body, sampling[i]);
        named = named || (value && !json_is_null(value));
    }
    if (!named)
        generate->assumed |= UINT64_C(1) << GENERATE_scheduler;
}

bool sdapi_request_parse(enum sdapi_kind kind, const char *text, size_t length,
    const struct sdapi_settings *settings, const struct sdapi_styles *styles,
    struct sdapi_request *out, struct error *err) {
    struct sdapi_request request = { .kind = kind, .settings = *settings };
    struct error why;
    json_t *body = json_parse_request(text, length, &why);
    if (!body)
        return error_field(err, "body", "what came", "JSON; %.400s", why.message);
    generate_request_init(&request.generate);
    request.generate.prompt_syntax = PROMPT_SYNTAX_A1111;
    request.generate.unknown_tags_pass = true;
    bool ok = json_is_object(body) || error_field(err, "body", "no object", "a valid dictionary");
    request.parameters = ok ? all_fields(kind, body) : NULL;
    request.comments = json_array();
    if (ok && (!request.parameters || !request.comments))
        ok = error_set(err, ERROR_NO_MEMORY, "no memory for the request");
    if (ok)
        note_given(body, request.parameters, &request.generate);
    ok = ok && read_loras(body, &request.generate, err);
    json_decref(body);
    ok = ok && read_all(request.parameters, styles, &request, err) &&
         keep_parameters(&request, err);
    if (ok)
        *out = request;
    else
        sdapi_request_finish(&request);
    return ok;
}

void sdapi_request_finish(struct sdapi_request *request) {
    generate_request_finish(&request->generate);
    free(request->inpainting.mask.bytes);
    sdapi_canvas_finish(&request->canvas);
    free(request->checkpoint);
    json_decref(request->parameters);
    json_decref(request->comments);
    memset(request, 0, sizeof(*request));
}
