#include "engine/request/request.h"

#include "base/limits.h"
#include "base/text/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROW(kind_, type, name_, ...)                                                               \
    [GENERATE_##                                                                                   \
        name_] = { .name = #name_, .kind = FIELD_##kind_, PLACE_##kind_(name_) __VA_ARGS__ },
#define PLACE_OTHER(name)
#define PLACE_TEXT(name)                                                                           \
    FIELD_OF(struct generate_request, name),                                                       \
        .given = offsetof(struct generate_request, name##_given),
#define PLACE_INTEGER PLACE_TEXT
/* A number's member must be a double: nothing else compiles. */
#define PLACE_NUMBER(name)                                                                         \
    .offset = _Generic(((struct generate_request *)0)->name, double                                \
                       : offsetof(struct generate_request, name)),                                 \
    .size = sizeof(double), .given = offsetof(struct generate_request, name##_given),
#define PLACE_WORD PLACE_TEXT
#define PLACE_FLAG PLACE_TEXT
_Static_assert(GENERATE_FIELD_COUNT <= 64, "assumed has a bit for each");
const struct generate_field generate_fields[GENERATE_FIELD_COUNT] = { GENERATE_FIELDS(ROW) };

/* The owned text of a field; NULL for fields of other kinds. */
static char **text_of(int id, struct generate_request *request) {
    const struct generate_field *f = &generate_fields[id];
    return f->kind == FIELD_TEXT ? (char **)((char *)request + f->offset) : NULL;
}

const struct generate_field *generate_field_named(const char *name) {
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++)
        if (strcmp(generate_fields[id].name, name) == 0)
            return &generate_fields[id];
    return NULL;
}

void generate_field_set_given(
    const struct generate_field *field, struct generate_request *request) {
    *(bool *)((char *)request + field->given) = true;
}

void generate_request_init(struct generate_request *request) {
    *request = (struct generate_request){ 0 };
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++)
        field_reset(&generate_fields[id].field, request);
}

void generate_request_finish(struct generate_request *request) {
    for (int i = 0; request->prompts && i < request->prompt_count; i++)
        free(request->prompts[i]);
    free(request->prompts);
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++)
        if (text_of(id, request))
            free(*text_of(id, request));
    free(request->prompt_embeds.values);
    free(request->negative_prompt_embeds.values);
    free(request->init_latents.values);
    free(request->init_image.bytes);
    free(request->mask_image.bytes);
    free(request->loras);
    memset(request, 0, sizeof(*request));
}

/* Returns a copy of `count` elements; NULL only if `things` is NULL or there is no memory. So the
 * copy of an empty picture is an empty picture, which resolving refuses. */
static void *copy_of(const void *things, size_t count, size_t size) {
    void *copy = things ? malloc(count * size + 1) : NULL;
    if (copy)
        memcpy(copy, things, count * size);
    return copy;
}

/* Replaces e->values, which belong to the original request, by a copy. */
static bool copy_encoded(struct encoded_texts *e) {
    const float *values = e->values;
    e->values = copy_of(values, (size_t)(e->texts * e->tokens * e->width), sizeof(*values));
    return !values || e->values;
}

/* Copies the texts, which still belong to the original. */
static bool copy_texts(struct generate_request *out) {
    bool ok = true;
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++) {
        char **text = text_of(id, out);
        if (!text || !*text)
            continue;
        *text = strdup(*text);
        ok = ok && *text;
    }
    return ok;
}

/* Copies the owned members of *out, which still belong to the original. Every member is copied or
 * NULL when it returns. */
static bool copy_owned(struct generate_request *out) {
    char **prompts = calloc((size_t)out->prompt_count + 1, sizeof(*prompts)),
         **given = out->prompts;
    const int count = out->prompt_count;
    const struct init_latents *l = &out->init_latents;
    const size_t values = (size_t)(l->images * l->channels * l->height * l->width);
    const struct generate_request original = *out;
    out->prompts = prompts;
    out->prompt_count = 0;
    out->loras = copy_of(original.loras, (size_t)original.lora_count, sizeof(*original.loras));
    out->init_latents.values = copy_of(l->values, values, sizeof(*l->values));
    out->init_image.bytes = copy_of(original.init_image.bytes, original.init_image.size, 1);
    out->mask_image.bytes = copy_of(original.mask_image.bytes, original.mask_image.size, 1);
    const bool texts = copy_texts(out), encoded = copy_encoded(&out->prompt_embeds),
               negative = copy_encoded(&out->negative_prompt_embeds);
    for (int i = 0; prompts && i < count; i++) {
        if (!(prompts[i] = strdup(given[i])))
            return false;
        out->prompt_count++;
    }
    return prompts && texts && encoded && negative &&
           !original.init_latents.values == !out->init_latents.values &&
           (original.lora_count == 0 || out->loras) &&
           !original.init_image.bytes == !out->init_image.bytes &&
           !original.mask_image.bytes == !out->mask_image.bytes;
}

