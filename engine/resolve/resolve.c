#include "engine/resolve/resolve.h"

#include "base/limits.h"
#include "base/list.h"
#include "base/random.h"
#include "engine/request/defaults.h"
#include "engine/prompts/syntax.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The default strengths of diffusers' img2img and inpaint pipelines. */
#define INIT_IMAGE_STRENGTH 0.8
#define INPAINT_STRENGTH 1.0

static bool refuse_latents(const struct init_latents *l, const char *allowed, struct error *err) {
    char value[96];
    snprintf(value, sizeof(value), "[%lld][%lld][%lld][%lld]", (long long)l->images,
        (long long)l->channels, (long long)l->height, (long long)l->width);
    return error_field(err, "init_latents", value, "%s", allowed);
}

/* Reads the sides of init_image. If it will be resized, rounds them down to multiples as diffusers
 * does. */
static bool init_image_size(const struct resolve_figures *figures, const struct resolved_request *r,
    int sides[2], struct error *err) {
    const bool resizes = r->asked.resize_mode != RESIZE_MODE_NONE;
    const bool keeps_size = r->asked.resize_mode == RESIZE_MODE_LATENT;
    const int scale = figures->vae_scale > IMAGE_MULTIPLE_PX ? figures->vae_scale
                                                             : IMAGE_MULTIPLE_PX;
    char value[48];
    if (!source_examine(&r->asked.init_image, "init_image",
            resizes && !keeps_size ? INIT_IMAGE_MAX_PX : IMAGE_MAX_PX, &sides[0], &sides[1], err))
        return false;
    snprintf(value, sizeof(value), "%dx%d px", sides[0], sides[1]);
    if (keeps_size && (sides[0] < IMAGE_MIN_PX || sides[1] < IMAGE_MIN_PX))
        return error_field(err, "init_image", value,
            "sides of %d to %d px, because its latents are resized", IMAGE_MIN_PX, IMAGE_MAX_PX);
    for (int i = 0; i < 2; i++) {
        const int asked = i ? r->asked.height : r->asked.width;
        if (resizes)
            sides[i] -= sides[i] % scale;
        if (asked == 0 && (sides[i] < IMAGE_MIN_PX || sides[i] > IMAGE_MAX_PX || sides[i] % scale))
            return error_field(err, "init_image", value,
                "sides that are multiples of %d from %d to %d px; or width, height and "
                "resize_mode " RESIZE_MODES_THAT_FIT,
                scale, IMAGE_MIN_PX, IMAGE_MAX_PX);
    }
    int mask[2];
    return !r->asked.mask_image.bytes ||
           source_examine(&r->asked.mask_image, "mask_image",
               resizes ? INIT_IMAGE_MAX_PX : IMAGE_MAX_PX, &mask[0], &mask[1], err);
}

/* Fills in a size that the request left open: from the picture, else from the starting noise, else
 * from the model. */
static bool resolve_open_size(
    const struct resolve_figures *figures, struct resolved_request *r, struct error *err) {
    const struct init_latents *l = &r->asked.init_latents;
    int scale = figures->vae_scale, *sides[2] = { &r->asked.width, &r->asked.height };
    const int64_t latent[2] = { l->width, l->height };
    int picture[2] = { 0, 0 };
    if (r->asked.init_image.bytes && !init_image_size(figures, r, picture, err))
        return false;
    for (int i = 0; i < 2; i++) {
        if (*sides[i] != 0)
            continue;
        if (l->values && (latent[i] * scale < IMAGE_MIN_PX || latent[i] > IMAGE_MAX_PX / scale)) {
            char allowed[160];
            snprintf(allowed, sizeof(allowed),
                "[%d][%d][height/%d][width/%d] with sides of %d to %d pixels", r->images,
                figures->latent_channels, scale, scale, IMAGE_MIN_PX, IMAGE_MAX_PX);
            return refuse_latents(l, allowed, err);
        }
        *sides[i] = picture[i]  ? picture[i]
                    : l->values ? (int)latent[i] * scale
                                : figures->default_px;
    }
    return true;
}

static bool check_multiple(
    const struct resolve_figures *figures, const char *name, int px, struct error *err) {
    if (px % figures->vae_scale == 0)
        return true;
    char value[16];
    snprintf(value, sizeof(value), "%d", px);
    return error_field(err, name, value, "a multiple of this model's %d", figures->vae_scale);
}

