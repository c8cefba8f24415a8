#include "server/generation/generate_json.h"

#include "base/limits.h"
#include "base/text/base64.h"
#include "base/text/json.h"
#include "server/schedulers/schedulers.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An integer that fits an int; its range is generate_request_check's business, which sees anything
 * larger as INT_MAX and refuses it there. */
static bool parse_int(const char *name, const json_t *value, int *out, struct error *err) {
    int64_t integer;
    if (!json_exact_integer(value, &integer))
        return json_bad_field(name, value, "an integer", err);
    *out = integer > INT_MAX ? INT_MAX : integer < INT_MIN ? INT_MIN : (int)integer;
    return true;
}

static bool parse_number(const char *name, const json_t *value, double *out, struct error *err) {
    if (!json_is_number(value))
        return json_bad_field(name, value, "a number", err);
    *out = json_number_value(value);
    return true;
}

static bool parse_text(const char *name, const json_t *value, char **out, struct error *err) {
    if (!json_is_string(value))
        return json_bad_field(name, value, "a string", err);
    *out = strdup(json_string_value(value));
    return *out || error_set(err, ERROR_NO_MEMORY, "no memory for %s", name);
}

static bool parse_prompt(const json_t *value, struct generate_request *request, struct error *err) {
    size_t count = json_is_array(value) ? json_array_size(value) : json_is_string(value) ? 1 : 0;
    if (count < 1 || count > IMAGES_PER_REQUEST_MAX) {
        char text[128];
        return error_field(err, "prompt", json_describe(value, text, sizeof(text)),
            "a string or a list of 1 to %d strings", IMAGES_PER_REQUEST_MAX);
    }
    request->prompts = calloc(count, sizeof(*request->prompts));
    if (!request->prompts)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the prompt");
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        if (!parse_text("prompt", item, &request->prompts[i], err))
            return false;
        request->prompt_count++;
    }
    return true;
}

static bool parse_negative_prompt(
    const json_t *value, struct generate_request *request, struct error *err) {
    return parse_text("negative_prompt", value, &request->negative_prompt, err);
}

static bool parse_model(const json_t *value, struct generate_request *request, struct error *err) {
    return parse_text("model", value, &request->model, err);
}

static bool parse_vae_tiling(
    const json_t *value, struct generate_request *request, struct error *err) {
    const char *word = json_string_value(value);
    return (word && choice_from_name(word, &request->vae_tiling)) ||
           json_bad_field("vae_tiling", value,
               "\"auto\", \"on\" or \"off\": decode and encode large pictures in tiles", err);
}

static bool parse_width(const json_t *value, struct generate_request *request, struct error *err) {
    return parse_int("width", value, &request->width, err) &&
           (request->width != 0 ||
               json_bad_field("width", value, "leave it out for the model's size", err));
}

static bool parse_height(const json_t *value, struct generate_request *request, struct error *err) {
    return parse_int("height", value, &request->height, err) &&
           (request->height != 0 ||
               json_bad_field("height", value, "leave it out for the model's size", err));
}

static bool parse_steps(const json_t *value, struct generate_request *request, struct error *err) {
    return parse_int("num_inference_steps", value, &request->num_inference_steps, err);
}

static bool parse_guidance_scale(
    const json_t *value, struct generate_request *request, struct error *err) {
    return parse_number("guidance_scale", value, &request->guidance_scale, err);
}

static bool parse_guidance_rescale(
    const json_t *value, struct generate_request *request, struct error *err) {
    return parse_number("guidance_rescale", value, &request->guidance_rescale, err);
}

static bool parse_seed(const json_t *value, struct generate_request *request, struct error *err) {
    int64_t seed;
    if (!json_exact_integer(value, &seed) || seed < 0 || seed > SEED_MAX) {
        char text[128];
        return error_field(err, "seed", json_describe(value, text, sizeof(text)),
            "an integer from 0 to %" PRId64 "; leave it out for a random one", (int64_t)SEED_MAX);
    }
    request->seed = (uint64_t)seed;
    request->seed_given = true;
    return true;
}

static bool parse_rng(const json_t *value, struct generate_request *request, struct error *err) {
    const char *word = json_string_value(value);
    return (word && rng_kind_from_name(word, &request->rng)) ||
           json_bad_field("rng", value, "\"cpu\" or \"cuda\": torch's two generators", err);
}

