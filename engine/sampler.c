#include "engine/sampler.h"

#include "base/limits.h"
#include "kernels/philox.h"

#include <math.h>
#include <string.h>

/* What one run holds in the arena. All f32 [images][height][width][channels] but for `input` and
 * `predicted`, which have a row for each row of the UNet call, and `drawn`, which is in torch's
 * order. */
struct state {
    const struct sampler_batch *batch;
    int rows;
    struct tensor kv;
    struct tensor terms[TERM_COUNT];
    struct tensor input, predicted;
    struct tensor difference; /* conditional - unconditional, with guidance */
    struct tensor drawn;      /* [images][channels][height][width] */
    struct tensor timesteps;  /* f32 [rows] */
};

/* y[image] = sum of weights[i] * terms[i][image], the same weights for every image. */
static void combine(struct compute *c, int images, const struct tensor *const *terms,
    const float *weights, int count, struct tensor *y) {
    float coefficients[UNET_CALL_MAX_IMAGES * COMBINE_MAX_TERMS];
    for (int image = 0; image < images; image++)
        memcpy(coefficients + image * count, weights, sizeof(*weights) * (size_t)count);
    struct combine_args args = { .count = count, .coefficients = coefficients, .y = y };
    for (int i = 0; i < count; i++)
        args.terms[i] = terms[i];
    op_combine(c, &args);
}

static void scale(
    struct compute *c, int images, const struct tensor *x, float factor, struct tensor *y) {
    combine(c, images, &x, &factor, 1, y);
}

static void apply_update(
    struct compute *c, struct state *s, const struct scheduler_update *update) {
    const struct tensor *terms[TERM_COUNT];
    float weights[TERM_COUNT];
    int count = 0;
    for (int term = 0; term < TERM_COUNT; term++)
        if (update->weights[term] != 0) {
            terms[count] = &s->terms[term];
            weights[count++] = update->weights[term];
        }
    if (count > COMBINE_MAX_TERMS) {
        error_set(&c->error, ERROR_INTERNAL, "a scheduler step has %d terms, at most %d fit", count,
            COMBINE_MAX_TERMS);
        return;
    }
    if (count == 0) { /* a step that forgets everything */
        terms[count] = &s->terms[TERM_SAMPLE];
        weights[count++] = 0;
    }
    combine(c, s->batch->images, terms, weights, count, &s->terms[update->target]);
}

/* s->drawn from torch's CUDA generators, which a device can draw from by itself. */
static void draw_on_device(struct compute *c, struct state *s) {
    const struct sampler_batch *b = s->batch;
    uint64_t seeds[UNET_CALL_MAX_IMAGES], offsets[UNET_CALL_MAX_IMAGES];
    for (int i = 0; i < b->images; i++) {
        seeds[i] = b->generators[i].seed;
        offsets[i] = b->generators[i].offset;
    }
    op_noise(c, &(struct noise_args){ .seeds = seeds, .offsets = offsets, .y = &s->drawn });
    for (int i = 0; !c->dry_run && i < b->images; i++)
        b->generators[i].offset += (uint64_t)philox_rounds(tensor_elements(&s->drawn) / b->images);
}

/* Fills terms[TERM_NOISE]: each image from its own generator, in torch's order. What the host draws
 * passes through the memory that the result will lie in. */
static void draw_noise(struct compute *c, struct state *s, const float *given) {
    const struct sampler_batch *b = s->batch;
    int64_t elements = tensor_elements(&s->drawn) / b->images;
    if (!given && b->generators[0].kind == RNG_CUDA) {
        draw_on_device(c, s);
    } else {
        for (int i = 0; compute_ok(c) && !c->dry_run && !given && i < b->images; i++)
            noise_draw(&b->generators[i], b->latents + i * elements, elements);
        compute_upload(c, given ? given : b->latents, &s->drawn);
    }
    op_convert(c, &(struct convert_args){
                      .x = &s->drawn, .layout = LAYOUT_NCHW_TO_NHWC, .y = &s->terms[TERM_NOISE] });
}

static double unbiased_std(const float *x, int64_t count) {
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < count; i++)
        mean += x[i];
    mean /= (double)count;
    for (int64_t i = 0; i < count; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    return sqrt(squares / (double)(count - 1));
}

/* The standard deviation of each image. */
static void deviations(
    struct compute *c, const struct tensor *t, double out[UNET_CALL_MAX_IMAGES]) {
    const float *x = compute_view(c, t);
    int64_t images = t->shape[0], elements = tensor_elements(t) / images;
    for (int64_t i = 0; x && i < images; i++)
        out[i] = unbiased_std(x + i * elements, elements);
}

/* Section 3.4 of "Common Diffusion Noise Schedules and Sample Steps are Flawed": pulls the standard
 * deviation of the guided output towards that of the conditional one, image by image. */
static void rescale_guidance(struct compute *c, struct state *s, const struct tensor *conditional) {
    struct tensor *output = &s->terms[TERM_OUTPUT];
    double wanted[UNET_CALL_MAX_IMAGES] = { 0 }, guided[UNET_CALL_MAX_IMAGES] = { 0 };
    float factors[UNET_CALL_MAX_IMAGES] = { 0 };
    double rescale = s->batch->guidance_rescale;
    deviations(c, conditional, wanted);
    deviations(c, output, guided);
    for (int i = 0; compute_ok(c) && !c->dry_run && i < s->batch->images; i++)
        factors[i] = (float)(rescale * wanted[i] / guided[i] + (1 - rescale));
    op_combine(c, &(struct combine_args){
                      .terms = { output }, .count = 1, .coefficients = factors, .y = output });
}