static bool resolve_size(
    const struct resolve_figures *figures, struct resolved_request *r, struct error *err) {
    if (!resolve_open_size(figures, r, err) ||
        !check_multiple(figures, "width", r->asked.width, err) ||
        !check_multiple(figures, "height", r->asked.height, err) ||
        !check_multiple(figures, "seed_resize_from_w", r->asked.seed_resize_from_w, err) ||
        !check_multiple(figures, "seed_resize_from_h", r->asked.seed_resize_from_h, err))
        return false;
    r->latent_channels = figures->latent_channels;
    r->latent_width = r->asked.width / figures->vae_scale;
    r->latent_height = r->asked.height / figures->vae_scale;
    return true;
}

static bool check_init_latents(const struct resolved_request *r, struct error *err) {
    const struct init_latents *l = &r->asked.init_latents;
    if (!l->values)
        return true;
    if (l->images != r->images || l->channels != r->latent_channels ||
        l->height != r->latent_height || l->width != r->latent_width) {
        char allowed[160];
        snprintf(allowed, sizeof(allowed), "[%d][%d][%d][%d]: this model's for %d of %dx%d pixels",
            r->images, r->latent_channels, r->latent_height, r->latent_width, r->images,
            r->asked.width, r->asked.height);
        return refuse_latents(l, allowed, err);
    }
    int64_t count = l->images * l->channels * l->height * l->width;
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(l->values[i]))
            return error_field(err, "init_latents", "not finite", "finite numbers only");
    return true;
}

static bool resolve_clip_skip(
    const struct resolve_figures *figures, const struct resolved_request *r, struct error *err) {
    int layers = figures->text_layers;
    if (r->asked.clip_skip < layers)
        return true;
    char value[16];
    snprintf(value, sizeof(value), "%d", r->asked.clip_skip);
    return error_field(err, "clip_skip", value,
        "an integer from 0 to %d: this text encoder has %d layers", layers - 1, layers);
}

/* Refuses a request without the pictures that the UNet needs. */
static bool check_kind(
    const struct resolve_figures *figures, const struct resolved_request *r, struct error *err) {
    const struct generate_request *asked = &r->asked;
    if (!figures->inpaints || (asked->init_image.bytes && asked->mask_image.bytes))
        return true;
    return error_field(err, asked->init_image.bytes ? "mask_image" : "init_image", "none",
        "a picture: this checkpoint inpaints, it needs init_image and mask_image");
}

/* Computes the number of steps as get_timesteps in diffusers does. */
static int steps_of(const struct generate_request *asked) {
    const int steps = (int)(asked->num_inference_steps * asked->strength);
    return steps < asked->num_inference_steps ? steps : asked->num_inference_steps;
}

/* Resolves the strength. Call it before resolve_scheduler. */
static bool resolve_strength(struct resolved_request *r, struct error *err) {
    struct generate_request *asked = &r->asked;
    if (!asked->init_image.bytes)
        return true;
    if (!asked->strength_given)
        asked->strength = asked->mask_image.bytes ? INPAINT_STRENGTH : INIT_IMAGE_STRENGTH;
    asked->strength_given = true;
    if (steps_of(asked) > 0)
        return true;
    char value[32];
    snprintf(value, sizeof(value), "%.15g", asked->strength);
    return error_field(err, "strength", value,
        "a number up to 1 that leaves a step of num_inference_steps: 1/%d or more",
        asked->num_inference_steps);
}

static int first_step(const struct resolved_request *r) {
    return r->asked.init_image.bytes ? r->asked.num_inference_steps - steps_of(&r->asked) : 0;
}

static bool resolve_scheduler(
    const struct resolve_figures *figures, struct resolved_request *r, struct error *err) {
    if (!scheduler_config_resolve(
            figures->scheduler_json, &r->asked.scheduler, &r->scheduler, err) ||
        !scheduler_plan_create_from(
            &r->scheduler, r->asked.num_inference_steps, first_step(r), &r->plan, err))
        return false;
    r->guided = r->asked.guidance_scale > 1 || r->plan->must_guide;
    return true;
}

static void drop_file(struct picture_file *file) {
    free(file->bytes);
    file->bytes = NULL;
}

/* Call after resolve_size. */
static bool resolve_source(
    const struct resolve_figures *figures, struct resolved_request *r, struct error *err) {
    struct generate_request *asked = &r->asked;
    if (!asked->init_image.bytes)
        return true;
    const bool ok = source_create(asked, figures->inpaints, figures->vae_scale, &r->source, err);
    drop_file(&asked->init_image);
    drop_file(&asked->mask_image);
    return ok;
}