static bool parse_num_images(
    const json_t *value, struct generate_request *request, struct error *err) {
    return parse_int("num_images", value, &request->num_images, err);
}

static bool parse_clip_skip(
    const json_t *value, struct generate_request *request, struct error *err) {
    return parse_int("clip_skip", value, &request->clip_skip, err);
}

static bool parse_long_prompt(
    const json_t *value, struct generate_request *request, struct error *err) {
    const char *word = json_string_value(value);
    request->long_prompt_given = true;
    return (word && long_prompt_from_name(word, &request->long_prompt)) ||
           json_bad_field("long_prompt", value, LONG_PROMPT_ALLOWED, err);
}

static bool parse_prompt_syntax(
    const json_t *value, struct generate_request *request, struct error *err) {
    const char *word = json_string_value(value);
    return (word && prompt_syntax_from_name(word, &request->prompt_syntax)) ||
           json_bad_field("prompt_syntax", value, PROMPT_SYNTAX_ALLOWED, err);
}

static bool decode_base64(const char *name, const char *text, size_t length, void **out,
    size_t *size, struct error *err) {
    size_t wrong;
    if (base64_decode(text, length, out, size, &wrong))
        return true;
    if (wrong == SIZE_MAX)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %s", name);
    char found[64];
    if (wrong < length)
        snprintf(found, sizeof(found), "0x%02x at character %zu of %zu", (unsigned char)text[wrong],
            wrong, length);
    else
        snprintf(found, sizeof(found), "%zu characters", length);
    return error_field(err, name, found, "base64 with its padding and nothing else (RFC 4648)");
}

/* [texts][tokens][width], or of one text [tokens][width], each of 1 or more; *count of them all. */
static bool parse_shape(const json_t *shape, struct encoded_texts *out, int64_t *count) {
    int64_t *const sides[3] = { &out->texts, &out->tokens, &out->width };
    const size_t rank = json_array_size(shape);
    *count = out->texts = 1;
    if (rank != 2 && rank != 3)
        return false;
    for (size_t i = 0; i < rank; i++) {
        int64_t *side = sides[i + 3 - rank];
        if (!json_exact_integer(json_array_get(shape, i), side) || *side < 1 ||
            *side > INT64_C(1) << 20)
            return false;
        *count *= *side;
    }
    return true;
}

/* {"b64": float32, little-endian, "shape"}; as latents are answered, also with their "dtype". */
static bool parse_encoded(
    const char *name, const json_t *value, struct encoded_texts *out, struct error *err) {
    static const char form[] =
        "{\"b64\": BASE64, \"dtype\": \"float32\", \"shape\": [TEXTS, TOKENS, "
        "WIDTH]}, little-endian";
    const json_t *b64 = json_object_get(value, "b64"), *dtype = json_object_get(value, "dtype");
    char param[64], found[96];
    int64_t count;
    size_t size;
    void *bytes;
    if (!json_is_string(b64) || !parse_shape(json_object_get(value, "shape"), out, &count) ||
        (dtype && (!json_is_string(dtype) || strcmp(json_string_value(dtype), "float32") != 0)) ||
        json_object_size(value) != (dtype ? 3 : 2))
        return json_bad_field(name, value, form, err);
    snprintf(param, sizeof(param), "%s.b64", name);
    if (!decode_base64(param, json_string_value(b64), json_string_length(b64), &bytes, &size, err))
        return false;
    out->values = bytes;
    snprintf(found, sizeof(found), "%zu bytes", size);
    return size == (size_t)count * sizeof(float) ||
           error_field(
               err, param, found, "4 bytes for each of the shape's %lld numbers", (long long)count);
}

static bool parse_prompt_embeds(
    const json_t *value, struct generate_request *request, struct error *err) {
    return parse_encoded("prompt_embeds", value, &request->prompt_embeds, err);
}

static bool parse_negative_prompt_embeds(
    const json_t *value, struct generate_request *request, struct error *err) {
    return parse_encoded("negative_prompt_embeds", value, &request->negative_prompt_embeds, err);
}

