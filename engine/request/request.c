#include "engine/request/request.h"

#include "base/limits.h"
#include "base/text/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void generate_request_init(struct generate_request *request) {
    *request = (struct generate_request){
        .num_inference_steps = 25,
        .guidance_scale = 7.5,
        .num_images = 1,
        .rng = RNG_CPU,
    };
}

static const char *const long_prompt_words[] = {
#define LONG_PROMPT(name, word) word,
    LONG_PROMPTS(LONG_PROMPT)
#undef LONG_PROMPT
};

static const char *const prompt_syntax_words[] = {
#define PROMPT_SYNTAX(name, word) word,
    PROMPT_SYNTAXES(PROMPT_SYNTAX)
#undef PROMPT_SYNTAX
};

static const char *const resize_mode_words[] = {
#define RESIZE_MODE(name, word) word,
    RESIZE_MODES(RESIZE_MODE)
#undef RESIZE_MODE
};

/* Index of the word in `words`; -1: it is not there. */
static int find_word(const char *const *words, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(name, words[i]) == 0)
            return i;
    return -1;
}

const char *long_prompt_name(enum long_prompt kind) {
    return long_prompt_words[kind];
}

bool long_prompt_from_name(const char *name, enum long_prompt *out) {
    const int found = find_word(
        long_prompt_words, sizeof(long_prompt_words) / sizeof(long_prompt_words[0]), name);
    if (found >= 0)
        *out = (enum long_prompt)found;
    return found >= 0;
}

const char *prompt_syntax_name(enum prompt_syntax syntax) {
    return prompt_syntax_words[syntax];
}

bool prompt_syntax_from_name(const char *name, enum prompt_syntax *out) {
    const int found = find_word(
        prompt_syntax_words, sizeof(prompt_syntax_words) / sizeof(prompt_syntax_words[0]), name);
    if (found >= 0)
        *out = (enum prompt_syntax)found;
    return found >= 0;
}

const char *resize_mode_name(enum resize_mode mode) {
    return resize_mode_words[mode];
}

bool resize_mode_from_name(const char *name, enum resize_mode *out) {
    const int found = find_word(
        resize_mode_words, sizeof(resize_mode_words) / sizeof(resize_mode_words[0]), name);
    if (found >= 0)
        *out = (enum resize_mode)found;
    return found >= 0;
}

void generate_request_finish(struct generate_request *request) {
    for (int i = 0; request->prompts && i < request->prompt_count; i++)
        free(request->prompts[i]);
    free(request->prompts);
    free(request->negative_prompt);
    free(request->model);
    free(request->prompt_embeds.values);
    free(request->negative_prompt_embeds.values);
    free(request->init_latents.values);
    free(request->init_image.bytes);
    free(request->mask_image.bytes);
    free(request->loras);
    memset(request, 0, sizeof(*request));
}

/* A copy of `count` elements; NULL if there are none, or no memory. */
static void *copy_of(const void *things, size_t count, size_t size) {
    void *copy = things && count > 0 ? malloc(count * size) : NULL;
    if (copy)
        memcpy(copy, things, count * size);
    return copy;
}

/* Copies its values, which still belong to the original. */
static bool copy_encoded(struct encoded_texts *e) {
    const float *values = e->values;
    e->values = copy_of(values, (size_t)(e->texts * e->tokens * e->width), sizeof(*values));
    return !values || e->values;
}