static bool fill_seed(uint64_t *seed, bool *given, struct error *err) {
    uint32_t drawn = 0;
    if (*given)
        return true;
    if (!random_seed(&drawn, err))
        return false;
    *seed = drawn;
    *given = true;
    return true;
}

/* Takes over `text`; NULL: there was no memory for it. */
static bool add_warning(struct resolved_request *r, char *text, struct error *err) {
    if (!text || !LIST_ROOM(r->warnings, r->warning_count, "a warning", err)) {
        free(text);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a warning");
    }
    r->warnings[r->warning_count++] = text;
    return true;
}

/* Fills in an open seed, and an open subseed if there is a use for it. */
static bool resolve_seeds(struct resolved_request *r, struct error *err) {
    struct generate_request *asked = &r->asked;
    if (!fill_seed(&asked->seed, &asked->seed_given, err))
        return false;
    if (asked->subseed_strength > 0)
        return fill_seed(&asked->subseed, &asked->subseed_given, err);
    return !asked->subseed_given ||
           add_warning(r, strdup("subseed has no effect: subseed_strength is 0"), err);
}

/* Call if guidance is off. Warns about fields that then have no effect; diffusers ignores them
 * silently. */
static bool warn_without_guidance(struct resolved_request *r, struct error *err) {
    const struct generate_request *asked = &r->asked;
    const struct {
        const char *field;
        bool given;
    } of_guidance[] = {
        { "negative_prompt", asked->negative_prompt && asked->negative_prompt[0] },
        { "negative_prompt_embeds", asked->negative_prompt_embeds.values != NULL },
        { "guidance_rescale", asked->guidance_rescale != 0 },
    };
    for (size_t i = 0; i < sizeof(of_guidance) / sizeof(of_guidance[0]); i++) {
        char *text = NULL;
        if (!of_guidance[i].given)
            continue;
        if (asprintf(&text, "%s has no effect: guidance_scale is %g, and only above 1 is it used",
                of_guidance[i].field, asked->guidance_scale) < 0)
            text = NULL;
        if (!add_warning(r, text, err))
            return false;
    }
    return true;
}

/* If loras[i] in the error comes from a tag in the prompt, changes the error to name the prompt. */
static bool blame_tag(const struct resolved_request *r, struct error *err) {
    const struct generate_request *asked = &r->asked;
    char tag[ADAPTER_NAME_MAX_BYTES + 16], allowed[sizeof(err->allowed)];
    int index;
    if (!err || sscanf(err->param, "loras[%d]", &index) != 1 || index >= asked->lora_count ||
        index < asked->lora_count - r->tag_count)
        return false;
    snprintf(tag, sizeof(tag), "<lora:%s>", asked->loras[index].name);
    memcpy(allowed, err->allowed, sizeof(allowed));
    if (allowed[0] && strchr(asked->loras[index].name, ':')) /* or a weight that is no number */
        return error_field(err, "prompt", tag, PROMPT_TAG_FORM ", NAME %s", allowed);
    if (allowed[0])
        return error_field(err, "prompt", tag, "%s", allowed);
    error_prefix(err, "prompt: %s", tag);
    snprintf(err->param, sizeof(err->param), "prompt");
    return false;
}

/* Leaves out the tags that name no adapter, if the request allows it, and warns of each. */
static bool pass_unknown_tags(const struct resolve_figures *figures, struct resolved_request *r,
    struct text_extras *extras, struct error *err) {
    int kept = 0;
    for (int i = 0; i < extras->tag_count; i++) {
        const struct lora_choice *tag = &extras->tags[i];
        char whole[ADAPTER_NAME_MAX_BYTES + 1], *text = NULL;
        struct error why = { .message = "there are no adapters here" };
        if (figures->adapters && adapters_find(figures->adapters, tag->name, whole, &why)) {
            extras->tags[kept++] = *tag;
            continue;
        }
        if (asprintf(&text, "<lora:%s> is left out: %s", tag->name, why.message) < 0)
            text = NULL;
        if (!add_warning(r, text, err))
            return false;
    }
    extras->tag_count = kept;
    return true;
}

/* Adds the adapters that prompt `index` names. All images of a request use one set of adapters, so
 * all its prompts must have the same tags. */