/* Base64, or a data URL of it, whose media type is not asked: the bytes say what they are. */
static bool parse_picture(
    const char *name, const json_t *value, struct picture_file *out, struct error *err) {
    const char *text = json_string_value(value);
    size_t length = json_string_length(value);
    if (!text || length == 0)
        return json_bad_field(name, value, "the base64 of a PNG or JPEG file, or a data URL", err);
    const char *comma = strncmp(text, "data:", 5) == 0 ? memchr(text, ',', length) : NULL;
    if (strncmp(text, "data:", 5) == 0) {
        if (!comma || comma - text < 12 || strncmp(comma - 7, ";base64", 7) != 0)
            return json_bad_field(name, value, "a data URL as data:image/png;base64,...", err);
        length -= (size_t)(comma + 1 - text);
        text = comma + 1;
    }
    return decode_base64(name, text, length, &out->bytes, &out->size, err);
}

static bool parse_init_image(
    const json_t *value, struct generate_request *request, struct error *err) {
    return parse_picture("init_image", value, &request->init_image, err);
}

static bool parse_mask_image(
    const json_t *value, struct generate_request *request, struct error *err) {
    return parse_picture("mask_image", value, &request->mask_image, err);
}

static bool parse_strength(
    const json_t *value, struct generate_request *request, struct error *err) {
    request->strength_given = true;
    return parse_number("strength", value, &request->strength, err);
}

static bool parse_resize_mode(
    const json_t *value, struct generate_request *request, struct error *err) {
    const char *word = json_string_value(value);
    return (word && resize_mode_from_name(word, &request->resize_mode)) ||
           json_bad_field("resize_mode", value, RESIZE_MODE_ALLOWED, err);
}

static bool parse_output(const json_t *value, struct generate_request *request, struct error *err) {
    const char *word = json_string_value(value);
    request->latent_output = word && strcmp(word, "latent") == 0;
    request->format_given = word && picture_format_from_name(word, &request->format);
    return request->latent_output || request->format_given ||
           json_bad_field("output", value, "\"png\", \"jpeg\", \"webp\" or \"latent\"", err);
}

static bool parse_quality(
    const json_t *value, struct generate_request *request, struct error *err) {
    return parse_int("quality", value, &request->quality, err) &&
           (request->quality != 0 ||
               json_bad_field("quality", value, "an integer from 1 to 100", err));
}

static bool parse_timeout(
    const json_t *value, struct generate_request *request, struct error *err) {
    if (!parse_number("timeout_s", value, &request->timeout_s, err))
        return false;
    return request->timeout_s != 0 || /* which is no limit, in the request */
           error_field(err, "timeout_s", "0", TIMEOUT_ALLOWED, TIMEOUT_MAX_S);
}

static bool parse_priority(
    const json_t *value, struct generate_request *request, struct error *err) {
    return parse_int("priority", value, &request->priority, err);
}

/* A member of loras[index]. */
static bool parse_lora_member(int index, const char *key, const json_t *value,
    struct lora_choice *out, bool *text_encoder_given, struct error *err) {
    char param[64];
    snprintf(param, sizeof(param), "loras[%d].%.40s", index, key);
    if (strcmp(key, "weight") == 0)
        return parse_number(param, value, &out->weight, err);
    if (strcmp(key, "text_encoder_weight") == 0) {
        *text_encoder_given = true;
        return parse_number(param, value, &out->text_encoder_weight, err);
    }
    if (strcmp(key, "name") != 0)
        return json_bad_field(param, value, "known are name, weight and text_encoder_weight", err);
    const char *name = json_string_value(value);
    if (!name || !name[0] || strlen(name) > ADAPTER_NAME_MAX_BYTES)
        return json_bad_field(param, value, "the name of an adapter; GET /loras lists them", err);
    snprintf(out->name, sizeof(out->name), "%s", name);
    return true;
}

static bool parse_lora(int index, const json_t *value, struct lora_choice *out, struct error *err) {
    const char *key;
    json_t *member;
    char param[64];
    bool text_encoder_given = false;
    snprintf(param, sizeof(param), "loras[%d]", index);
    if (!json_is_object(value))
        return json_bad_field(
            param, value, "{\"name\": TEXT, \"weight\": 1, \"text_encoder_weight\": 1}", err);
    *out = (struct lora_choice){ .weight = 1 };
    json_object_foreach((json_t *)value, key, member) {
        if (!parse_lora_member(index, key, member, out, &text_encoder_given, err))
            return false;
    }
    if (!out->name[0])
        return json_bad_field(param, value, "with the name of an adapter", err);
    if (!text_encoder_given)
        out->text_encoder_weight = out->weight;
    return true;
}

