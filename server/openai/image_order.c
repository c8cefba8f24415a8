#include "server/openai/image_order.h"

#include "base/limits.h"
#include "base/text/json.h"
#include "base/text/shape.h"
#include "engine/resolve/source.h"
#include "pictures/picture.h"
#include "server/generation/generate_json.h"
#include "server/openai/openai.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMAGES_MAX 10 /* OpenAI's */
#define PARTIAL_IMAGES_MAX 3
#define SIZE_MAX_BYTES 11
#define HIGH_FIDELITY_STRENGTH 0.5 /* without a mask, which would protect the rest */

/* --- OpenAI's fields --- */

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

/* Parses "auto", or WIDTHxHEIGHT. check_ranges refuses sizes that are out of range. */
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

/* Check `user` and safety_identifier, which must be strings and have no effect. */
static bool parse_user(const json_t *value, struct image_order *order, struct error *err) {
    (void)order;
    return json_is_string(value) || json_bad_field("user", value, "a string", err);
}

static bool parse_safety_identifier(
    const json_t *value, struct image_order *order, struct error *err) {
    (void)order;
    return json_is_string(value) || json_bad_field("safety_identifier", value, "a string", err);
}

/* --- All fields --- */

#define GENERATION (1 << IMAGE_GENERATION)
#define EDIT (1 << IMAGE_EDIT)
#define VARIATION (1 << IMAGE_VARIATION)
#define ALL (GENERATION | EDIT | VARIATION)

/* How a form sends a value. Except for pictures, every value in a form is a text. */
enum form_value {
    FORM_TEXT,
    FORM_JSON,    /* the text is JSON */
    FORM_EITHER,  /* a text, or a JSON object */
    FORM_PICTURE, /* a file; in JSON `parse` reads it, or it is refused */
    FORM_NEVER,   /* only in JSON */
};

/* The words of `quality`, each with a number of steps; 0 leaves the default. */
static const int quality_steps[] = { 0, 0, 15, 25, 50, 50, 75, 100 };
#define QUALITY_WORDS FIELD_WORDS("auto", "standard", "low", "medium", "high", "hd", "xhigh", "max")

#define REFERENCE "{image_url: string, file_id?: null}"
#define OTHER(form_, shape_, parse_)                                                               \
    .kind = FIELD_OTHER, .form = form_, .shape = shape_, .parse = parse_
/* OpenAI's own fields. A route also takes the fields of GENERATE_FIELDS whose `openai` has the
 * route's bit. */