static bool take_tags(
    struct resolved_request *r, int index, const struct text_extras *extras, struct error *err) {
    struct generate_request *asked = &r->asked;
    const size_t bytes = (size_t)extras->tag_count * sizeof(*asked->loras);
    if (index > 0) {
        const struct lora_choice *first = asked->loras + asked->lora_count - r->tag_count;
        bool same = extras->tag_count == r->tag_count;
        for (int i = 0; same && i < r->tag_count; i++)
            same = strcmp(first[i].name, extras->tags[i].name) == 0 &&
                   first[i].weight == extras->tags[i].weight &&
                   first[i].text_encoder_weight == extras->tags[i].text_encoder_weight;
        return same || error_field(err, "prompt", "other <lora:...> tags than the first prompt's",
                           "the same ones in all prompts of a request");
    }
    if (extras->tag_count == 0)
        return true;
    struct lora_choice *loras = reallocarray(
        asked->loras, (size_t)(asked->lora_count + extras->tag_count), sizeof(*loras));
    if (!loras)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a prompt's adapters");
    memcpy(loras + asked->lora_count, extras->tags, bytes);
    asked->loras = loras;
    asked->lora_count += extras->tag_count;
    asked->loras_given = true;
    r->tag_count = extras->tag_count;
    return generate_request_check_loras(asked, err) || blame_tag(r, err);
}

static bool take_encoded(const struct resolve_figures *figures, struct resolved_request *r,
    const struct encoded_texts *e, int64_t index, const char *param, struct error *err) {
    const int64_t each = e->tokens * e->width, most = TEXT_CHUNKS_MAX * r->tokens;
    const float *values = e->values + index * each;
    if (e->tokens > most || e->width != figures->context_width) {
        char value[64];
        snprintf(value, sizeof(value), "[%lld][%lld][%lld]", (long long)e->texts,
            (long long)e->tokens, (long long)e->width);
        return error_field(err, param, value, "[texts][1 to %lld][%d]: this model's context",
            (long long)most, figures->context_width);
    }
    for (int64_t i = 0; i < each; i++)
        if (!isfinite(values[i]))
            return error_field(err, param, "not finite", "finite numbers only");
    if (!LIST_ROOM(r->texts, r->text_count, "a prompt's texts", err))
        return false;
    r->texts[r->text_count++] = (struct text){
        .encoded = values,
        .tokens = (int)e->tokens,
        .chunks = (int)((e->tokens + r->tokens - 1) / r->tokens),
        .guidance = 1,
        .variants = 1,
    };
    return true;
}

/* Refuses what only guidance can draw. `first`: the prompt's first text. */
static bool check_guidance(const struct resolved_request *r, int first, struct error *err) {
    if (r->guided)
        return true;
    if (r->text_count - first > 1)
        return error_field(err, "prompt", "AND",
            "with a guidance_scale above 1, which weighs the parts; in small letters it is a word");
    return r->texts[first].guidance == 1 ||
           error_field(err, "prompt", "a weight of the whole prompt, at its end",
               "with a guidance_scale above 1, which it multiplies");
}

/* Returns the number of evaluations of the UNet that prompt editing counts. As in AUTOMATIC1111, a
 * method of second order has two per step, although it leaves out one at the end; and a drawing
 * from a picture counts from its own first step, but has fewer. */
static int evaluations_of(
    const struct generate_request *asked, const struct scheduler_config *scheduler) {
    return asked->num_inference_steps * scheduler_order(scheduler->kind);
}

/* Makes the texts of prompt `index`; -1: of the negative prompt. */
static bool make_texts_of(const struct resolve_figures *figures, struct resolved_request *r,
    int index, struct error *err) {
    const struct generate_request *asked = &r->asked;
    const struct text_options options = {
        .tokenizer = figures->tokenizer,
        .embeddings = r->embeddings,
        .context_length = figures->context_length,
        .syntax = asked->prompt_syntax,
        .long_prompt = asked->long_prompt,
        .evaluations = evaluations_of(asked, &r->scheduler),
    };
    const char *negative = asked->negative_prompt ? asked->negative_prompt : "";
    const bool is_negative = index < 0;
    const int first = r->text_count;
    struct text_extras extras = { 0 };
    const struct encoded_texts *encoded = is_negative ? &asked->negative_prompt_embeds
                                                      : &asked->prompt_embeds;
    if (encoded->values)
        return take_encoded(figures, r, encoded, is_negative ? 0 : index,
            is_negative ? "negative_prompt_embeds" : "prompt_embeds", err);
    bool ok = texts_append(&options, is_negative ? "negative_prompt" : "prompt",
        is_negative ? negative : asked->prompts[index], is_negative, &r->texts, &r->text_count,
        &extras, err);
    if (ok && extras.warning) {
        ok = add_warning(r, extras.warning, err);
        extras.warning = NULL;
    }
    if (ok && asked->unknown_tags_pass)
        ok = pass_unknown_tags(figures, r, &extras, err);
    ok = ok &&
         (is_negative || (check_guidance(r, first, err) && take_tags(r, index, &extras, err)));
    text_extras_finish(&extras);
    return ok;
}

