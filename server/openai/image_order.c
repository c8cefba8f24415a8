#include "server/openai/image_order.h"

#include "base/text/json.h"
#include "base/text/shape.h"
#include "server/generation/generate_json.h"
#include "server/openai/openai.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMAGES_MAX 10 /* OpenAI's */
#define PARTIAL_IMAGES_MAX 3
#define SIZE_MAX_BYTES 11
#define HIGH_FIDELITY_STRENGTH 0.5 /* without a mask, which keeps what is around it anyway */

/* --- OpenAI's fields --- */

static bool is_word(const json_t *value, const char *word) {
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

/* The place of one of `count` words; -1 if it is none of them. */
static int parse_word(
    const char *name, const json_t *value, const char *const *words, int count, struct error *err) {
    char allowed[128];
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        if (is_word(value, words[i]))
            return i;
        used += (size_t)snprintf(
            allowed + used, sizeof(allowed) - used, "%s\"%s\"", i ? ", " : "one of ", words[i]);
    }
    json_bad_field(name, value, allowed, err);
    return -1;
}

#define PARSE_WORD(name, value, err, ...)                                                          \
    parse_word(name, value, (const char *const[]){ __VA_ARGS__ },                                  \
        sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(const char *), err)

static bool parse_integer(
    const char *name, const json_t *value, int least, int most, int *out, struct error *err) {
    int64_t integer;
    char allowed[64];
    snprintf(allowed, sizeof(allowed), "an integer from %d to %d", least, most);
    if (!json_exact_integer(value, &integer) || integer < least || integer > most)
        return json_bad_field(name, value, allowed, err);
    *out = (int)integer;
    return true;
}

static bool parse_prompt(const json_t *value, struct image_order *order, struct error *err) {
    return json_is_string(value) ? generate_json_parse_field("prompt", value, &order->request, err)
                                 : json_bad_field("prompt", value, "a string", err);
}

static bool parse_model(const json_t *value, struct image_order *order, struct error *err) {
    if (!json_is_string(value) || json_string_length(value) >= sizeof(order->model))
        return json_bad_field(
            "model", value, "the name of a model; GET /v1/models lists them", err);
    snprintf(order->model, sizeof(order->model), "%s", json_string_value(value));
    return true;
}

static bool parse_n(const json_t *value, struct image_order *order, struct error *err) {
    return parse_integer("n", value, 1, IMAGES_MAX, &order->request.num_images, err);
}

/* Parses "auto", or digits, an x and digits. check_ranges refuses sizes that are out of range. */
static bool parse_size(const json_t *value, struct image_order *order, struct error *err) {
    struct generate_request *r = &order->request;
    const char *text = json_string_value(value);
    int used = 0;
    if (!text || strlen(text) > SIZE_MAX_BYTES ||
        (strcmp(text, "auto") != 0 &&
            (strspn(text, "0123456789x") != strlen(text) || text[0] == 'x' ||
                sscanf(text, "%5dx%5d%n", &r->width, &r->height, &used) != 2 || text[used] ||
                strchr(text, 'x')[1] == 'x' || r->width == 0 || r->height == 0)))
        return json_bad_field("size", value,
            "\"auto\", or \"WIDTHxHEIGHT\" of multiples of 8 from 64 to 2048, as \"512x512\"", err);
    return true;
}

static bool parse_response_format(
    const json_t *value, struct image_order *order, struct error *err) {
    const int index = PARSE_WORD("response_format", value, err, "b64_json", "url");
    if (index < 0)
        return false;
    order->as_url = index == 1;
    return true;
}

static bool parse_output_format(const json_t *value, struct image_order *order, struct error *err) {
    const char *word = json_string_value(value);
    order->request.format_given = true;
    return (word && picture_format_from_name(word, &order->request.format)) ||
           json_bad_field("output_format", value, "one of \"png\", \"jpeg\", \"webp\"", err);
}

/* libjpeg takes 0 for 1, and so do we. */
static bool parse_output_compression(
    const json_t *value, struct image_order *order, struct error *err) {
    int *quality = &order->request.quality;
    order->compression_given = true;
    if (!parse_integer("output_compression", value, 0, PICTURE_QUALITY_MAX, quality, err))
        return false;
    *quality = *quality ? *quality : 1;
    return true;
}