bool generate_request_copy(
    const struct generate_request *request, struct generate_request *out, struct error *err) {
    *out = *request;
    if (copy_owned(out))
        return true;
    generate_request_finish(out);
    return error_set(err, ERROR_NO_MEMORY, "no memory for a request");
}

void generate_result_finish(struct generate_result *result) {
    for (int i = 0; result->images && i < result->image_count; i++)
        free(result->images[i]);
    free(result->images);
    free(result->nsfw);
    free(result->seeds);
    free(result->latents);
    memset(result, 0, sizeof(*result));
}

/* NULL is fine. */
static bool check_text(struct error *err, const char *param, const char *text) {
    size_t length = text ? strlen(text) : 0, valid = text ? utf8_valid_bytes(text, length) : 0;
    char value[48];
    if (length > PROMPT_MAX_BYTES) {
        snprintf(value, sizeof(value), "%zu bytes", length);
        return error_field(err, param, value, "at most %d bytes", PROMPT_MAX_BYTES);
    }
    if (valid == length)
        return true;
    snprintf(value, sizeof(value), "0x%02x at byte %zu", (unsigned char)text[valid], valid);
    return error_field(err, param, value, "text in UTF-8");
}

static bool check_encoded(const struct encoded_texts *e, const char *param, const char *text,
    int most, struct error *err) {
    char value[64];
    if (!e->values)
        return true;
    snprintf(value, sizeof(value), "[%lld][%lld][%lld]", (long long)e->texts, (long long)e->tokens,
        (long long)e->width);
    if (text)
        return error_field(err, param, value, "either %.*s or %s",
            (int)(strlen(param) - strlen("_embeds")), param, param);
    return (e->texts >= 1 && e->texts <= most && e->tokens >= 1 && e->width >= 1) ||
           error_field(err, param, value, "[texts][tokens][width] of 1 to %d texts", most);
}

int generate_request_texts(const struct generate_request *request) {
    return request->prompt_embeds.values ? (int)request->prompt_embeds.texts
                                         : request->prompt_count;
}

static bool check_prompts(const struct generate_request *request, struct error *err) {
    const struct encoded_texts *encoded = &request->prompt_embeds;
    const char *text = request->prompt_count > 0 ? request->prompts[0] : NULL;
    if (!check_encoded(encoded, "prompt_embeds", text, IMAGES_PER_REQUEST_MAX, err) ||
        !check_encoded(&request->negative_prompt_embeds, "negative_prompt_embeds",
            request->negative_prompt, 1, err))
        return false;
    if (encoded->values && request->clip_skip > 0) {
        char value[16];
        snprintf(value, sizeof(value), "%d", request->clip_skip);
        return error_field(err, "clip_skip", value, "0 with prompt_embeds, which are encoded");
    }
    if (encoded->values)
        return check_text(err, "negative_prompt", request->negative_prompt);
    if (request->prompt_count < 1 || !request->prompts)
        return error_field(err, "prompt", "none", "a text or a list of texts");
    for (int i = 0; i < request->prompt_count; i++) {
        if (!request->prompts[i])
            return error_field(err, "prompt", "none", "a text or a list of texts");
        if (!check_text(err, "prompt", request->prompts[i]))
            return false;
    }
    return check_text(err, "negative_prompt", request->negative_prompt);
}

static bool check_image_count(const struct generate_request *request, struct error *err) {
    int64_t images = (int64_t)generate_request_texts(request) * request->num_images;
    if (images <= IMAGES_PER_REQUEST_MAX)
        return true;
    char value[32];
    snprintf(value, sizeof(value), "%d", request->num_images);
    return error_field(err, "num_images", value,
        "prompts times num_images is at most %d images a request", IMAGES_PER_REQUEST_MAX);
}