/* Makes the texts of prompt `index`, and notes where they are. */
static bool make_prompt(const struct resolve_figures *figures, struct resolved_request *r,
    int index, struct error *err) {
    struct prompt_texts *out = &r->prompts[index];
    out->first = r->text_count;
    if (!make_texts_of(figures, r, index, err))
        return false;
    out->count = r->text_count - out->first;
    for (int i = out->first; i < r->text_count; i++)
        out->tokens = r->texts[i].tokens > out->tokens ? r->texts[i].tokens : out->tokens;
    return true;
}

static bool make_texts(
    const struct resolve_figures *figures, struct resolved_request *r, struct error *err) {
    struct generate_request *asked = &r->asked;
    r->tokens = figures->context_length;
    r->embeddings = embeddings_take(figures->embeddings);
    const int prompts = generate_request_texts(asked);
    r->prompts = calloc((size_t)prompts, sizeof(*r->prompts));
    if (!r->prompts)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the prompt's tokens");
    if (asked->prompt_syntax == PROMPT_SYNTAX_A1111)
        asked->long_prompt = LONG_PROMPT_CHUNK;
    if (r->guided && !make_texts_of(figures, r, -1, err))
        return false;
    for (int i = 0; i < prompts; i++)
        if (!make_prompt(figures, r, i, err))
            return false;
    for (int i = 0; i < r->text_count; i++) {
        r->chunks = r->texts[i].chunks > r->chunks ? r->texts[i].chunks : r->chunks;
        r->vectors = r->vectors || r->texts[i].vectors > 0;
    }
    return true;
}

/* Resolves the adapters. Called last, because it may take long. */
static bool resolve_loras(
    const struct resolve_figures *figures, struct resolved_request *r, struct error *err) {
    const struct generate_request *asked = &r->asked;
    if (!figures->adapters && asked->lora_count > 0)
        error_field(err, "loras[0].name", asked->loras[0].name, "there are no adapters here");
    if (!figures->adapters)
        return asked->lora_count == 0 || blame_tag(r, err);
    if (!adapters_resolve(figures->adapters, asked->loras, asked->lora_count, asked->loras_given,
            &r->adapters, err))
        return blame_tag(r, err);
    const uint64_t base = adapter_set_base_id(r->adapters);
    return base == 0 || base == figures->adapters_base ||
           error_set(err, ERROR_UNAVAILABLE, "another checkpoint was loaded just now: try again");
}

/* Editing and alternation may make many texts of a long prompt. */
static bool is_long(const char *prompt) {
    return strlen(prompt) > PROMPT_AT_ONCE_BYTES;
}

bool resolve_would_wait(struct adapters *adapters, const struct generate_request *request) {
    if (request->init_image.bytes || request->mask_image.bytes)
        return true;
    const bool a1111 = request->prompt_syntax == PROMPT_SYNTAX_A1111;
    for (int i = 0; a1111 && i < request->prompt_count; i++)
        if (prompt_may_have_tags(request->prompts[i]) || is_long(request->prompts[i]))
            return true;
    if (a1111 && request->negative_prompt && is_long(request->negative_prompt))
        return true;
    return adapters &&
           adapters_would_wait(adapters, request->loras, request->lora_count, request->loras_given);
}