/* A quality sets the number of steps; "auto" and "standard" leave the default. */
static bool parse_quality(const json_t *value, struct image_order *order, struct error *err) {
    static const int steps[] = { 0, 0, 15, 25, 50, 50, 75, 100 };
    const int index = PARSE_WORD(
        "quality", value, err, "auto", "standard", "low", "medium", "high", "hd", "xhigh", "max");
    if (index < 0)
        return false;
    snprintf(order->quality, sizeof(order->quality), "%s", json_string_value(value));
    if (steps[index])
        order->request.num_inference_steps = steps[index];
    return true;
}

/* There is no alpha in what Stable Diffusion draws. */
static bool parse_background(const json_t *value, struct image_order *order, struct error *err) {
    (void)order;
    return PARSE_WORD("background", value, err, "auto", "opaque") >= 0;
}

/* Checked, without effect: only the checkpoint's own safety checker looks at pictures. */
static bool parse_moderation(const json_t *value, struct image_order *order, struct error *err) {
    (void)order;
    return PARSE_WORD("moderation", value, err, "auto", "low") >= 0;
}

/* Checked, without effect: a style is a hint for other models. */
static bool parse_style(const json_t *value, struct image_order *order, struct error *err) {
    (void)order;
    return PARSE_WORD("style", value, err, "vivid", "natural") >= 0;
}

/* `user` and safety_identifier must be strings and have no effect. */
static bool parse_user(const json_t *value, struct image_order *order, struct error *err) {
    (void)order;
    return json_is_string(value) || json_bad_field("user", value, "a string", err);
}

static bool parse_stream(const json_t *value, struct image_order *order, struct error *err) {
    order->stream = json_is_true(value);
    return json_is_boolean(value) || json_bad_field("stream", value, "true or false", err);
}

static bool parse_partial_images(
    const json_t *value, struct image_order *order, struct error *err) {
    return parse_integer(
        "partial_images", value, 0, PARTIAL_IMAGES_MAX, &order->partial_images, err);
}

static bool parse_input_fidelity(
    const json_t *value, struct image_order *order, struct error *err) {
    const int index = PARSE_WORD("input_fidelity", value, err, "low", "high");
    if (index < 0)
        return false;
    order->high_fidelity = index == 1;
    return true;
}

static bool parse_sampler(const json_t *value, struct image_order *order, struct error *err) {
    return scheduler_choice_from_json(value, &order->request.scheduler, err);
}

/* --- All fields --- */

#define GENERATION (1 << IMAGE_GENERATION)
#define EDIT (1 << IMAGE_EDIT)
#define VARIATION (1 << IMAGE_VARIATION)
#define ALL (GENERATION | EDIT | VARIATION)

/* How a form has the value, which is always text there. */
enum form_value {
    FORM_TEXT,
    FORM_JSON,    /* the text is JSON */
    FORM_EITHER,  /* a text, or a JSON object */
    FORM_PICTURE, /* a file; only in a form */
};