#define MEMBER(kind_, member) .kind = FIELD_##kind_, FIELD_OF(struct image_order, member)
#define IGNORED(...) MEMBER(WORD, ignored), FIELD_WORDS(__VA_ARGS__)
static const struct own_field {
    FIELD_COLUMNS; /* of struct image_order; FIELD_OTHER: `parse` reads it */
    int routes;
    enum form_value form; /* of FIELD_OTHER */
    const char *shape;    /* of FIELD_OTHER, in JSON (base/text/shape.h) */
    bool (*parse)(const json_t *value, struct image_order *order, struct error *err);
} own_fields[] = {
    { .name = "image", OTHER(FORM_PICTURE, NULL, NULL), .routes = EDIT | VARIATION },
    { .name = "image[]", OTHER(FORM_PICTURE, NULL, NULL), .routes = EDIT | VARIATION },
    { .name = "images",
        OTHER(FORM_NEVER, "[" REFERENCE "]", image_order_parse_images),
        .routes = EDIT },
    { .name = "mask",
        OTHER(FORM_PICTURE, REFERENCE "|null", image_order_parse_mask),
        .routes = EDIT },
    { .name = "prompt", OTHER(FORM_TEXT, "string", parse_prompt), .routes = ALL },
    { .name = "model", OTHER(FORM_TEXT, "string|null", parse_model), .routes = ALL },
    { .name = "n",
        MEMBER(INTEGER, request.num_images),
        .min = 1,
        .max = IMAGES_MAX,
        .value = 1,
        .routes = ALL,
        .help = "number of pictures" },
    { .name = "size", OTHER(FORM_TEXT, "string|null", parse_size), .routes = ALL },
    { .name = "response_format",
        MEMBER(WORD, response_format),
        FIELD_WORDS("b64_json", "url"),
        .routes = ALL,
        .help = "base64, or an address to fetch the picture from; if left out, both" },
    { .name = "output_format",
        MEMBER(WORD, request.format),
        FIELD_WORDS("png", "jpeg", "webp"),
        .routes = ALL,
        .help = "of the pictures' files" },
    { .name = "output_compression",
        MEMBER(INTEGER, request.quality),
        .max = PICTURE_QUALITY_MAX,
        .value = PICTURE_QUALITY_MAX,
        .routes = ALL,
        .help = "quality of a JPEG or WebP file" },
    { .name = "quality",
        MEMBER(WORD, quality),
        QUALITY_WORDS,
        .routes = ALL,
        .help = "decides the number of steps" },
    /* Refuses a transparent background: Stable Diffusion draws no alpha channel. */
    { .name = "background", IGNORED("auto", "opaque"), .routes = GENERATION | EDIT },
    /* Without effect: only the checkpoint's own safety checker looks at pictures. */
    { .name = "moderation", IGNORED("auto", "low"), .routes = GENERATION | EDIT },
    /* Without effect: a style is a hint for other models. */
    { .name = "style", IGNORED("vivid", "natural"), .routes = GENERATION },
    { .name = "user", OTHER(FORM_TEXT, "string|null", parse_user), .routes = ALL },
    { .name = "safety_identifier",
        OTHER(FORM_TEXT, "string|null", parse_safety_identifier),
        .routes = GENERATION | EDIT },
    { .name = "stream",
        MEMBER(FLAG, stream),
        .routes = GENERATION | EDIT,
        .help = "answer with a stream of events" },
    { .name = "partial_images",
        MEMBER(INTEGER, partial_images),
        .max = PARTIAL_IMAGES_MAX,
        .routes = GENERATION | EDIT,
        .help = "pictures of a stream before it is done" },
    { .name = "input_fidelity",
        MEMBER(WORD, input_fidelity),
        FIELD_WORDS("low", "high"),
        .routes = EDIT,
        .help = "high: stay closer to the picture" },
    /* vLLM-Omni's, whose models have two guidances. Stable Diffusion has this one. */
    { .name = "true_cfg_scale",
        MEMBER(NUMBER, true_cfg_scale),
        .max = GUIDANCE_SCALE_MAX,
        .routes = ALL,
        .help = "the guidance scale, if guidance_scale is not given" },
};
#define OWN_FIELDS (sizeof(own_fields) / sizeof(own_fields[0]))
_Static_assert(GENERATION == OPENAI_GENERATIONS && EDIT == OPENAI_EDITS &&
                   VARIATION == OPENAI_VARIATIONS && ALL == OPENAI_ALL,
    "the sets of routes have the same bits");

/* Other names of fields of POST /generate, from other servers of this API: vLLM-Omni and SGLang
 * (generator_device), LocalAI (step). */
static const char *const aliases[][2] = {
    { "sampler", "scheduler" },
    { "step", "num_inference_steps" },
    { "generator_device", "rng" },
};
#define ALIASES (sizeof(aliases) / sizeof(aliases[0]))

/* Returns the field that `key` is another name of, or `key`. */
static const char *field_named(const char *key) {
    for (size_t i = 0; i < ALIASES; i++)
        if (strcmp(aliases[i][0], key) == 0)
            return aliases[i][1];
    return key;
}

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

static enum form_value form_value_of(const char *key, enum image_route route) {
    const char *name = field_named(key);
    const struct own_field *own = find_own(name, route);
    const struct generate_field *native = generate_field_named(name);
    if (own && own->kind == FIELD_OTHER)
        return own->form;
    if (!own && !is_native(name, route))
        return FORM_TEXT;
    const enum field_kind kind = own ? own->kind : native->kind;
    return kind == FIELD_TEXT || kind == FIELD_WORD ? FORM_TEXT
           : strcmp(name, "scheduler") == 0         ? FORM_EITHER
                                                    : FORM_JSON;
}

const char *image_order_field(enum image_route route, size_t index) {
    for (size_t i = 0; i < OWN_FIELDS; i++)
        if (own_fields[i].routes & 1 << route && index-- == 0)
            return own_fields[i].name;
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++)
        if (generate_fields[id].openai & 1u << route && index-- == 0)
            return generate_fields[id].name;
    return index < ALIASES ? aliases[index][0] : NULL;
}