static bool parse_loras(const json_t *value, struct generate_request *request, struct error *err) {
    const size_t count = json_array_size(value);
    if (!json_is_array(value) || count > LORAS_PER_REQUEST_MAX) {
        char text[128];
        return error_field(err, "loras", json_describe(value, text, sizeof(text)),
            "a list of at most %d objects with name, weight and text_encoder_weight",
            LORAS_PER_REQUEST_MAX);
    }
    request->loras_given = true;
    request->loras = calloc(count + 1, sizeof(*request->loras)); /* never of nothing */
    if (!request->loras)
        return error_set(err, ERROR_NO_MEMORY, "no memory for loras");
    for (size_t i = 0; i < count; i++, request->lora_count++)
        if (!parse_lora((int)i, json_array_get(value, i), &request->loras[i], err))
            return false;
    return true;
}

static bool parse_scheduler(
    const json_t *value, struct generate_request *request, struct error *err) {
    return scheduler_choice_from_json(value, &request->scheduler, err);
}

typedef bool parse_field(const json_t *value, struct generate_request *request, struct error *err);

static const struct {
    const char *name;
    parse_field *parse;
    const char *types; /* of JSON, for GET /openapi.json, with spaces between; NULL: any */
    const char *about; /* the same: what types do not say; or NULL */
} fields[] = {
    { "prompt", parse_prompt, "string array" },
    { "negative_prompt", parse_negative_prompt, "string" },
    { "prompt_embeds", parse_prompt_embeds, "object" },
    { "negative_prompt_embeds", parse_negative_prompt_embeds, "object" },
    { "width", parse_width, "integer" },
    { "height", parse_height, "integer" },
    { "num_inference_steps", parse_steps, "integer" },
    { "guidance_scale", parse_guidance_scale, "number" },
    { "guidance_rescale", parse_guidance_rescale, "number" },
    { "scheduler", parse_scheduler },
    { "seed", parse_seed, "integer" },
    { "rng", parse_rng, "string" },
    { "num_images", parse_num_images, "integer" },
    { "clip_skip", parse_clip_skip, "integer" },
    { "long_prompt", parse_long_prompt, "string" },
    { "prompt_syntax", parse_prompt_syntax, "string" },
    { "output", parse_output, "string" },
    { "quality", parse_quality, "integer" },
    { "timeout_s", parse_timeout, "number" },
    { "loras", parse_loras, "array" },
    { "priority", parse_priority, "integer",
        "larger ones are drawn sooner; above 0 with an API key that may, where there are keys" },
    { "init_image", parse_init_image, "string" },
    { "strength", parse_strength, "number" },
    { "mask_image", parse_mask_image, "string" },
    { "resize_mode", parse_resize_mode, "string" },
    { "model", parse_model, "string" },
    { "vae_tiling", parse_vae_tiling, "string" },
};

/* --- How the answer is to come --- */

static bool parse_stream(
    const json_t *value, struct generate_delivery *delivery, struct error *err) {
    delivery->stream = json_is_true(value);
    return json_is_boolean(value) || json_bad_field("stream", value, "true or false", err);
}

static bool parse_preview_every(
    const json_t *value, struct generate_delivery *delivery, struct error *err) {
    char text[128];
    return (parse_int("preview_every", value, &delivery->preview_every, err) &&
               delivery->preview_every >= 0 && delivery->preview_every <= STEPS_MAX) ||
           error_field(err, "preview_every", json_describe(value, text, sizeof(text)),
               "an integer from 0 (none) to %d: steps from one preview to the next", STEPS_MAX);
}

static bool parse_preview(
    const json_t *value, struct generate_delivery *delivery, struct error *err) {
    const char *word = json_string_value(value);
    delivery->preview = word && strcmp(word, "vae") == 0 ? PREVIEW_VAE : PREVIEW_RGB;
    return (word && (strcmp(word, "rgb") == 0 || strcmp(word, "vae") == 0)) ||
           json_bad_field("preview", value,
               "\"rgb\" (a linear map of the latents) or \"vae\" (a decode)", err);
}

typedef bool parse_delivery(
    const json_t *value, struct generate_delivery *delivery, struct error *err);

