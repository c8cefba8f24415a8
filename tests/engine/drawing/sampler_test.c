/* Images that share UNet calls draw the same bits as each draws alone. They differ in schedulers,
 * steps, guidance, texts and how many of them are drawn together, generators and adapters of the
 * timestep layers; their order in a call varies, and images join and leave while others are drawn.
 * Values that a call takes from tables of timesteps equal, bit for bit, what the layers compute for
 * the call's own timesteps. Uses a small UNet with the weights of
 * tests/models/small/small_models.h. */
#include "engine/drawing/sampler.h"
#include "kernels/compute/overlay.h"
#include "tests/check.h"
#include "tests/models/find_weight.h"
#include "tests/models/small/small_models.h"

#include <stdlib.h>

enum {
    IMAGES = 8,
    ROWS = 4,
    HEIGHT = 12,
    WIDTH = 8,
    CHANNELS = 4,
    TOKENS = 5,
    TEXTS = 4,
    DIM = 32
};
#define ELEMENTS (CHANNELS * HEIGHT * WIDTH)

/* The number of tokens in each text. When images share a call, a shorter text is followed in memory
 * by tokens of other texts. */
static const int text_tokens[TEXTS] = { 5, 3, 1, 4 };

/* A device that records calls pads a call of seven rows to eight. */
static const struct {
    enum scheduler_kind scheduler;
    int steps;
    double eta, guidance_scale, guidance_rescale;
    enum rng_kind rng;
    int text, negative_text; /* with several parts: the first one; the others follow */
    bool has_init;
    int adapter; /* adapts the timestep layers; 0: none */
    int begins;  /* the tick at which it joins, if a row is free */
    int more;    /* parts of the prompt besides the first */
    int changes; /* the evaluation at which its texts are replaced by others; 0: never */
} cases[IMAGES] = {
    { SCHEDULER_DDIM, 4, 0.5, 5, 0, RNG_CPU, 1, 0, false, 1, 0 },
    { SCHEDULER_DDPM, 3, 0, 1, 0, RNG_CPU, 2, 0, false, 2, 0 },
    { SCHEDULER_DDPM, 3, 0, 2, 0, RNG_CUDA, 0, 3, false, 1,
        0 }, /* like the second, with another adapter */
    { SCHEDULER_DDIM_CFGPP, 2, 0, 3, 0, RNG_CPU, 1, 2, true, 1, 1, 1, 1 },
    { SCHEDULER_PNDM, 18, 0, 7.5, 0.5, RNG_CUDA, 3, 0, false, 0, 2, 2, 7 },
    { SCHEDULER_DDIM, 3, 1, 1, 0, RNG_CUDA, 3, 0, true, 0, 4 },
    { SCHEDULER_DPMPP_SDE, 10, 0, 4, 0, RNG_CPU, 2, 1, false, 2, 5, 0, 6 },
    { SCHEDULER_DPMPP_3M_SDE, 5, 1, 1, 0, RNG_CUDA, 1, 0, false, 1, 5 },
};

struct run {
    const struct unet *unet;
    const struct scheduler_plan *plans[IMAGES];
    const float *contexts; /* [TEXTS][TOKENS][DIM] */
    const float *init;
    int first, count; /* the images that take part */
    float (*latents)[ELEMENTS];
    const struct row_overlay *overlays[3]; /* indexed by a case's `adapter` */
    int calls, rows;                       /* rows: the most rows of one call */
    int compared;                          /* rows compared with the layers' output */
};

/* Returns which of the contexts is text number `text` of an image. */
static int text_of(int index, int text) {
    return text ? (cases[index].text + text - 1) % TEXTS : cases[index].negative_text;
}

static void fill(const struct run *r, int index, struct image *image) {
    *image = (struct image){
        .plan = r->plans[index],
        .init_latents = cases[index].has_init ? r->init : NULL,
        .overlay = r->overlays[cases[index].adapter],
        .guided = cases[index].guidance_scale > 1,
        .guidance_scale = cases[index].guidance_scale,
        .guidance_rescale = cases[index].guidance_rescale,
        .parts = 1 + cases[index].more,
        .latents = r->latents[index],
    };
    for (int text = 0; text <= image->parts; text++) {
        image->text_tokens[text] = text_tokens[text_of(index, text)];
        if (text)
            image->part_weights[text - 1] = text == 1 ? 1 : 0.75 - text;
    }
    noise_init(&image->generator, cases[index].rng, (uint64_t)(100 + index));
}