/* Copies the owned members of *out, which still belong to the original. */
static bool copy_owned(struct generate_request *out) {
    char **prompts = calloc((size_t)out->prompt_count + 1, sizeof(*prompts)),
         **given = out->prompts;
    const char *negative_prompt = out->negative_prompt, *model = out->model;
    const float *latents = out->init_latents.values;
    const struct lora_choice *loras = out->loras;
    const void *init_image = out->init_image.bytes, *mask_image = out->mask_image.bytes;
    int count = out->prompt_count;
    out->prompts = prompts;
    out->prompt_count = 0;
    out->negative_prompt = out->model = NULL;
    out->init_latents.values = NULL;
    out->init_image.bytes = out->mask_image.bytes = NULL;
    out->loras = NULL;
    const bool encoded = copy_encoded(&out->prompt_embeds);
    if (!copy_encoded(&out->negative_prompt_embeds) || !encoded)
        return false;
    for (int i = 0; prompts && i < count; i++) {
        if (!(prompts[i] = strdup(given[i])))
            return false;
        out->prompt_count++;
    }
    if (!prompts || (negative_prompt && !(out->negative_prompt = strdup(negative_prompt))) ||
        (model && !(out->model = strdup(model))))
        return false;
    const struct init_latents *l = &out->init_latents;
    const size_t values = (size_t)(l->images * l->channels * l->height * l->width);
    out->loras = copy_of(loras, (size_t)out->lora_count, sizeof(*loras));
    out->init_latents.values = copy_of(latents, values, sizeof(*latents));
    out->init_image.bytes = copy_of(init_image, out->init_image.size, 1);
    out->mask_image.bytes = copy_of(mask_image, out->mask_image.size, 1);
    return (!latents || out->init_latents.values) && (out->lora_count == 0 || out->loras) &&
           (!init_image || out->init_image.bytes) && (!mask_image || out->mask_image.bytes);
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

static bool check_int(struct error *err, const char *param, int value, int low, int high) {
    if (value >= low && value <= high)
        return true;
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    return error_field(err, param, text, "an integer from %d to %d", low, high);
}

static bool check_double(
    struct error *err, const char *param, double value, double low, double high) {
    if (value >= low && value <= high) /* false for a NaN */
        return true;
    char text[32];
    snprintf(text, sizeof(text), "%.15g", value);
    return error_field(err, param, text, "a number from %g to %g", low, high);
}

static bool check_size(struct error *err, const char *param, int value) {
    if (value == 0 ||
        (value >= IMAGE_MIN_PX && value <= IMAGE_MAX_PX && value % IMAGE_MULTIPLE_PX == 0))
        return true;
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    return error_field(err, param, text, "a multiple of %d from %d to %d", IMAGE_MULTIPLE_PX,
        IMAGE_MIN_PX, IMAGE_MAX_PX);
}

static bool check_timeout(struct error *err, double seconds) {
    if (seconds == 0 || (seconds > 0 && seconds <= TIMEOUT_MAX_S))
        return true;
    char text[32];
    snprintf(text, sizeof(text), "%.15g", seconds);
    return error_field(err, "timeout_s", text, TIMEOUT_ALLOWED, TIMEOUT_MAX_S);
}

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
        if (!check_double(err, param, lora->weight, -ADAPTER_WEIGHT_MAX, ADAPTER_WEIGHT_MAX))
            return false;
        snprintf(param, sizeof(param), "loras[%d].text_encoder_weight", i);
        if (!check_double(
                err, param, lora->text_encoder_weight, -ADAPTER_WEIGHT_MAX, ADAPTER_WEIGHT_MAX))
            return false;
    }
    return true;
}

/* AUTOMATIC1111's syntax never truncates. */
static bool check_long_prompt(const struct generate_request *request, struct error *err) {
    return request->prompt_syntax != PROMPT_SYNTAX_A1111 || !request->long_prompt_given ||
           request->long_prompt == LONG_PROMPT_CHUNK ||
           error_field(err, "long_prompt", long_prompt_name(request->long_prompt),
               "\"chunk\" with prompt_syntax \"a1111\", or none");
}

/* Strength, mask and resize_mode need a picture. */
static bool check_pictures(const struct generate_request *request, struct error *err) {
    static const char with_init_image[] = "only with init_image";
    char value[32];
    snprintf(value, sizeof(value), "%.15g", request->strength);
    if (request->init_image.bytes && request->init_latents.values)
        return error_field(err, "init_image", "a picture", "either init_image or init_latents");
    if (request->init_image.bytes)
        return !request->strength_given || check_double(err, "strength", request->strength, 0, 1);
    if (request->mask_image.bytes)
        return error_field(err, "mask_image", "a picture", "%s", with_init_image);
    if (request->strength_given)
        return error_field(err, "strength", value, "%s", with_init_image);
    return request->resize_mode == RESIZE_MODE_NONE ||
           error_field(
               err, "resize_mode", resize_mode_name(request->resize_mode), "%s", with_init_image);
}

bool generate_request_check(const struct generate_request *request, struct error *err) {
    return check_prompts(request, err) && check_size(err, "width", request->width) &&
           check_size(err, "height", request->height) &&
           check_int(err, "num_inference_steps", request->num_inference_steps, 1, STEPS_MAX) &&
           check_double(err, "guidance_scale", request->guidance_scale, 0, GUIDANCE_SCALE_MAX) &&
           check_double(err, "guidance_rescale", request->guidance_rescale, 0, 1) &&
           check_int(err, "num_images", request->num_images, 1, IMAGES_PER_REQUEST_MAX) &&
           check_image_count(request, err) &&
           check_int(err, "clip_skip", request->clip_skip, 0, CLIP_SKIP_MAX) &&
           check_long_prompt(request, err) && check_pictures(request, err) &&
           check_timeout(err, request->timeout_s) &&
           check_int(err, "priority", request->priority, -PRIORITY_MAX, PRIORITY_MAX) &&
           (request->quality == 0 ||
               check_int(err, "quality", request->quality, 1, PICTURE_QUALITY_MAX)) &&
           generate_request_check_loras(request, err);
}