static const struct {
    const char *name;
    parse_delivery *parse;
    const char *types; /* as above */
} deliveries[] = {
    { "stream", parse_stream, "boolean" },
    { "preview_every", parse_preview_every, "integer" },
    { "preview", parse_preview, "string" },
};

const char *generate_json_field(size_t index) {
    const size_t count = sizeof(fields) / sizeof(fields[0]);
    if (index < count)
        return fields[index].name;
    index -= count;
    return index < sizeof(deliveries) / sizeof(deliveries[0]) ? deliveries[index].name : NULL;
}

static json_t *types_schema(const char *types) {
    json_t *list = json_array();
    for (const char *at = types ? types : ""; *at; at += strspn(at, " ")) {
        json_array_append_new(list, json_stringn(at, strcspn(at, " ")));
        at += strcspn(at, " ");
    }
    if (types)
        return json_pack("{s:o}", "type", list);
    json_decref(list);
    return json_object();
}

static json_t *field_schema(const char *types, const char *about) {
    json_t *schema = types_schema(types);
    if (about)
        json_object_set_new(schema, "description", json_string(about));
    return schema;
}

json_t *generate_json_schema(void) {
    json_t *properties = json_object();
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (fields[i].parse == parse_scheduler)
            json_object_set_new(properties, fields[i].name, scheduler_choice_schema());
        else
            json_object_set_new(
                properties, fields[i].name, field_schema(fields[i].types, fields[i].about));
    for (size_t i = 0; i < sizeof(deliveries) / sizeof(deliveries[0]); i++)
        json_object_set_new(properties, deliveries[i].name, types_schema(deliveries[i].types));
    return json_pack("{s:s, s:o, s:[{s:[s]}, {s:[s]}]}", "type", "object", "properties", properties,
        "anyOf", "required", "prompt", "required", "prompt_embeds");
}

bool generate_json_parse_field(
    const char *key, const json_t *value, struct generate_request *request, struct error *err) {
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (strcmp(key, fields[i].name) == 0)
            return fields[i].parse(value, request, err);
    return json_bad_field(key, value, "there is no such field", err);
}

static bool parse_one(const char *key, const json_t *value, struct generate_request *request,
    struct generate_delivery *delivery, struct error *err) {
    for (size_t i = 0; i < sizeof(deliveries) / sizeof(deliveries[0]); i++)
        if (strcmp(key, deliveries[i].name) == 0)
            return deliveries[i].parse(value, delivery, err);
    return generate_json_parse_field(key, value, request, err);
}

/* generate_request_check knows the range; only here is the value known as it came. */
static bool check_ranges(
    const json_t *root, const struct generate_request *request, struct error *err) {
    struct error found = { 0 };
    if (generate_request_check(request, &found))
        return true;
    const json_t *value = json_object_get(root, found.param);
    if (json_is_number(value) && found.code == ERROR_INVALID)
        return json_bad_field(found.param, value, found.allowed, err);
    if (err)
        *err = found;
    return false;
}

bool generate_json_read(const json_t *root, struct generate_request *out,
    struct generate_delivery *delivery, struct error *err) {
    if (!json_is_object(root))
        return error_set(err, ERROR_INVALID, "the body must be a JSON object");
    struct generate_request request = { 0 };
    *delivery = (struct generate_delivery){ 0 };
    generate_request_init(&request);
    bool ok = true;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value) {
        ok = parse_one(key, value, &request, delivery, err);
        if (!ok)
            break;
    }
    if (ok && !json_object_get(root, "prompt") && !json_object_get(root, "prompt_embeds"))
        ok = error_field(err, "prompt", "", "it is required: a string or a list of strings");
    const json_t *preview = json_object_get(root, "preview");
    if (ok && preview && delivery->preview_every == 0)
        ok = json_bad_field("preview", preview, "only with a preview_every above 0", err);
    ok = ok && check_ranges(root, &request, err);
    if (ok)
        *out = request;
    else
        generate_request_finish(&request);
    return ok;
}

bool generate_json_parse(const char *text, size_t length, struct generate_request *out,
    struct generate_delivery *delivery, struct error *err) {
    if (length == 0)
        return error_set(err, ERROR_INVALID, "the body is empty; it must be a JSON object");
    json_t *root = json_parse_request(text, length, err);
    if (!root)
        return error_prefix(err, "the body");
    const bool ok = generate_json_read(root, out, delivery, err);
    json_decref(root);
    return ok;
}