/* OpenAI's own. Beside them a route takes those of GENERATE_FIELDS whose `openai` has its bit. */
static const struct own_field {
    const char *name;
    int routes;
    enum form_value form;
    const char *shape; /* base/text/shape.h; NULL: a scheduler's */
    bool (*parse)(const json_t *value, struct image_order *order, struct error *err);
} own_fields[] = {
    { "image", EDIT | VARIATION, FORM_PICTURE, "binary", NULL },
    { "image[]", EDIT | VARIATION, FORM_PICTURE, "binary", NULL },
    { "mask", EDIT, FORM_PICTURE, "binary", NULL },
    { "prompt", ALL, FORM_TEXT, "string", parse_prompt },
    { "model", ALL, FORM_TEXT, "string|null", parse_model },
    { "n", ALL, FORM_JSON, "integer|null", parse_n },
    { "size", ALL, FORM_TEXT, "string|null", parse_size },
    { "response_format", ALL, FORM_TEXT, "'b64_json'|'url'|null", parse_response_format },
    { "output_format", ALL, FORM_TEXT, "'png'|'jpeg'|'webp'|null", parse_output_format },
    { "output_compression", ALL, FORM_JSON, "integer|null", parse_output_compression },
    { "quality", ALL, FORM_TEXT, "'auto'|'standard'|'low'|'medium'|'high'|'hd'|'xhigh'|'max'|null",
        parse_quality },
    { "background", GENERATION | EDIT, FORM_TEXT, "'auto'|'opaque'|null", parse_background },
    { "moderation", GENERATION | EDIT, FORM_TEXT, "'auto'|'low'|null", parse_moderation },
    { "style", GENERATION, FORM_TEXT, "'vivid'|'natural'|null", parse_style },
    { "user", ALL, FORM_TEXT, "string|null", parse_user },
    { "safety_identifier", GENERATION | EDIT, FORM_TEXT, "string|null", parse_user },
    { "stream", GENERATION | EDIT, FORM_JSON, "boolean|null", parse_stream },
    { "partial_images", GENERATION | EDIT, FORM_JSON, "integer|null", parse_partial_images },
    { "input_fidelity", EDIT, FORM_TEXT, "'low'|'high'|null", parse_input_fidelity },
    { "sampler", ALL, FORM_EITHER, NULL, parse_sampler },
};
#define OWN_FIELDS (sizeof(own_fields) / sizeof(own_fields[0]))
_Static_assert(GENERATION == OPENAI_GENERATIONS && EDIT == OPENAI_EDITS &&
                   VARIATION == OPENAI_VARIATIONS && ALL == OPENAI_ALL,
    "the sets of routes have the same bits");

static const struct own_field *find_own(const char *name, enum image_route route) {
    for (size_t i = 0; i < OWN_FIELDS; i++)
        if (strcmp(own_fields[i].name, name) == 0 && own_fields[i].routes & 1 << route)
            return &own_fields[i];
    return NULL;
}

static bool is_native(const char *name, enum image_route route) {
    const struct generate_field *f = generate_field_named(name);
    return f && f->openai & 1u << route;
}

static enum form_value form_value_of(const char *name, enum image_route route) {
    const struct own_field *own = find_own(name, route);
    const struct generate_field *f = generate_field_named(name);
    if (own || !is_native(name, route))
        return own ? own->form : FORM_TEXT;
    if (f->kind == FIELD_TEXT || f->kind == FIELD_WORD)
        return FORM_TEXT;
    return strcmp(name, "scheduler") == 0 ? FORM_EITHER : FORM_JSON;
}

const char *image_order_field(enum image_route route, size_t index) {
    for (size_t i = 0; i < OWN_FIELDS; i++)
        if (own_fields[i].routes & 1 << route && index-- == 0)
            return own_fields[i].name;
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++)
        if (generate_fields[id].openai & 1u << route && index-- == 0)
            return generate_fields[id].name;
    return NULL;
}

static json_t *schema_of(enum image_route route) {
    json_t *properties = json_object();
    for (size_t i = 0; i < OWN_FIELDS; i++) {
        const char *shape = own_fields[i].shape;
        if (own_fields[i].routes & 1 << route && strcmp(own_fields[i].name, "image[]") != 0)
            json_object_set_new(properties, own_fields[i].name,
                shape ? shape_read(&shape) : generate_json_field_schema(GENERATE_scheduler));
    }
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++)
        if (generate_fields[id].openai & 1u << route) {
            json_t *schema = generate_json_field_schema((enum generate_field_id)id);
            field_schema_hide_default(schema); /* "quality" and the route have their own */
            json_object_set_new(properties, generate_fields[id].name, schema);
        }
    return json_pack("{s:s, s:o, s:[s, s*]}", "type", "object", "properties", properties,
        "required", route == IMAGE_VARIATION ? "image" : "prompt",
        route == IMAGE_EDIT ? "image" : NULL);
}

json_t *image_order_schema(void) {
    return schema_of(IMAGE_GENERATION);
}