/* The schema of a field of POST /generate. The route or "quality" may change its default. */
static json_t *native_schema(enum generate_field_id id) {
    json_t *schema = field_schema_or_null(generate_json_field_schema(id));
    field_schema_hide_default(schema);
    return schema;
}

/* Returns NULL for a field that is not in such a body. */
static json_t *own_schema(const struct own_field *own, bool is_form) {
    const bool is_picture = own->kind == FIELD_OTHER && own->form == FORM_PICTURE;
    const char *shape = is_form && is_picture ? "binary" : own->shape;
    if (own->kind == FIELD_OTHER)
        return strcmp(own->name, "image[]") == 0 || (is_form && own->form == FORM_NEVER) || !shape
                   ? NULL
                   : shape_read(&shape);
    json_t *schema = field_schema_or_null(field_schema(&own->field));
    field_schema_hide_default(schema);
    return schema;
}

static json_t *schema_of(enum image_route route, bool is_form) {
    json_t *properties = json_object(), *schema;
    for (size_t i = 0; i < OWN_FIELDS; i++)
        if (own_fields[i].routes & 1 << route && (schema = own_schema(&own_fields[i], is_form)))
            json_object_set_new(properties, own_fields[i].name, schema);
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++)
        if (generate_fields[id].openai & 1u << route)
            json_object_set_new(
                properties, generate_fields[id].name, native_schema((enum generate_field_id)id));
    for (size_t i = 0; i < ALIASES; i++)
        json_object_set_new(
            properties, aliases[i][0], json_copy(json_object_get(properties, aliases[i][1])));
    return json_pack("{s:s, s:o, s:[s, s*]}", "type", "object", "properties", properties,
        "required", route == IMAGE_VARIATION ? "image" : "prompt",
        route != IMAGE_EDIT ? NULL
        : is_form           ? "image"
                            : "images");
}

json_t *image_order_schema(void) {
    return schema_of(IMAGE_GENERATION, false);
}

json_t *image_order_edit_schema(void) {
    return schema_of(IMAGE_EDIT, false);
}

json_t *image_order_edit_form_schema(void) {
    return schema_of(IMAGE_EDIT, true);
}

json_t *image_order_variation_form_schema(void) {
    return schema_of(IMAGE_VARIATION, true);
}

/* Returns why the route refuses a field: OpenAI has the field but it is not supported here, or
 * there is no such field. */
static const char *why_not(const char *name, enum image_route route) {
    static const char *const absent[] = { "complexity", "frame_count", "frame_duration_ms", "svg",
        "markup", "input_fidelity", "stream", "partial_images", "mask", "image", "image[]",
        "images" };
    if (route == IMAGE_EDIT && strncmp(name, "image", strlen("image")) == 0)
        return "images in JSON: [{\"image_url\": DATA URL}]";
    for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
        if (strcmp(name, absent[i]) == 0)
            return "this route does not do that here: leave it out";
    return OPENAI_NO_SUCH_FIELD;
}

/* Parses a field of POST /generate, which the client may have called by another name. */
static bool parse_native(
    const char *key, const json_t *value, struct image_order *order, struct error *err) {
    const char *name = field_named(key);
    struct error found = { 0 };
    /* To other servers of this API, and to AUTOMATIC1111, -1 is a random seed. */
    if (strcmp(name, "seed") == 0 && json_is_integer(value) && json_integer_value(value) == -1)
        return true;
    if (generate_json_parse_field(name, value, &order->request, &found))
        return true;
    if (strcmp(found.param, name) == 0 && found.code == ERROR_INVALID)
        return error_field(err, key, found.value, "%s", found.allowed);
    if (err)
        *err = found;
    return false;
}

/* A null stands for the default, also of a field that does not exist: clients that send a model of
 * their own send what it leaves out as null. */
static bool parse_one(
    const char *key, const json_t *value, struct image_order *order, struct error *err) {
    const char *name = field_named(key);
    const struct own_field *own = find_own(name, order->route);
    if (json_is_null(value))
        return true;
    if (own ? own->kind == FIELD_OTHER && !own->parse : !is_native(name, order->route))
        return json_bad_field(key, value, why_not(key, order->route), err);
    return !own                       ? parse_native(key, value, order, err)
           : own->kind == FIELD_OTHER ? own->parse(value, order, err)
                                      : field_from_json(&own->field, value, order, err);
}

