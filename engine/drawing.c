#include "engine/drawing.h"

#include "base/limits.h"
#include "base/monotonic.h"
#include "engine/sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct drawing {
    const struct drawing_models *models;
    const struct generate_request *request;
    const struct generate_hooks *hooks; /* may be NULL */
    struct generate_result *result;
    struct scheduler_plan *plan;        /* owned */
    struct noise_generator *generators; /* owned, [images] */
    int32_t
        *ids; /* owned, [texts][tokens]: the negative prompt first if guided, then the prompts */
    int texts, tokens;
    bool guided;
    int images, images_per_call;
    int evaluations_before;       /* those of earlier UNet calls' images */
    double started_s, deadline_s; /* deadline 0: none */
};

int drawing_default_px(const struct drawing_models *models) {
    return unet_get_config(models->unet)->sample_size * vae_scale(models->vae);
}

/* --- what a request asks, resolved --- */

static bool resolve_size(struct drawing *d, struct error *err) {
    struct generate_result *r = d->result;
    int scale = vae_scale(d->models->vae), standard = drawing_default_px(d->models);
    r->width = d->request->width ? d->request->width : standard;
    r->height = d->request->height ? d->request->height : standard;
    const int sizes[] = { r->width, r->height };
    for (int i = 0; i < 2; i++)
        if (sizes[i] % scale) {
            char value[16];
            snprintf(value, sizeof(value), "%d", sizes[i]);
            return error_field(
                err, i ? "height" : "width", value, "a multiple of this model's %d", scale);
        }
    r->latent_channels = vae_get_config(d->models->vae)->latent_channels;
    r->latent_width = r->width / scale;
    r->latent_height = r->height / scale;
    return true;
}

static bool resolve_scheduler(struct drawing *d, struct error *err) {
    struct scheduler_config config;
    return scheduler_config_resolve(
               d->models->scheduler_json, &d->request->scheduler, &config, err) &&
           scheduler_plan_create(&config, d->request->num_inference_steps, &d->plan, err);
}

static bool resolve_clip_skip(const struct drawing *d, struct error *err) {
    int layers = text_encoder_get_config(d->models->text_encoder)->num_hidden_layers;
    if (d->request->clip_skip < layers)
        return true;
    char value[16];
    snprintf(value, sizeof(value), "%d", d->request->clip_skip);
    return error_field(err, "clip_skip", value,
        "an integer from 0 to %d: this text encoder has %d "
        "layers",
        layers - 1, layers);
}

/* Where the request leaves the seed open: 32 random bits, all that torch's CPU generator uses. */
static bool resolve_seeds(struct drawing *d, struct error *err) {
    uint64_t seed = d->request->seed;
    if (!d->request->seed_given) {
        uint32_t drawn;
        if (getrandom(&drawn, sizeof(drawn), 0) != sizeof(drawn))
            return error_set(err, ERROR_IO, "the system gives no random seed");
        seed = drawn;
    }
    for (int i = 0; i < d->images; i++) {
        d->result->seeds[i] = seed + (uint64_t)i;
        noise_init(&d->generators[i], d->request->rng, d->result->seeds[i]);
    }
    return true;
}

static bool add_warning(struct generate_result *result, char *text, struct error *err) {
    char **grown = realloc(result->warnings, sizeof(*grown) * (size_t)(result->warning_count + 1));
    if (!text || !grown) {
        free(text);
        if (grown)
            result->warnings = grown;
        return error_set(err, ERROR_NO_MEMORY, "no memory for a warning");
    }
    result->warnings = grown;
    result->warnings[result->warning_count++] = text;
    return true;
}

static bool tokenize_one(
    struct drawing *d, int text, const char *what, const char *string, struct error *err) {
    char *cut = NULL, *warning = NULL;
    int32_t *ids = d->ids + (size_t)text * (size_t)d->tokens;
    if (!tokenizer_encode_padded(d->models->tokenizer, string, (size_t)d->tokens, ids, &cut, err))
        return error_prefix(err, "%s", what);
    if (!cut)
        return true;
    if (asprintf(&warning, "%s: only the first %d tokens were used; this was cut: \"%s\"", what,
            d->tokens - 2, cut) < 0)
        warning = NULL;
    free(cut);
    return add_warning(d->result, warning, err);
}

static bool tokenize(struct drawing *d, struct error *err) {
    int text = 0;
    const char *negative = d->request->negative_prompt ? d->request->negative_prompt : "";
    if (d->guided && !tokenize_one(d, text++, "negative_prompt", negative, err))
        return false;
    for (int i = 0; i < d->request->prompt_count; i++)
        if (!tokenize_one(d, text++, "prompt", d->request->prompts[i], err))
            return false;
    return true;
}

