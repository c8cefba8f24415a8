#include "engine/drawing.h"

#include "base/limits.h"
#include "base/monotonic.h"
#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>

struct drawing {
    const struct drawing_models *models;
    const struct resolved_request *request;
    const struct generate_hooks *hooks; /* may be NULL */
    struct generate_result *result;
    struct image *images;       /* owned, [request->images] */
    int images_per_call, calls; /* UNet calls so far */
    double begun_s, deadline_s; /* deadline 0: none */
};

static size_t latent_elements(const struct resolved_request *r) {
    return (size_t)r->latent_channels * (size_t)r->latent_height * (size_t)r->latent_width;
}

static bool allocate(struct drawing *d, struct error *err) {
    const struct resolved_request *r = d->request;
    struct generate_result *out = d->result;
    size_t images = (size_t)r->images;
    out->width = r->asked.width;
    out->height = r->asked.height;
    out->latent_channels = r->latent_channels;
    out->latent_height = r->latent_height;
    out->latent_width = r->latent_width;
    out->image_count = r->images;
    out->seeds = calloc(images, sizeof(*out->seeds));
    out->latents = calloc(images * latent_elements(r), sizeof(*out->latents));
    d->images = calloc(images, sizeof(*d->images));
    bool ok = out->seeds && out->latents && d->images;
    if (ok && !r->asked.latent_output) {
        out->images = calloc(images, sizeof(*out->images));
        ok = out->images;
        for (size_t i = 0; i < images && ok; i++)
            ok = (out->images[i] = malloc((size_t)out->width * (size_t)out->height * 3));
    }
    return ok || error_set(err, ERROR_NO_MEMORY, "no memory for %d pictures of %dx%d", r->images,
                     out->width, out->height);
}

static int images_per_call(const struct drawing *d) {
    const struct kernels *kernels = d->models->kernels;
    int64_t fit = kernels->batch_px / ((int64_t)d->result->width * d->result->height);
    const int limits[] = { kernels->batch_images, UNET_CALL_MAX_IMAGES, d->request->images };
    for (int i = 0; i < 3; i++)
        if (fit > limits[i])
            fit = limits[i];
    return fit < 1 ? 1 : (int)fit;
}

static void fill_image(struct drawing *d, int index) {
    const struct resolved_request *r = d->request;
    const struct generate_request *asked = &r->asked;
    size_t at = (size_t)index * latent_elements(r);
    d->images[index] = (struct image){
        .plan = r->plan,
        .init_latents = asked->init_latents.values ? asked->init_latents.values + at : NULL,
        .guided = r->guided,
        .guidance_scale = asked->guidance_scale,
        .guidance_rescale = asked->guidance_rescale,
        .text = index / asked->num_images + (r->guided ? 1 : 0),
        .negative_text = 0,
        .latents = d->result->latents + at,
    };
    d->result->seeds[index] = resolved_request_seed(r, index);
    noise_init(&d->images[index].generator, asked->rng, d->result->seeds[index]);
}

static bool prepare(struct drawing *d, struct error *err) {
    if (!allocate(d, err))
        return false;
    d->images_per_call = images_per_call(d);
    for (int i = 0; i < d->request->images; i++)
        fill_image(d, i);
    return true;
}

/* --- the pass over the models --- */

/* UNet calls of the whole request: every evaluation of every group of images. */
static int total_calls(const struct drawing *d) {
    int groups = (d->request->images + d->images_per_call - 1) / d->images_per_call;
    return groups * d->request->plan->count;
}

static bool report(const struct drawing *d, struct error *err) {
    int calls = d->calls, total = total_calls(d);
    if (d->deadline_s > 0 && monotonic_seconds() > d->deadline_s)
        return error_set(
            err, ERROR_TIMEOUT, "timeout_s: the time was over after %d of %d steps", calls, total);
    if (d->hooks && d->hooks->progress && !d->hooks->progress(calls, total, d->hooks->user))
        return error_set(
            err, ERROR_CANCELLED, "the request was cancelled after %d of %d steps", calls, total);
    return true;
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
        (uintptr_t)e.context.data, (uintptr_t)count, (uintptr_t)d->request->tokens,
        (uintptr_t)clip_skip };
    if (compute_ok(c))
        compute_recorded(c, key, sizeof(key), run_text_encoder, &e);
}