/* --- Checks of several fields together --- */

static bool is_given(const json_t *values, const char *name) {
    const json_t *value = json_object_get(values, name);
    return value && !json_is_null(value);
}

static bool check_aliases(const json_t *values, struct error *err) {
    for (size_t i = 0; i < ALIASES; i++)
        if (is_given(values, aliases[i][0]) && is_given(values, aliases[i][1]))
            return json_bad_field(aliases[i][0], json_object_get(values, aliases[i][0]),
                "only one of two names of the same field", err);
    return true;
}

/* true_cfg_scale is used as guidance_scale. Beside guidance_scale it has no effect, and the answer
 * warns of that. */
static void use_true_cfg_scale(struct image_order *order, const json_t *values) {
    if (!is_given(values, "true_cfg_scale"))
        return;
    if (is_given(values, "guidance_scale")) {
        order->leaves_true_cfg_scale = order->true_cfg_scale != order->request.guidance_scale;
        return;
    }
    order->request.guidance_scale = order->true_cfg_scale;
    order->request.guidance_scale_given = true;
}

/* A quality sets the number of steps. */
static bool check_quality(struct image_order *order, const json_t *values, struct error *err) {
    const int steps = quality_steps[order->quality];
    if (steps && order->request.num_inference_steps_given)
        return json_bad_field("quality", json_object_get(values, "quality"),
            "\"auto\" beside num_inference_steps: both say how many steps there are", err);
    if (steps)
        order->request.num_inference_steps = steps;
    order->request.num_inference_steps_given |= steps > 0;
    return true;
}

/* A stream carries one picture only, because its events do not say which picture they belong to. */
static bool check_stream(const struct image_order *order, const json_t *values, struct error *err) {
    if (!order->stream)
        return order->partial_images == 0 ||
               json_bad_field("partial_images", json_object_get(values, "partial_images"),
                   "0 without \"stream\": true", err);
    if (order->request.num_images > 1)
        return json_bad_field("n", json_object_get(values, "n"), "1 with \"stream\": true", err);
    return order->response_format != IMAGE_AS_URL ||
           json_bad_field("response_format", json_object_get(values, "response_format"),
               "\"b64_json\" with \"stream\": true", err);
}

/* Checks output_compression. PNG is lossless, so it accepts only 100. For other formats the default
 * is the highest quality, and 0 is used as 1, as in libjpeg. */
static bool check_compression(struct image_order *order, const json_t *values, struct error *err) {
    struct generate_request *r = &order->request;
    const bool given = is_given(values, "output_compression");
    r->format_given = is_given(values, "output_format");
    if (r->format != PICTURE_PNG) {
        r->quality = !given ? PICTURE_QUALITY_MAX : r->quality ? r->quality : 1;
        return true;
    }
    if (given && r->quality < PICTURE_QUALITY_MAX)
        return json_bad_field("output_compression", json_object_get(values, "output_compression"),
            "100 of a \"png\"; less with output_format \"jpeg\" or \"webp\"", err);
    r->quality = 0;
    return true;
}

/* Chooses the form of the answer for a client that does not say which it reads. OpenAI's gpt-image
 * models always answer in base64, and a client that knows this may prefer a url and not be able to
 * fetch it: Open WebUI fetches none from a private address. Others read the url, which is the
 * dall-e models' default, or base64. */
static int default_response_format(const char *model) {
    static const char *const in_base64[] = { "gpt-image", "chatgpt-image" };
    for (size_t i = 0; i < sizeof(in_base64) / sizeof(in_base64[0]); i++)
        if (strncmp(model, in_base64[i], strlen(in_base64[i])) == 0)
            return IMAGE_AS_BASE64;
    return IMAGE_AS_BOTH;
}

static bool check_together(struct image_order *order, const json_t *values, struct error *err) {
    if (!check_aliases(values, err))
        return false;
    use_true_cfg_scale(order, values);
    if (is_given(values, "input_fidelity") && is_given(values, "strength"))
        return json_bad_field("input_fidelity", json_object_get(values, "input_fidelity"),
            "one of input_fidelity and strength", err);
    if (!is_given(values, "response_format"))
        order->response_format = default_response_format(order->model);
    return check_quality(order, values, err) && check_stream(order, values, err) &&
           check_compression(order, values, err);
}