/* Encodes the image's texts, or beginnings of the contexts that follow these. */
static void encode(struct compute *c, const struct tensor *contexts, int index, int following,
    struct sampler *s, struct image *image) {
    size_t mark = arena_mark(c->arena);
    for (int text = image->guided ? 0 : 1; text <= image->parts; text++) {
        struct tensor own = tensor_rows(contexts, (text_of(index, text) + following) % TEXTS, 1);
        own.shape[1] = image->text_tokens[text];
        sampler_encode_text(c, s, image, text, &own);
    }
    arena_release(c->arena, mark);
}

/* Gives an image its rows, its encoded texts and its noise. */
static void begin(struct compute *c, const struct run *r, const struct tensor *contexts, int index,
    struct sampler *s, struct image *image) {
    fill(r, index, image);
    CHECK(sampler_place(s, image), "no row for image %d", index);
    encode(c, contexts, index, 0, s, image);
    sampler_start(c, s, &image, 1);
}

static int rows_of(struct image *const *images, int count) {
    int rows = 0;
    for (int i = 0; i < count; i++)
        rows += image_rows(images[i]);
    return rows;
}

/* Rotates the order of a call's images by one, so that two rows are neighbours only in some
 * ticks. */
static void turn(struct image **images, int count) {
    struct image *first = images[0];
    for (int i = 1; i < count; i++)
        images[i - 1] = images[i];
    images[count - 1] = first;
}

/* Returns the tokens of the longest of the image's texts: the most that a call must hold if the
 * image is drawn alone. */
static int longest_of(int index) {
    int longest = 0;
    for (int text = cases[index].guidance_scale > 1 ? 0 : 1; text <= 1 + cases[index].more; text++)
        if (text_tokens[text_of(index, text)] > longest)
            longest = text_tokens[text_of(index, text)];
    return longest;
}

/* The rows of a call, saved before it: timesteps and adapters. */
struct call_rows {
    float timesteps[2 * IMAGES];
    const struct row_overlay *overlays[2 * IMAGES];
    int count;
};

static struct call_rows rows_before(struct image *const *images, int count) {
    struct call_rows rows = { .count = 0 };
    for (int conditional = 0; conditional <= 1; conditional++)
        for (int i = 0; i < count; i++)
            for (int k = conditional ? images[i]->parts : images[i]->guided; k > 0; k--) {
                rows.timesteps[rows.count] =
                    images[i]->plan->evaluations[images[i]->evaluations].timestep;
                rows.overlays[rows.count++] = images[i]->overlay;
            }
    return rows;
}

/* Repeats the call with the timestep layers instead of the tables, and compares the bits. */
static void compare_with_layers(
    struct compute *c, const struct sampler *s, const struct call_rows *rows, int *compared) {
    const size_t mark = arena_mark(c->arena);
    const struct tensor input = tensor_rows(&s->input, 0, rows->count);
    const struct tensor kv = tensor_rows(&s->kv, 0, rows->count);
    const struct tensor lengths = tensor_rows(&s->lengths, 0, rows->count);
    const struct tensor predicted = tensor_rows(&s->predicted, 0, rows->count);
    const struct tensor timesteps = compute_tensor_1d(c, DTYPE_F32, rows->count);
    struct tensor y = compute_tensor_4d(c, DTYPE_F32, rows->count, HEIGHT, WIDTH, CHANNELS);
    compute_upload(c, rows->timesteps, &timesteps);
    c->overlay = &(struct overlay){ rows->overlays, rows->count };
    unet_forward(s->unet, c, &input, &timesteps, &kv, &lengths, &y);
    c->overlay = NULL;
    for (int i = 0; compute_ok(c) && !c->dry_run && i < rows->count; i++, ++*compared)
        CHECK(memcmp((const float *)y.data + i * ELEMENTS,
                  (const float *)predicted.data + i * ELEMENTS, sizeof(float) * ELEMENTS) == 0,
            "row %d of %d at timestep %g, %s, differs from the result of its own layers", i,
            rows->count, (double)rows->timesteps[i],
            rows->overlays[i] ? "with an adapter" : "without adapters");
    arena_release(c->arena, mark);
}