json_t *image_order_edit_schema(void) {
    return schema_of(IMAGE_EDIT);
}

json_t *image_order_variation_schema(void) {
    return schema_of(IMAGE_VARIATION);
}

/* Returns why the route refuses a field: OpenAI has it but it is not supported here, or there is no
 * such field. */
static const char *why_not(const char *name) {
    static const char *const absent[] = { "complexity", "frame_count", "frame_duration_ms", "svg",
        "markup", "input_fidelity", "stream", "partial_images", "mask", "image", "image[]" };
    for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
        if (strcmp(name, absent[i]) == 0)
            return "this route does not do that here: leave it out";
    return OPENAI_NO_SUCH_FIELD;
}

static bool parse_one(
    const char *key, const json_t *value, struct image_order *order, struct error *err) {
    const struct own_field *own = find_own(key, order->route);
    if (own ? own->form == FORM_PICTURE : !is_native(key, order->route))
        return json_bad_field(key, value, why_not(key), err);
    if (json_is_null(value))
        return true;
    return own ? own->parse(value, order, err)
               : generate_json_parse_field(key, value, &order->request, err);
}

/* --- What must hold of several fields --- */

static bool is_given(const json_t *values, const char *name) {
    const json_t *value = json_object_get(values, name);
    return value && !json_is_null(value);
}

static bool check_quality(
    const struct image_order *order, const json_t *values, struct error *err) {
    const char *word = order->quality;
    return !is_given(values, "num_inference_steps") || !word[0] || strcmp(word, "auto") == 0 ||
           strcmp(word, "standard") == 0 ||
           json_bad_field("quality", json_object_get(values, "quality"),
               "\"auto\" beside num_inference_steps: both say how many steps there are", err);
}

/* A stream carries one picture only, because its events do not say which picture they belong to. */
static bool check_stream(const struct image_order *order, const json_t *values, struct error *err) {
    if (!order->stream)
        return order->partial_images == 0 ||
               json_bad_field("partial_images", json_object_get(values, "partial_images"),
                   "0 without \"stream\": true", err);
    if (order->request.num_images > 1)
        return json_bad_field("n", json_object_get(values, "n"), "1 with \"stream\": true", err);
    return !order->as_url ||
           json_bad_field("response_format", json_object_get(values, "response_format"),
               "\"b64_json\" with \"stream\": true", err);
}

/* PNG is lossless, so it accepts only 100. Other formats default to the highest quality. */
static bool check_compression(struct image_order *order, const json_t *values, struct error *err) {
    struct generate_request *r = &order->request;
    if (r->format != PICTURE_PNG) {
        r->quality = order->compression_given ? r->quality : PICTURE_QUALITY_MAX;
        return true;
    }
    if (order->compression_given && r->quality < PICTURE_QUALITY_MAX)
        return json_bad_field("output_compression", json_object_get(values, "output_compression"),
            "100 of a \"png\"; less with output_format \"jpeg\" or \"webp\"", err);
    r->quality = 0;
    return true;
}

static bool check_together(struct image_order *order, const json_t *values, struct error *err) {
    if (is_given(values, "sampler") && is_given(values, "scheduler"))
        return json_bad_field("sampler", json_object_get(values, "sampler"),
            "one of sampler and scheduler, which are the same", err);
    if (is_given(values, "input_fidelity") && is_given(values, "strength"))
        return json_bad_field("input_fidelity", json_object_get(values, "input_fidelity"),
            "one of input_fidelity and strength", err);
    return check_quality(order, values, err) && check_stream(order, values, err) &&
           check_compression(order, values, err);
}

/* Refuses a request without a prompt, except a variation: as OpenAI's variations have none, it gets
 * an empty prompt and, unless guidance_scale is given, no guidance. */
static bool complete_prompt(struct image_order *order, const json_t *values, struct error *err) {
    struct generate_request *r = &order->request;
    if (r->prompt_count > 0)
        return true;
    if (order->route != IMAGE_VARIATION)
        return error_field(err, "prompt", "", "it is required: a string");
    if (!is_given(values, "guidance_scale"))
        r->guidance_scale = 1; /* no guidance: there is no prompt to follow */
    json_t *empty = json_string("");
    const bool ok = empty && generate_json_parse_field("prompt", empty, r, err);
    json_decref(empty);
    return ok;
}