static bool allocate_result(struct drawing *d, struct error *err) {
    struct generate_result *r = d->result;
    size_t images = (size_t)d->images;
    size_t latents = (size_t)r->latent_channels * (size_t)r->latent_height *
                     (size_t)r->latent_width;
    r->image_count = d->images;
    r->seeds = calloc(images, sizeof(*r->seeds));
    r->latents = calloc(images * latents, sizeof(*r->latents));
    d->generators = calloc(images, sizeof(*d->generators));
    d->ids = calloc((size_t)d->texts * (size_t)d->tokens, sizeof(*d->ids));
    bool ok = r->seeds && r->latents && d->generators && d->ids;
    if (ok && !d->request->latent_output) {
        r->images = calloc(images, sizeof(*r->images));
        ok = r->images;
        for (size_t i = 0; i < images && ok; i++)
            ok = (r->images[i] = malloc((size_t)r->width * (size_t)r->height * 3));
    }
    return ok || error_set(err, ERROR_NO_MEMORY, "no memory for %d pictures of %dx%d", d->images,
                     r->width, r->height);
}

static int images_per_call(const struct drawing *d) {
    const struct kernels *kernels = d->models->kernels;
    int64_t fit = kernels->batch_px / ((int64_t)d->result->width * d->result->height);
    const int limits[] = { kernels->batch_images, UNET_CALL_MAX_IMAGES, d->images };
    for (int i = 0; i < 3; i++)
        if (fit > limits[i])
            fit = limits[i];
    return fit < 1 ? 1 : (int)fit;
}

static bool check_init_latents(const struct drawing *d, struct error *err) {
    const struct generate_result *r = d->result;
    int64_t count = (int64_t)d->images * r->latent_channels * r->latent_height * r->latent_width;
    for (int64_t i = 0; d->request->init_latents && i < count; i++)
        if (!isfinite(d->request->init_latents[i]))
            return error_field(err, "init_latents", "not finite", "finite numbers only");
    return true;
}

static bool prepare(struct drawing *d, struct error *err) {
    if (!generate_request_check(d->request, err))
        return false;
    d->guided = d->request->guidance_scale > 1;
    d->images = d->request->prompt_count * d->request->num_images;
    d->texts = d->request->prompt_count + (d->guided ? 1 : 0);
    d->tokens = text_encoder_get_config(d->models->text_encoder)->max_position_embeddings;
    if (!resolve_size(d, err))
        return false;
    d->images_per_call = images_per_call(d);
    return resolve_clip_skip(d, err) && resolve_scheduler(d, err) && allocate_result(d, err) &&
           check_init_latents(d, err) && resolve_seeds(d, err) && tokenize(d, err);
}

static void drawing_finish(struct drawing *d) {
    scheduler_plan_destroy(d->plan);
    free(d->generators);
    free(d->ids);
}

/* --- the pass over the models --- */

/* Evaluations of the whole request: every UNet call of every group of images. */
static int total_evaluations(const struct drawing *d) {
    return (d->images + d->images_per_call - 1) / d->images_per_call * d->plan->count;
}

static bool report(struct drawing *d, int evaluations_done, struct error *err) {
    if (d->deadline_s > 0 && monotonic_seconds() > d->deadline_s)
        return error_set(err, ERROR_TIMEOUT, "timeout_s: the time was over after %d of %d steps",
            evaluations_done, total_evaluations(d));
    if (d->hooks && d->hooks->progress &&
        !d->hooks->progress(evaluations_done, total_evaluations(d), d->hooks->user))
        return error_set(err, ERROR_CANCELLED, "the request was cancelled after %d of %d steps",
            evaluations_done, total_evaluations(d));
    return true;
}

static bool between(int evaluations_done, void *user, struct error *err) {
    struct drawing *d = user;
    return report(d, d->evaluations_before + evaluations_done, err);
}

/* Texts that are encoded together. */
struct encoding {
    const struct text_encoder *text_encoder;
    struct tensor ids, context; /* i32 [n][tokens] and [n][tokens][hidden] */
    int clip_skip;
};

static void run_text_encoder(struct compute *c, const void *user) {
    const struct encoding *e = user;
    struct tensor context = e->context;
    text_encoder_forward(e->text_encoder, c, &e->ids, e->clip_skip, &context);
}

/* Rows [first, first + count) of the ids and of the context. */
static void encode(struct compute *c, const struct drawing *d, const struct tensor *ids, int first,
    int count, int clip_skip, const struct tensor *context) {
    const struct encoding e = { d->models->text_encoder, tensor_rows(ids, first, count),
        tensor_rows(context, first, count), clip_skip };
    const uintptr_t key[] = { (uintptr_t)e.text_encoder, (uintptr_t)e.ids.data,
        (uintptr_t)e.context.data, (uintptr_t)count, (uintptr_t)d->tokens, (uintptr_t)clip_skip };
    if (compute_ok(c))
        compute_recorded(c, key, sizeof(key), run_text_encoder, &e);
}