static void sample(struct compute *c, void *user) {
    struct run *r = user;
    struct sampler s;
    struct image images[IMAGES], *active[ROWS];
    const struct sampler_size size = { .height = HEIGHT,
        .width = WIDTH,
        .images = r->count < ROWS ? r->count : ROWS,
        .call_images = r->count < ROWS ? r->count : ROWS,
        .call_rows = r->count > 1 ? UNET_CALL_MAX_ROWS : 2 + cases[r->first].more,
        .parts = r->count > 1 ? 3 : 1 + cases[r->first].more,
        .tokens = r->count > 1 ? TOKENS : longest_of(r->first) };
    size_t mark = arena_mark(c->arena);
    sampler_init(c, &s, r->unet, &size);
    struct tensor contexts = compute_tensor_3d(c, DTYPE_F32, TEXTS, TOKENS, DIM);
    compute_upload(c, r->contexts, &contexts);
    int count = 0, next = r->first;
    r->calls = r->rows = 0;
    for (int tick = 0; compute_ok(c) && (count || next < r->first + r->count); tick++) {
        for (; next < r->first + r->count && count < size.images; next++) {
            if (count && tick < cases[next].begins)
                break;
            begin(c, r, &contexts, next, &s, &images[next]);
            const struct scheduler_plan *plan = r->plans[next];
            if (compute_ok(c) && !c->dry_run && scheduler_plan_is_brownian(plan) &&
                !brownian_create(plan, cases[next].rng, (uint64_t)next, ELEMENTS, true,
                    &images[next].brownian, &c->error))
                break;
            active[count++] = &images[next];
        }
        r->rows = rows_of(active, count) > r->rows ? rows_of(active, count) : r->rows;
        for (int i = 0; i < count; i++) {
            const int index = (int)(active[i] - images), changes = cases[index].changes;
            if (changes && active[i]->evaluations == changes)
                encode(c, &contexts, index, 1, &s, active[i]);
        }
        const struct call_rows rows = rows_before(active, count);
        sampler_tick(c, &s, active, count);
        compare_with_layers(c, &s, &rows, &r->compared);
        r->calls++;
        for (int i = count - 1; i >= 0; i--)
            if (image_is_done(active[i])) {
                sampler_finish(c, &s, &active[i], 1);
                sampler_leave(active[i]);
                brownian_destroy(active[i]->brownian);
                active[i] = active[--count];
            }
        if (count)
            turn(active, count);
    }
    arena_release(c->arena, mark);
}

static struct unet *make_unet(const struct kernels *kernels, struct rule_source *source) {
    struct error err = { 0 };
    struct unet_config config;
    struct unet *unet = NULL;
    json_t *json = json_pack("{s:i, s:i, s:i, s:[i,i], s:[s,s], s:[s,s], s:i, s:i, s:i, s:i}",
        "sample_size", 8, "in_channels", CHANNELS, "out_channels", CHANNELS, "block_out_channels",
        16, 32, "down_block_types", "CrossAttnDownBlock2D", "DownBlock2D", "up_block_types",
        "UpBlock2D", "CrossAttnUpBlock2D", "layers_per_block", 1, "attention_head_dim", 2,
        "cross_attention_dim", DIM, "norm_num_groups", 8);
    const struct weights w = rule_weights(source, kernels, DTYPE_F32);
    if (!unet_config_parse(json, &config, &err) || !unet_create(&config, &w, &unet, &err)) {
        CHECK(false, "%s", err.message);
        exit(check_done());
    }
    json_decref(json);
    return unet;
}

static struct scheduler_plan *make_plan(int index) {
    json_t *json = json_pack("{s:s, s:f, s:f, s:s, s:b}", "_class_name", "DDIMScheduler",
        "beta_start", 0.00085, "beta_end", 0.012, "beta_schedule", "scaled_linear", "clip_sample",
        0);
    json_t *choice = json_pack("{s:s}", "name", scheduler_kind_name(cases[index].scheduler));
    if (cases[index].eta > 0)
        json_object_set_new(choice, "eta", json_real(cases[index].eta));
    struct scheduler_choice options = { 0 };
    struct scheduler_config config;
    struct scheduler_plan *plan = NULL;
    struct error err = { 0 };
    if (!scheduler_choice_from_json(choice, &options, &err) ||
        !scheduler_config_resolve(json, &options, &config, &err) ||
        !scheduler_plan_create(&config, cases[index].steps, &plan, &err)) {
        CHECK(false, "%s", err.message);
        exit(check_done());
    }
    json_decref(json);
    json_decref(choice);
    return plan;
}

/* Changes all timestep layers, differently for each of two adapters. The first adds a low-rank
 * change to the checkpoint's weights. The second also replaces the weights, as a LoHa does. */
#define TIME_LAYERS 3
struct time_adapter {
    struct low_rank_pair *pairs[TIME_LAYERS];
    struct row_overlay *overlay;
};