/* context: [texts][tokens][hidden]. clip_skip is the prompts' alone, as in diffusers. */
static void encode_texts(struct compute *c, const struct drawing *d, const struct tensor *context) {
    const struct resolved_request *r = d->request;
    size_t mark = arena_mark(c->arena);
    struct tensor ids = compute_tensor_2d(c, DTYPE_I32, r->texts, r->tokens);
    int negatives = r->guided ? 1 : 0;
    compute_upload(c, r->ids, &ids);
    if (r->guided)
        encode(c, d, &ids, 0, negatives, 0, context);
    encode(c, d, &ids, negatives, r->asked.prompt_count, r->asked.clip_skip, context);
    compute_synchronize(c); /* for its time only */
    arena_release(c->arena, mark);
}

/* Moves the images that are done behind the others, the order otherwise kept; how many they are. */
static int part(struct image **images, int count) {
    struct image *done[UNET_CALL_MAX_IMAGES];
    int left = 0, ended = 0;
    for (int i = 0; i < count; i++)
        if (image_is_done(images[i]))
            done[ended++] = images[i];
        else
            images[left++] = images[i];
    for (int i = 0; i < ended; i++)
        images[left + i] = done[i];
    return ended;
}

/* From noise to latents: as many images at a time as a call takes, and where one is done the next
 * comes in. A dry run takes one tick of the first, which are as many as ever. */