/* context: [texts][tokens][hidden]. clip_skip is the prompts' alone, as in diffusers. */
static void encode_texts(struct compute *c, struct drawing *d, const struct tensor *context) {
    size_t mark = arena_mark(c->arena);
    struct tensor ids = compute_tensor_2d(c, DTYPE_I32, d->texts, d->tokens);
    int negatives = d->guided ? 1 : 0;
    compute_upload(c, d->ids, &ids);
    if (d->guided)
        encode(c, d, &ids, 0, negatives, 0, context);
    encode(c, d, &ids, negatives, d->request->prompt_count, d->request->clip_skip, context);
    compute_synchronize(c); /* for its time only */
    arena_release(c->arena, mark);
}

static void copy_row(struct compute *c, const struct tensor *from, int from_row,
    const struct tensor *to, int to_row) {
    struct tensor x = tensor_rows(from, from_row, 1), y = tensor_rows(to, to_row, 1);
    op_convert(c, &(struct convert_args){ .x = &x, .layout = LAYOUT_SAME, .y = &y });
}

/* Images [first, first + count) from noise to latents. Images of one prompt are neighbours. */
static void sample_images(
    struct compute *c, struct drawing *d, const struct tensor *texts, int first, int count) {
    size_t mark = arena_mark(c->arena);
    int rows = d->guided ? 2 * count : count;
    struct tensor context = compute_tensor_3d(
        c, texts->dtype, rows, texts->shape[1], texts->shape[2]);
    for (int i = 0; i < count && compute_ok(c); i++) {
        int prompt = (first + i) / d->request->num_images;
        if (d->guided)
            copy_row(c, texts, 0, &context, i);
        copy_row(c, texts, prompt + (d->guided ? 1 : 0), &context, i + rows - count);
    }
    const struct generate_result *r = d->result;
    int64_t elements = (int64_t)r->latent_channels * r->latent_height * r->latent_width;
    const float *init = d->request->init_latents;
    struct sampler_batch batch = {
        .unet = d->models->unet,
        .plan = d->plan,
        .images = count,
        .height = r->latent_height,
        .width = r->latent_width,
        .guided = d->guided,
        .guidance_scale = d->request->guidance_scale,
        .guidance_rescale = d->request->guidance_rescale,
        .context = &context,
        .generators = d->generators + first,
        .init_latents = init ? init + first * elements : NULL,
        .latents = r->latents + first * elements,
        .between = between,
        .user = d,
    };
    sampler_run(c, &batch);
    arena_release(c->arena, mark);
}

/* As diffusers: clamp(x / 2 + 0.5, 0, 1) * 255, half to even. */
static bool to_bytes(const float *image, size_t count, uint8_t *out) {
    bool finite = true;
    for (size_t i = 0; i < count; i++) {
        finite = finite && isfinite(image[i]);
        out[i] = (uint8_t)lrintf(fminf(fmaxf(image[i] * 0.5f + 0.5f, 0), 1) * 255);
    }
    return finite;
}

/* One decode: kept f32 [1][c][h][w] to image f32 [1][height][width][3]. */
struct decoding {
    const struct vae *vae;
    struct tensor kept, latents, image;
};

static void run_vae(struct compute *c, const void *user) {
    const struct decoding *v = user;
    struct tensor latents = v->latents, image = v->image;
    op_convert(
        c, &(struct convert_args){ .x = &v->kept, .layout = LAYOUT_NCHW_TO_NHWC, .y = &latents });
    vae_decode(v->vae, c, &latents, &image);
}

static void decode_image(struct compute *c, struct drawing *d, int index) {
    struct generate_result *r = d->result;
    size_t mark = arena_mark(c->arena);
    int64_t h = r->latent_height, w = r->latent_width, channels = r->latent_channels;
    const struct decoding v = {
        .vae = d->models->vae,
        .kept = compute_tensor_4d(c, DTYPE_F32, 1, channels, h, w),
        .latents = compute_tensor_4d(c, DTYPE_F32, 1, h, w, channels),
        .image = compute_tensor_4d(c, DTYPE_F32, 1, r->height, r->width, 3),
    };
    const uintptr_t key[] = { (uintptr_t)v.vae, (uintptr_t)v.kept.data, (uintptr_t)v.latents.data,
        (uintptr_t)v.image.data, (uintptr_t)h, (uintptr_t)w };
    compute_upload(c, r->latents + index * channels * h * w, &v.kept);
    compute_recorded(c, key, sizeof(key), run_vae, &v);
    const float *image = compute_view(c, &v.image);
    if (image && !to_bytes(image, (size_t)tensor_elements(&v.image), r->images[index]))
        error_set(&c->error, ERROR_INTERNAL,
            "the decoded picture is not finite: the decoder's output overflowed or is damaged");
    arena_release(c->arena, mark);
}

