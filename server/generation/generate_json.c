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

/* Parses a shape: [texts, tokens, width], or [tokens, width] for one text. Each number is at least
 * 1; *count is their product. */
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

/* Parses {"b64", "shape"}, where b64 is float32, little-endian. A "dtype" is also allowed, so that
 * latents can be sent as they were answered. */
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

#define ENCODED_SCHEMA                                                                             \
    "{\"type\": \"object\", \"required\": [\"b64\", \"shape\"], \"properties\": {"                 \
    "\"b64\": {\"type\": \"string\"}, \"dtype\": {\"const\": \"float32\"}, \"shape\": {\"type\": " \
    "\"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 2, \"maxItems\": 3}}}"

static bool parse_prompt_embeds(
    const json_t *value, struct generate_request *request, struct error *err) {
    return parse_encoded("prompt_embeds", value, &request->prompt_embeds, err);
}

static bool parse_negative_prompt_embeds(
    const json_t *value, struct generate_request *request, struct error *err) {
    return parse_encoded("negative_prompt_embeds", value, &request->negative_prompt_embeds, err);
}

bool generate_json_parse_picture(
    const char *name, const json_t *value, struct picture_file *out, struct error *err) {
    const char *text = json_string_value(value);
    size_t length = json_string_length(value);
    if (!text || length == 0)
        return json_bad_field(
            name, value, "the base64 of a PNG, JPEG or WebP file, or a data URL", err);
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
    return generate_json_parse_picture("init_image", value, &request->init_image, err);
}

static bool parse_mask_image(
    const json_t *value, struct generate_request *request, struct error *err) {
    return generate_json_parse_picture("mask_image", value, &request->mask_image, err);
}

static bool parse_output(const json_t *value, struct generate_request *request, struct error *err) {
    const char *word = json_string_value(value);
    request->latent_output = word && strcmp(word, "latent") == 0;
    request->format_given = word && picture_format_from_name(word, &request->format);
    return request->latent_output || request->format_given ||
           json_bad_field("output", value, "\"png\", \"jpeg\", \"webp\" or \"latent\"", err);
}

static bool parse_number(const char *name, const json_t *value, double *out, struct error *err) {
    if (!json_is_number(value))
        return json_bad_field(name, value, "a number", err);
    *out = json_number_value(value);
    return true;
}

/* Parses one member of loras[index]. */
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
    request->loras = calloc(count + 1, sizeof(*request->loras)); /* + 1: never 0 bytes */
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

/* The fields of kind OTHER. */
static const struct {
    bool (*parse)(const json_t *value, struct generate_request *request, struct error *err);
    const char *schema; /* of JSON; NULL: scheduler_choice_schema */
} others[GENERATE_FIELD_COUNT] = {
    [GENERATE_prompt] = { parse_prompt, "{\"anyOf\": [{\"type\": \"string\"}, {\"type\": "
                                        "\"array\", \"items\": {\"type\": \"string\"},"
                                        " \"minItems\": 1}]}" },
    [GENERATE_prompt_embeds] = { parse_prompt_embeds, ENCODED_SCHEMA },
    [GENERATE_negative_prompt_embeds] = { parse_negative_prompt_embeds, ENCODED_SCHEMA },
    [GENERATE_scheduler] = { parse_scheduler, NULL },
    [GENERATE_loras] = { parse_loras,
        "{\"type\": \"array\", \"items\": {\"type\": \"object\", \"required\": [\"name\"],"
        " \"properties\": {\"name\": {\"type\": \"string\"}, \"weight\": {\"type\": \"number\","
        " \"default\": 1}, \"text_encoder_weight\": {\"type\": \"number\"}}}}" },
    [GENERATE_init_image] = { parse_init_image, "{\"type\": \"string\"}" },
    [GENERATE_mask_image] = { parse_mask_image, "{\"type\": \"string\"}" },
    [GENERATE_output] = { parse_output,
        "{\"type\": \"string\", \"enum\": [\"png\", \"jpeg\", \"webp\", \"latent\"]}" },
};