/* Refuses a request without a prompt, except a variation. OpenAI's variations have no prompt, so a
 * variation gets an empty one and, unless guidance_scale is given, no guidance. */
static bool complete_prompt(struct image_order *order, const json_t *values, struct error *err) {
    struct generate_request *r = &order->request;
    if (r->prompt_count > 0)
        return true;
    if (order->route != IMAGE_VARIATION)
        return error_field(err, "prompt", "", "it is required: a string");
    if (!is_given(values, "guidance_scale"))
        r->guidance_scale = 1; /* no guidance, as there is no prompt */
    r->guidance_scale_given = true;
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

/* Refuses an edit or a variation without a picture. Sets the mask's meaning, the resize mode and,
 * for high fidelity, the strength. */
static bool complete_pictures(struct image_order *order, const char *param, struct error *err) {
    struct generate_request *r = &order->request;
    if (!r->init_image.bytes)
        return error_field(err, param, "", "it is required: a PNG, JPEG or WebP file");
    r->mask_is_transparent = r->mask_image.bytes;
    r->resize_mode = RESIZE_MODE_CROP; /* without a size, the picture's size is used */
    if (order->input_fidelity && !r->mask_image.bytes) {
        r->strength = HIGH_FIDELITY_STRENGTH;
        r->strength_given = true;
    }
    return true;
}

bool image_order_from_json(const char *text, size_t length, enum image_route route,
    const struct openai_models *models, struct image_order *out, struct error *err) {
    if (length == 0)
        return error_set(err, ERROR_INVALID, "the body is empty; it must be a JSON object");
    json_t *root = json_parse_request(text, length, err);
    if (!root)
        return error_prefix(err, "the body");
    struct image_order order = { .route = route };
    const bool ok = (json_is_object(root) ||
                        error_set(err, ERROR_INVALID, "the body must be a JSON object")) &&
                    parse_fields(&order, root, models, err) &&
                    (route == IMAGE_GENERATION || complete_pictures(&order, "images", err)) &&
                    check_ranges(&order, root, err);
    json_decref(root);
    if (ok)
        *out = order;
    else
        image_order_finish(&order);
    return ok;
}

const char *image_order_quality(const struct image_order *order) {
    return find_own("quality", order->route)->words[order->quality];
}

bool image_order_mask_by_alpha(
    const struct image_order *order, struct generate_request *request, struct error *err) {
    const struct picture_file *file = &request->init_image;
    struct picture holes = { 0 };
    struct error why = { 0 };
    int width, height;
    if (order->route != IMAGE_EDIT || request->mask_image.bytes)
        return true;
    if (!source_examine(file, "image", INIT_IMAGE_MAX_PX, &width, &height, &why))
        return true; /* too large or damaged: resolving says so */
    if (!picture_decode_transparency(file->bytes, file->size, &holes, &why)) {
        /* Nothing of it is transparent, or it is damaged, which its own decoding will say. */
        if (why.code == ERROR_INVALID || why.code == ERROR_TOO_LARGE)
            return true;
        *err = why;
        return false;
    }
    picture_finish(&holes);
    request->mask_image.bytes = malloc(file->size);
    if (!request->mask_image.bytes)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a mask");
    memcpy(request->mask_image.bytes, file->bytes, file->size);
    request->mask_image.size = file->size;
    request->mask_is_transparent = true;
    if (order->input_fidelity) { /* it is for edits without a mask */
        field_reset(&generate_fields[GENERATE_strength].field, request);
        request->strength_given = false;
    }
    return true;
}

void image_order_finish(struct image_order *order) {
    generate_request_finish(&order->request);
}

/* --- Forms --- */

/* Converts a form's texts to the values that a JSON body would have. A new reference; NULL when
 * memory is short. */
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

/* Moves the form's pictures to the request. */
static bool take_pictures(struct image_form *form, struct image_order *order, struct error *err) {
    order->request.init_image = form->image;
    order->request.mask_image = form->mask;
    memset(&form->image, 0, sizeof(form->image));
    memset(&form->mask, 0, sizeof(form->mask));
    return complete_pictures(order, "image", err);
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