static void sample_all(struct compute *c, struct drawing *d) {
    size_t mark = arena_mark(c->arena);
    struct tensor texts = compute_tensor_3d(c, unet_activation_dtype(d->models->unet), d->texts,
        d->tokens, unet_get_config(d->models->unet)->cross_attention_dim);
    if (!compute_ok(c))
        return;
    double begun = monotonic_seconds();
    encode_texts(c, d, &texts);
    double encoded = monotonic_seconds();
    d->evaluations_before = 0;
    for (int first = 0; first < d->images && compute_ok(c); first += d->images_per_call) {
        int left = d->images - first;
        sample_images(c, d, &texts, first, left < d->images_per_call ? left : d->images_per_call);
        d->evaluations_before += d->plan->count;
        if (c->dry_run)
            break; /* the first group is the largest */
    }
    d->result->timings.text_encoder_s = encoded - begun;
    d->result->timings.unet_s = monotonic_seconds() - encoded;
    d->result->timings.steps = d->evaluations_before;
    arena_release(c->arena, mark);
}

static void pass(struct compute *c, void *user) {
    struct drawing *d = user;
    sample_all(c, d);
    double begun = monotonic_seconds();
    for (int i = 0; i < d->images && !d->request->latent_output && compute_ok(c); i++) {
        if (!c->dry_run && !report(d, total_evaluations(d), &c->error))
            return;
        decode_image(c, d, i);
        if (c->dry_run)
            break;
    }
    d->result->timings.vae_s = monotonic_seconds() - begun;
}

/* --- memory --- */

/* Walks through the drawing without computing; *peak: bytes of activations that it takes. */
static bool dry_pass(struct drawing *d, bool note, size_t *peak, struct error *err) {
    struct compute dry = {
        .kernels = d->models->kernels, .arena = d->models->arena, .dry_run = true, .note = note
    };
    arena_plan_begin(dry.arena);
    pass(&dry, d);
    *peak = arena_plan_end(dry.arena);
    if (!compute_ok(&dry) && err)
        *err = dry.error;
    return compute_ok(&dry);
}

/* Refuses what does not fit before it is taken: a system promises any amount and kills the process
 * when it is used. */
static bool reserve(struct drawing *d, struct error *err) {
    struct arena *arena = d->models->arena;
    size_t peak, reserved = arena_reserved_bytes(arena);
    if (!dry_pass(d, false, &peak, err))
        return false;
    if (peak <= reserved)
        return true;
    size_t available = d->models->kernels->memory->available();
    if (available < SIZE_MAX - reserved && peak > available + reserved)
        return error_set(err, ERROR_NO_MEMORY,
            "a %dx%d picture needs %zu MiB of memory and %zu MiB are available: ask for a smaller "
            "one",
            d->result->width, d->result->height, peak >> 20, (available + reserved) >> 20);
    /* They hold addresses of the block that is about to go, and memory that may be wanted. */
    recordings_clear(d->models->recordings);
    return arena_reserve(arena, peak, err);
}

static bool draw(struct drawing *d, struct error *err) {
    struct compute c = {
        .kernels = d->models->kernels,
        .arena = d->models->arena,
        .recordings = d->models->recordings,
    };
    size_t mark = arena_mark(c.arena);
    pass(&c, d);
    arena_release(c.arena, mark);
    if (compute_ok(&c))
        return true;
    if (err)
        *err = c.error;
    return false;
}

bool drawing_run(const struct drawing_models *models, const struct generate_request *request,
    const struct generate_hooks *hooks, struct generate_result *result, struct error *err) {
    struct drawing d = { .models = models,
        .request = request,
        .hooks = hooks,
        .result = result,
        .started_s = monotonic_seconds() };
    if (request->timeout_s > 0)
        d.deadline_s = d.started_s + request->timeout_s;
    bool ok = prepare(&d, err) && reserve(&d, err) && draw(&d, err);
    result->timings.total_s = monotonic_seconds() - d.started_s;
    drawing_finish(&d);
    return ok;
}

bool drawing_plan(const struct drawing_models *models, const struct generate_request *request,
    struct error *err) {
    struct generate_result result = { 0 };
    struct drawing d = { .models = models, .request = request, .result = &result };
    bool ok = prepare(&d, err) && reserve(&d, err);
    drawing_finish(&d);
    generate_result_finish(&result);
    return ok;
}

bool drawing_note(const struct drawing_models *models, const struct generate_request *request,
    struct error *err) {
    struct generate_result result = { 0 };
    struct drawing d = { .models = models, .request = request, .result = &result };
    size_t peak;
    bool ok = prepare(&d, err) && dry_pass(&d, true, &peak, err);
    drawing_finish(&d);
    generate_result_finish(&result);
    return ok;
}