/* The fields that say how to send the answer. */
#define DELIVERY(kind_, member)                                                                    \
    .name = #member, .kind = FIELD_##kind_, FIELD_OF(struct generate_delivery, member)
static const struct field deliveries[] = {
    { DELIVERY(FLAG, stream), .help = "answer with a stream of events" },
    { DELIVERY(INTEGER, preview_every), .max = STEPS_MAX,
        .help = "steps from one preview to the next, in a stream or a job; 0: none" },
    { DELIVERY(WORD, preview), FIELD_WORDS("rgb", "vae"),
        .help = "a linear map of the latents, or a decode by the VAE" },
};
#define DELIVERIES (sizeof(deliveries) / sizeof(deliveries[0]))

const char *generate_json_field(size_t index) {
    if (index < GENERATE_FIELD_COUNT)
        return generate_fields[index].name;
    index -= GENERATE_FIELD_COUNT;
    return index < DELIVERIES ? deliveries[index].name : NULL;
}

json_t *generate_json_field_schema(enum generate_field_id id) {
    const struct generate_field *f = &generate_fields[id];
    if (f->kind != FIELD_OTHER) {
        json_t *schema = field_schema(&f->field);
        if (f->standard) /* the real default is `standard`, in words */
            json_object_del(schema, "default");
        if (f->by_model) /* or generated clients would override the model's default */
            field_schema_hide_default(schema);
        return schema;
    }
    json_t *schema = others[id].schema ? json_loads(others[id].schema, 0, NULL)
                                       : scheduler_choice_schema();
    json_object_set_new(schema, "description", json_string(f->help));
    return schema;
}

json_t *generate_json_schema(void) {
    json_t *properties = json_object();
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++)
        json_object_set_new(properties, generate_fields[id].name,
            field_schema_or_null(generate_json_field_schema((enum generate_field_id)id)));
    for (size_t i = 0; i < DELIVERIES; i++)
        json_object_set_new(
            properties, deliveries[i].name, field_schema_or_null(field_schema(&deliveries[i])));
    field_schema_hide_default(json_object_get(properties, "preview"));
    return json_pack("{s:s, s:o, s:b, s:{s:[s]}, s:{s:[s]}}", "type", "object", "properties",
        properties, "additionalProperties", false, "if", "required", "prompt_embeds", "else",
        "required", "prompt");
}

bool generate_json_parse_field(
    const char *key, const json_t *value, struct generate_request *request, struct error *err) {
    const struct generate_field *f = generate_field_named(key);
    if (!f)
        return json_bad_field(key, value, "there is no such field", err);
    if (f->kind == FIELD_OTHER)
        return others[f - generate_fields].parse(value, request, err);
    generate_field_set_given(f, request);
    return field_from_json(&f->field, value, request, err);
}

/* A null stands for the default, if there is such a field. */
static bool parse_one(const char *key, const json_t *value, struct generate_request *request,
    struct generate_delivery *delivery, struct error *err) {
    for (size_t i = 0; i < DELIVERIES; i++)
        if (strcmp(key, deliveries[i].name) == 0)
            return json_is_null(value) || field_from_json(&deliveries[i], value, delivery, err);
    return (json_is_null(value) && generate_field_named(key)) ||
           generate_json_parse_field(key, value, request, err);
}

static bool is_given(const json_t *root, const char *name) {
    const json_t *value = json_object_get(root, name);
    return value && !json_is_null(value);
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
    if (ok && !is_given(root, "prompt") && !is_given(root, "prompt_embeds"))
        ok = error_field(err, "prompt", "", "it is required: a string or a list of strings");
    if (ok && is_given(root, "preview") && delivery->preview_every == 0)
        ok = json_bad_field(
            "preview", json_object_get(root, "preview"), "only with a preview_every above 0", err);
    ok = ok && generate_request_check(&request, err);
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