static void make_adapter(
    const struct unet *unet, const struct unet *other, int which, struct time_adapter *out) {
    static const char *const layers[TIME_LAYERS] = { "time_embedding.linear_1",
        "time_embedding.linear_2", "up_blocks.1.resnets.0.time_emb_proj" };
    struct error err = { 0 };
    bool ok = row_overlay_create(&out->overlay, &err);
    for (int i = 0; ok && i < TIME_LAYERS; i++) {
        const struct named_weight *w = weight_list_find(unet_weights(unet), layers[i]);
        CHECK(w, "%s", layers[i]);
        char name[100];
        snprintf(name, sizeof(name), "%s %d", layers[i], which);
        float *numbers = rule_signal(name, 2 * (w->k + w->n));
        const struct tensor down = tensor_2d(numbers, DTYPE_F32, 2, w->k);
        const struct tensor up = tensor_2d(numbers + 2 * w->k, DTYPE_F32, w->n, 2);
        ok = low_rank_pair_create(name, w->packed, w->n, &down, &up, &out->pairs[i], &err) &&
             row_overlay_add_low_rank(out->overlay, w->packed, w->first, out->pairs[i], 0.1f, &err);
        if (ok && other)
            ok = row_overlay_replace(out->overlay, w->packed,
                weight_list_find(unet_weights(other), layers[i])->packed, &err);
        free(numbers);
    }
    CHECK(ok, "%s", err.message);
    if (!ok)
        exit(check_done());
}

static void finish_adapter(struct time_adapter *adapter) {
    row_overlay_destroy(adapter->overlay);
    for (int i = 0; i < TIME_LAYERS; i++)
        low_rank_pair_destroy(adapter->pairs[i]);
}

static bool never_begin(struct error *err) {
    return error_set(err, ERROR_INTERNAL, "nothing is recorded here");
}

/* Returns the first image with the same schedule. Such images share a plan, as the images of one
 * request do. */
static int same_plan(int index) {
    int i = 0;
    while (cases[i].scheduler != cases[index].scheduler || cases[i].steps != cases[index].steps ||
           cases[i].eta != cases[index].eta)
        i++;
    return i;
}

static void mates_do_not_change_bits(const struct kernels *kernels, const char *what) {
    static float alone[IMAGES][ELEMENTS], together[IMAGES][ELEMENTS];
    struct rule_source source = { .gain = 1 }, other_source = { .gain = 1.25f };
    struct unet *unet = make_unet(kernels, &source), *other = make_unet(kernels, &other_source);
    float *contexts = rule_signal("contexts", TEXTS * TOKENS * DIM);
    float *init = rule_signal("init", ELEMENTS);
    struct run r = { .unet = unet, .contexts = contexts, .init = init, .latents = alone };
    int evaluations = 0;
    struct time_adapter adapters[2] = { { .overlay = NULL } };
    for (int i = 0; i < 2; i++) {
        make_adapter(unet, i == 1 ? other : NULL, i, &adapters[i]);
        r.overlays[i + 1] = adapters[i].overlay;
    }
    for (int i = 0; i < IMAGES; i++) {
        const int like = same_plan(i);
        r.plans[i] = like < i ? r.plans[like] : make_plan(i);
        evaluations += r.plans[i]->count;
    }
    for (int i = 0; i < IMAGES; i++) {
        r.first = i;
        r.count = 1;
        run_model(kernels, sample, &r);
        CHECK(r.calls == r.plans[i]->count, "%d calls", r.calls);
    }
    r.first = 0;
    r.count = IMAGES;
    r.latents = together;
    run_model(kernels, sample, &r);
    CHECK(r.calls <= evaluations / 2 && r.rows >= 7, "%d calls of up to %d rows", r.calls, r.rows);
    for (int i = 0; i < IMAGES; i++) {
        double size = 0;
        for (int k = 0; k < ELEMENTS; k++)
            size += (double)alone[i][k] * alone[i][k];
        CHECK(size > 0, "image %d is empty", i);
        CHECK(memcmp(alone[i], together[i], sizeof(alone[i])) == 0, "%s: image %d, %s, %d steps",
            what, i, scheduler_kind_name(cases[i].scheduler), cases[i].steps);
    }
    for (int i = 0; i < IMAGES; i++)
        if (same_plan(i) == i)
            scheduler_plan_destroy((struct scheduler_plan *)(uintptr_t)r.plans[i]);
    printf("%s: %d images, %d evaluations in %d calls of up to %d rows: the same bits; %d rows as "
           "their timesteps' layers give them\n",
        what, IMAGES, evaluations, r.calls, r.rows, r.compared);
    for (int i = 0; i < 2; i++)
        finish_adapter(&adapters[i]);
    free(contexts);
    free(init);
    unet_destroy(unet);
    unet_destroy(other);
    rule_source_finish(&source);
    rule_source_finish(&other_source);
}

int main(void) {
    const struct recorder recorder = { .begin = never_begin };
    struct kernels records = *kernels_cpu();
    records.recorder = &recorder;
    mates_do_not_change_bits(kernels_cpu(), "cpu");
    mates_do_not_change_bits(kernels_reference(), "reference");
    mates_do_not_change_bits(&records, "rows filled up as for recordings");
    return check_done();
}