static bool check_ranges(const struct image_order *order, const json_t *values, struct error *err) {
    struct error found = { 0 };
    if (generate_request_check(&order->request, &found))
        return true;
    openai_rename(&found);
    const json_t *value = json_object_get(values, found.param);
    if (value && found.code == ERROR_INVALID)
        return json_bad_field(found.param, value, found.allowed, err);
    if (err)
        *err = found;
    return false;
}

static bool parse_fields(struct image_order *order, const json_t *values,
    const struct openai_models *models, struct error *err) {
    const char *key;
    json_t *value;
    generate_request_init(&order->request);
    json_object_foreach((json_t *)values, key, value) {
        if (!parse_one(key, value, order, err))
            return false;
    }
    return complete_prompt(order, values, err) && check_together(order, values, err) &&
           openai_choose_model(order->model, models, &order->request, err);
}

/* --- JSON --- */

bool image_order_from_json(const char *text, size_t length, const struct openai_models *models,
    struct image_order *out, struct error *err) {
    if (length == 0)
        return error_set(err, ERROR_INVALID, "the body is empty; it must be a JSON object");
    json_t *root = json_parse_request(text, length, err);
    if (!root)
        return error_prefix(err, "the body");
    struct image_order order = { .route = IMAGE_GENERATION };
    const bool ok = (json_is_object(root) ||
                        error_set(err, ERROR_INVALID, "the body must be a JSON object")) &&
                    parse_fields(&order, root, models, err) && check_ranges(&order, root, err);
    json_decref(root);
    if (ok)
        *out = order;
    else
        image_order_finish(&order);
    return ok;
}

void image_order_finish(struct image_order *order) {
    generate_request_finish(&order->request);
}

/* --- Forms --- */

/* The values of a form as JSON has them. A new reference; NULL when memory is short. */
static json_t *form_values(const json_t *texts, enum image_route route) {
    const char *key;
    json_t *text, *values = json_object();
    json_object_foreach((json_t *)texts, key, text) {
        const enum form_value form = form_value_of(key, route);
        const char *string = json_string_value(text);
        json_t *value = NULL;
        if (form == FORM_JSON || (form == FORM_EITHER && string[0] == '{'))
            value = json_parse_request(string, json_string_length(text), NULL);
        if (json_object_set_new(values, key, value ? value : json_incref(text)) != 0) {
            json_decref(values);
            return NULL;
        }
    }
    return values;
}

/* Moves the form's pictures to the request, and sets how the mask is read, the resize mode and, for
 * high fidelity, the strength. Refuses a form without an image. */
static bool take_pictures(struct image_form *form, struct image_order *order, struct error *err) {
    struct generate_request *r = &order->request;
    if (!form->image.bytes)
        return error_field(err, "image", "", "it is required: a PNG or JPEG file");
    r->init_image = form->image;
    r->mask_image = form->mask;
    const bool form_has_mask = form->mask.bytes;
    r->mask_is_transparent = form_has_mask;
    memset(&form->image, 0, sizeof(form->image));
    memset(&form->mask, 0, sizeof(form->mask));
    r->resize_mode = RESIZE_MODE_CROP; /* to the size, which is the picture's where it is open */
    if (order->high_fidelity && !form_has_mask) {
        r->strength = HIGH_FIDELITY_STRENGTH;
        r->strength_given = true;
    }
    return true;
}

bool image_order_from_form(struct image_form *form, enum image_route route,
    const struct openai_models *models, struct image_order *out, struct error *err) {
    struct image_order order = { .route = route };
    json_t *values = form_values(form->texts, route);
    if (!values)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a form");
    const bool ok = parse_fields(&order, values, models, err) && take_pictures(form, &order, err) &&
                    check_ranges(&order, values, err);
    json_decref(values);
    if (ok)
        *out = order;
    else
        image_order_finish(&order);
    return ok;
}