/* output = unconditional + guidance_scale (conditional - unconditional) */
static void guide(struct compute *c, struct state *s) {
    int images = s->batch->images;
    struct tensor unconditional = tensor_rows(&s->predicted, 0, images);
    struct tensor conditional = tensor_rows(&s->predicted, images, images);
    const struct tensor *pair[2] = { &conditional, &unconditional };
    combine(c, images, pair, (const float[]){ 1, -1 }, 2, &s->difference);
    pair[0] = &unconditional;
    pair[1] = &s->difference;
    combine(c, images, pair, (const float[]){ 1, (float)s->batch->guidance_scale }, 2,
        &s->terms[TERM_OUTPUT]);
    if (s->batch->guidance_rescale > 0)
        rescale_guidance(c, s, &conditional);
}

static void run_unet(struct compute *c, const void *user) {
    const struct state *s = user;
    struct tensor predicted = s->predicted;
    unet_forward(s->batch->unet, c, &s->input, &s->timesteps, &s->kv, &predicted);
}

/* predicted = unet(input, timesteps, kv): the same calls at every step of every request of a size,
 * so that a device may replay them. */
static void predict(struct compute *c, const struct state *s) {
    const uintptr_t key[] = { (uintptr_t)s->batch->unet, (uintptr_t)s->input.data,
        (uintptr_t)s->timesteps.data, (uintptr_t)s->kv.data, (uintptr_t)s->predicted.data,
        (uintptr_t)s->rows, (uintptr_t)s->batch->height, (uintptr_t)s->batch->width,
        (uintptr_t)s->kv.shape[1] };
    compute_recorded(c, key, sizeof(key), run_unet, s);
}

static void evaluate(
    struct compute *c, struct state *s, const struct scheduler_evaluation *evaluation) {
    float timesteps[2 * UNET_CALL_MAX_IMAGES];
    for (int row = 0; row < s->rows; row++)
        timesteps[row] = evaluation->timestep;
    compute_upload(c, timesteps, &s->timesteps);
    for (int row = 0; row < s->rows; row += s->batch->images) {
        struct tensor half = tensor_rows(&s->input, row, s->batch->images);
        scale(c, s->batch->images, &s->terms[TERM_SAMPLE], evaluation->input_scale, &half);
    }
    predict(c, s);
    if (s->batch->guided)
        guide(c, s);
    if (evaluation->draws_noise)
        draw_noise(c, s, NULL);
    for (int i = 0; i < evaluation->update_count; i++)
        apply_update(c, s, &evaluation->updates[i]);
}

static void allocate(struct compute *c, struct state *s) {
    const struct sampler_batch *b = s->batch;
    int64_t channels = unet_get_config(b->unet)->out_channels;
    s->rows = b->guided ? 2 * b->images : b->images;
    s->kv = compute_tensor_3d(
        c, b->context->dtype, s->rows, b->context->shape[1], unet_context_channels(b->unet));
    s->timesteps = compute_tensor_1d(c, DTYPE_F32, s->rows);
    s->drawn = compute_tensor_4d(c, DTYPE_F32, b->images, channels, b->height, b->width);
    for (int term = 0; term < TERM_SLOT + b->plan->slot_count; term++)
        s->terms[term] = compute_tensor_4d(c, DTYPE_F32, b->images, b->height, b->width, channels);
    s->input = compute_tensor_4d(c, DTYPE_F32, s->rows, b->height, b->width, channels);
    s->predicted = s->terms[TERM_OUTPUT];
    if (b->guided) {
        s->predicted = compute_tensor_4d(c, DTYPE_F32, s->rows, b->height, b->width, channels);
        s->difference = compute_tensor_4d(c, DTYPE_F32, b->images, b->height, b->width, channels);
    }
}

static void finish(struct compute *c, struct state *s) {
    op_convert(c, &(struct convert_args){
                      .x = &s->terms[TERM_SAMPLE], .layout = LAYOUT_NHWC_TO_NCHW, .y = &s->drawn });
    const float *latents = compute_view(c, &s->drawn);
    if (!latents)
        return;
    int64_t elements = tensor_elements(&s->drawn);
    for (int64_t i = 0; i < elements; i++)
        if (!isfinite(latents[i])) {
            error_set(&c->error, ERROR_INTERNAL,
                "the latents are not finite: the model's output overflowed or is damaged");
            return;
        }
    memcpy(s->batch->latents, latents, tensor_bytes(&s->drawn));
}

static void loop(struct compute *c, struct state *s) {
    const struct sampler_batch *b = s->batch;
    unet_encode_context(b->unet, c, b->context, &s->kv);
    draw_noise(c, s, b->init_latents);
    scale(c, b->images, &s->terms[TERM_NOISE], b->plan->init_noise_sigma, &s->terms[TERM_SAMPLE]);
    int evaluations = c->dry_run ? 1 : b->plan->count;
    for (int i = 0; i < evaluations && compute_ok(c); i++) {
        if (!c->dry_run && b->between && !b->between(i, b->user, &c->error))
            return;
        evaluate(c, s, &b->plan->evaluations[i]);
        compute_pace(c);
    }
    if (compute_ok(c) && !c->dry_run && b->between && !b->between(evaluations, b->user, &c->error))
        return;
    finish(c, s);
}

void sampler_run(struct compute *c, const struct sampler_batch *batch) {
    if (!compute_ok(c))
        return;
    if (batch->images < 1 || batch->images > UNET_CALL_MAX_IMAGES) {
        error_set(&c->error, ERROR_INTERNAL, "%d images in one UNet call, 1 to %d fit",
            batch->images, UNET_CALL_MAX_IMAGES);
        return;
    }
    size_t mark = arena_mark(c->arena);
    struct state state = { .batch = batch };
    allocate(c, &state);
    if (compute_ok(c))
        loop(c, &state);
    arena_release(c->arena, mark);
}