bool resolve_request(const struct resolve_figures *figures, const struct generate_request *request,
    struct resolved_request *out, struct error *err) {
    struct resolved_request *r = out;
    memset(r, 0, sizeof(*r));
    if (!generate_request_check(request, err) || !generate_request_copy(request, &r->asked, err))
        return false;
    const bool defaults = generate_defaults_apply(figures->defaults, &r->asked, err);
    r->images = generate_request_texts(request) * request->num_images;
    if (defaults && check_kind(figures, r, err) && resolve_size(figures, r, err) &&
        check_init_latents(r, err) && resolve_clip_skip(figures, r, err) &&
        resolve_strength(r, err) && resolve_scheduler(figures, r, err) &&
        resolve_source(figures, r, err) && resolve_seeds(r, err) &&
        (r->guided || warn_without_guidance(r, err)) && make_texts(figures, r, err) &&
        resolve_loras(figures, r, err))
        return true;
    resolved_request_finish(r);
    return false;
}

/* `asked`: a copy of the request. Fills in its defaults. */
static bool count_text(const struct resolve_figures *figures, struct generate_request *asked,
    bool negative, const struct embedding_set *embeddings, struct text_count *out,
    struct error *err) {
    struct scheduler_config scheduler;
    const char *text = negative ? asked->negative_prompt : asked->prompts[0];
    if (!generate_defaults_apply(figures->defaults, asked, err) ||
        !scheduler_config_resolve(figures->scheduler_json, &asked->scheduler, &scheduler, err))
        return false;
    const struct text_options options = {
        .tokenizer = figures->tokenizer,
        .embeddings = embeddings,
        .context_length = figures->context_length,
        .syntax = asked->prompt_syntax,
        .long_prompt = asked->prompt_syntax == PROMPT_SYNTAX_A1111 ? LONG_PROMPT_CHUNK
                                                                   : asked->long_prompt,
        .evaluations = evaluations_of(asked, &scheduler),
    };
    return text_count(&options, negative ? "negative_prompt" : "prompt", text, negative, out, err);
}

bool resolve_text_count(const struct resolve_figures *figures,
    const struct generate_request *request, bool negative, struct text_count *out,
    struct error *err) {
    struct generate_request asked;
    if (!generate_request_copy(request, &asked, err))
        return false;
    struct embedding_set *embeddings = embeddings_take(figures->embeddings);
    const bool ok = count_text(figures, &asked, negative, embeddings, out, err);
    embedding_set_release(embeddings);
    generate_request_finish(&asked);
    return ok;
}

void resolved_request_finish(struct resolved_request *request) {
    generate_request_finish(&request->asked);
    adapter_set_release(request->adapters);
    scheduler_plan_destroy(request->plan);
    source_destroy(request->source);
    for (int i = 0; i < request->warning_count; i++)
        free(request->warnings[i]);
    free(request->warnings);
    for (int i = 0; i < request->text_count; i++)
        text_finish(&request->texts[i]);
    free(request->texts);
    free(request->prompts);
    if (request->of.release)
        request->of.release(request->of.model);
    embedding_set_release(request->embeddings);
    memset(request, 0, sizeof(*request));
}

/* As in AUTOMATIC1111, variations of a request have the seed in common. */
uint64_t resolved_request_seed(const struct resolved_request *request, int index) {
    const struct generate_request *asked = &request->asked;
    return asked->subseed_strength > 0 ? asked->seed : asked->seed + (uint64_t)index;
}

uint64_t resolved_request_subseed(const struct resolved_request *request, int index) {
    return request->asked.subseed + (uint64_t)index;
}

struct noise_variation resolved_request_variation(
    const struct resolved_request *request, int index) {
    const struct generate_request *asked = &request->asked;
    const int scale = asked->width / request->latent_width;
    /* The size that is drawn anyway is none of its own. */
    const bool resizes = asked->seed_resize_from_w != asked->width ||
                         asked->seed_resize_from_h != asked->height;
    return (struct noise_variation){
        .kind = asked->rng,
        .seed = resolved_request_seed(request, index),
        .strength = asked->subseed_strength,
        .subseed = resolved_request_subseed(request, index),
        .height = resizes ? asked->seed_resize_from_h / scale : 0,
        .width = resizes ? asked->seed_resize_from_w / scale : 0,
    };
}

struct prompt_texts resolved_request_texts(const struct resolved_request *request, int index) {
    if (!request->prompts)
        return (struct prompt_texts){ .first = request->guided, .count = 1 };
    return request->prompts[index / request->asked.num_images];
}

int resolved_request_rows(const struct resolved_request *request, int index) {
    return resolved_request_texts(request, index).count + request->guided;
}

const char *resolved_request_prompt(const struct resolved_request *request, int index) {
    const struct generate_request *asked = &request->asked;
    return asked->prompt_count > 0 ? asked->prompts[index / asked->num_images] : "";
}