static void sample(struct compute *c, struct drawing *d, struct sampler *s) {
    struct image *active[UNET_CALL_MAX_IMAGES];
    int count = 0, next = 0;
    d->calls = 0;
    while (compute_ok(c) && (count > 0 || next < d->request->images)) {
        int coming = 0;
        while (count + coming < d->images_per_call && next < d->request->images)
            active[count + coming++] = &d->images[next++];
        if (coming > 0)
            sampler_start(c, s, active + count, coming);
        count += coming;
        if (!c->dry_run && compute_ok(c) && !report(d, &c->error))
            return;
        sampler_tick(c, s, active, count);
        d->calls++;
        int ended = c->dry_run ? count : part(active, count);
        count -= ended;
        if (ended > 0)
            sampler_finish(c, s, active + count, ended);
        if (c->dry_run)
            return;
    }
    if (compute_ok(c))
        report(d, &c->error);
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

static void decode_image(struct compute *c, const struct drawing *d, int index) {
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
    compute_upload(c, d->images[index].latents, &v.kept);
    compute_recorded(c, key, sizeof(key), run_vae, &v);
    const float *image = compute_view(c, &v.image);
    if (image && !to_bytes(image, (size_t)tensor_elements(&v.image), r->images[index]))
        error_set(&c->error, ERROR_INTERNAL,
            "the decoded picture is not finite: the decoder's output overflowed or is damaged");
    arena_release(c->arena, mark);
}

static void sample_all(struct compute *c, struct drawing *d) {
    const struct resolved_request *r = d->request;
    const struct unet *unet = d->models->unet;
    const struct sampler_size size = {
        .height = r->latent_height,
        .width = r->latent_width,
        .images = d->images_per_call,
        .guided = r->guided,
        .slots = r->plan->slot_count,
        .texts = r->texts,
        .tokens = r->tokens,
    };
    size_t mark = arena_mark(c->arena);
    struct sampler sampler;
    double begun = monotonic_seconds();
    sampler_init(c, &sampler, unet, &size);
    size_t above = arena_mark(c->arena);
    struct tensor contexts = compute_tensor_3d(c, unet_activation_dtype(unet), r->texts, r->tokens,
        unet_get_config(unet)->cross_attention_dim);
    if (compute_ok(c))
        encode_texts(c, d, &contexts);
    double encoded = monotonic_seconds();
    sampler_encode_texts(c, &sampler, &contexts);
    arena_release(c->arena, above);
    sample(c, d, &sampler);
    d->result->timings.text_encoder_s = encoded - begun;
    d->result->timings.unet_s = monotonic_seconds() - encoded;
    d->result->timings.steps = d->calls;
    arena_release(c->arena, mark);
}

static void pass(struct compute *c, void *user) {
    struct drawing *d = user;
    sample_all(c, d);
    double begun = monotonic_seconds();
    bool decodes = !d->request->asked.latent_output;
    for (int i = 0; i < d->request->images && decodes && compute_ok(c); i++) {
        if (!c->dry_run && !report(d, &c->error))
            return;
        decode_image(c, d, i);
        if (c->dry_run)
            break;
    }
    d->result->timings.vae_s = monotonic_seconds() - begun;
}

/* --- memory --- */

static struct compute compute_of(const struct drawing *d) {
    return (struct compute){
        .kernels = d->models->kernels,
        .arena = d->models->arena,
        .recordings = d->models->recordings,
    };
}

static bool reserve(struct drawing *d, struct error *err) {
    struct compute c = compute_of(d);
    struct error why = { 0 };
    if (compute_plan(&c, pass, d, &why))
        return true;
    if (why.code == ERROR_NO_MEMORY)
        return error_set(err, why.code, "a %dx%d picture: %.400s: ask for a smaller one",
            d->result->width, d->result->height, why.message);
    if (err)
        *err = why;
    return false;
}

static bool draw(struct drawing *d, struct error *err) {
    struct compute c = compute_of(d);
    size_t mark = arena_mark(c.arena);
    pass(&c, d);
    arena_release(c.arena, mark);
    if (compute_ok(&c))
        return true;
    if (err)
        *err = c.error;
    return false;
}

static void drawing_finish(struct drawing *d) {
    for (int i = 0; d->images && i < d->request->images; i++)
        brownian_destroy(d->images[i].brownian);
    free(d->images);
}

/* Each image's own, so that they are drawn while the texts are encoded. */
static bool create_motions(struct drawing *d, struct error *err) {
    bool ok = true;
    for (int i = 0; scheduler_plan_is_brownian(d->request->plan) && i < d->request->images; i++)
        ok = ok && brownian_create(d->request->plan, d->request->asked.rng, d->result->seeds[i],
                       (int64_t)latent_elements(d->request), true, &d->images[i].brownian, err);
    return ok;
}

bool drawing_run(const struct drawing_models *models, const struct resolved_request *request,
    const struct generate_hooks *hooks, struct generate_result *result, struct error *err) {
    struct drawing d = { .models = models, .request = request, .hooks = hooks, .result = result };
    double now = monotonic_seconds();
    d.begun_s = hooks && hooks->begun_s > 0 ? hooks->begun_s : now;
    if (request->asked.timeout_s > 0)
        d.deadline_s = d.begun_s + request->asked.timeout_s;
    bool ok = prepare(&d, err) && reserve(&d, err) && create_motions(&d, err) && draw(&d, err);
    result->timings.queue_s = now - d.begun_s;
    result->timings.total_s = monotonic_seconds() - d.begun_s;
    drawing_finish(&d);
    return ok;
}

/* The drawing without its pixels. */
static bool rehearse(const struct drawing_models *models, const struct resolved_request *request,
    bool note, struct error *err) {
    struct generate_result result = { 0 };
    struct drawing d = { .models = models, .request = request, .result = &result };
    struct compute c = compute_of(&d);
    size_t peak;
    c.note = note;
    bool ok = prepare(&d, err) &&
              (note ? compute_measure(&c, pass, &d, &peak, err) : reserve(&d, err));
    drawing_finish(&d);
    generate_result_finish(&result);
    return ok;
}

bool drawing_plan(const struct drawing_models *models, const struct resolved_request *request,
    struct error *err) {
    return rehearse(models, request, false, err);
}

bool drawing_note(const struct drawing_models *models, const struct resolved_request *request,
    struct error *err) {
    return rehearse(models, request, true, err);
}