static bool check_weight(const char *param, double weight, struct error *err) {
    char text[32];
    if (fabs(weight) <= ADAPTER_WEIGHT_MAX) /* false if value is NaN */
        return true;
    snprintf(text, sizeof(text), "%.15g", weight);
    return error_field(
        err, param, text, "a number from %g to %g", -ADAPTER_WEIGHT_MAX, ADAPTER_WEIGHT_MAX);
}

bool generate_request_check_loras(const struct generate_request *request, struct error *err) {
    char param[64], value[32];
    if (request->lora_count > LORAS_PER_REQUEST_MAX) {
        snprintf(value, sizeof(value), "%d of them", request->lora_count);
        return error_field(err, "loras", value, "at most %d", LORAS_PER_REQUEST_MAX);
    }
    for (int i = 0; i < request->lora_count; i++) {
        const struct lora_choice *lora = &request->loras[i];
        for (int k = 0; k < i; k++) {
            if (strcmp(request->loras[k].name, lora->name) != 0)
                continue;
            snprintf(param, sizeof(param), "loras[%d].name", i);
            return error_field(err, param, lora->name, "each adapter at most once");
        }
        snprintf(param, sizeof(param), "loras[%d].weight", i);
        if (!check_weight(param, lora->weight, err))
            return false;
        snprintf(param, sizeof(param), "loras[%d].text_encoder_weight", i);
        if (!check_weight(param, lora->text_encoder_weight, err))
            return false;
    }
    return true;
}

/* Refuses truncation in AUTOMATIC1111's syntax, which never truncates. */
static bool check_long_prompt(const struct generate_request *request, struct error *err) {
    return request->prompt_syntax != PROMPT_SYNTAX_A1111 || !request->long_prompt_given ||
           request->long_prompt == LONG_PROMPT_CHUNK ||
           error_field(
               err, "long_prompt", "truncate", "\"chunk\" with prompt_syntax \"a1111\", or none");
}

/* Refuses half a size, and what varies a noise that the request brings. */
static bool check_variation(const struct generate_request *request, struct error *err) {
    const int sides[2] = { request->seed_resize_from_w, request->seed_resize_from_h };
    static const char *const names[2] = { "seed_resize_from_w", "seed_resize_from_h" };
    char value[32];
    if (!sides[0] != !sides[1])
        return error_field(err, names[sides[0] != 0], "none", "a number of pixels beside %s",
            names[sides[0] == 0]);
    if (!request->init_latents.values || (request->subseed_strength == 0 && !sides[0]))
        return true;
    snprintf(value, sizeof(value), "%.15g", sides[0] ? sides[0] : request->subseed_strength);
    return error_field(err, sides[0] ? names[0] : "subseed_strength", value,
        "none with init_latents, which are the noise");
}

/* Refuses what goes only with a mask, or only without one. */
static bool check_mask(const struct generate_request *request, struct error *err) {
    const char *const *words = generate_fields[GENERATE_masked_content].words;
    if (request->masked_content != MASKED_ORIGINAL && !request->mask_image.bytes)
        return error_field(err, "masked_content", words[request->masked_content],
            "\"original\" without mask_image");
    return request->resize_mode != RESIZE_MODE_LATENT || !request->mask_image.bytes ||
           error_field(err, "resize_mode", "latent", "another one beside mask_image");
}

/* Refuses strength, mask_image and resize_mode without init_image. */
static bool check_pictures(const struct generate_request *request, struct error *err) {
    static const char with_init_image[] = "only with init_image";
    char value[32];
    snprintf(value, sizeof(value), "%.15g", request->strength);
    if (request->init_image.bytes && request->init_latents.values)
        return error_field(err, "init_image", "a picture", "either init_image or init_latents");
    if (request->init_image.bytes)
        return true;
    if (request->mask_image.bytes)
        return error_field(err, "mask_image", "a picture", "%s", with_init_image);
    if (request->strength_given)
        return error_field(err, "strength", value, "%s", with_init_image);
    return request->resize_mode == RESIZE_MODE_NONE ||
           error_field(err, "resize_mode",
               generate_fields[GENERATE_resize_mode].words[request->resize_mode], "%s",
               with_init_image);
}

bool generate_request_check(const struct generate_request *request, struct error *err) {
    if (!check_prompts(request, err))
        return false;
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++)
        if (!field_check(&generate_fields[id].field, request, err))
            return false;
    return check_image_count(request, err) && check_long_prompt(request, err) &&
           check_variation(request, err) && check_pictures(request, err) &&
           check_mask(request, err) && generate_request_check_loras(request, err);
}
