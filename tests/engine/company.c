#include "tests/engine/company.h"

#include "base/monotonic.h"
#include "pictures/png_encode.h"
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>

#define ENCODED_TOKENS 100
#define ENCODED_WIDTH_MAX 32

/* One request, what it drew alone, and what became of it among others. */
struct member {
    struct generate_request asked;   /* owned */
    struct resolved_request first;   /* for the pipeline where it is alone */
    struct resolved_request request; /* for the one where it is among others */
    struct generate_result alone, together;
    enum error_code code; /* together */
    int cancel_at;        /* evaluations after which it is cancelled; 0: never */
    bool admitted, done, cancelled;
    int last_step, steps; /* the last progress */
};

static uint64_t next(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int below(uint64_t *state, int n) {
    return (int)(next(state) % (uint64_t)n);
}

static struct pipeline *open_pipeline(const struct company *c, int max_rows) {
    const struct pipeline_options options = {
        .model_path = c->model,
        .device = { .kind = c->device },
        .dtype = { .dtype = c->dtype },
        .max_batch_rows = max_rows,
        .adapters = { .folder = c->loras },
        .embeddings_dir = c->embeddings,
    };
    struct pipeline *pipeline = NULL;
    struct error err = { 0 };
    if (!pipeline_create(&options, &pipeline, &err)) {
        CHECK(false, "%s", err.message);
        exit(check_done());
    }
    return pipeline;
}

/* None, one or two of them, of any sign. */
static void draw_loras(
    const struct company *c, uint64_t *state, struct generate_request *r, struct lora_choice *out) {
    r->loras = out;
    r->lora_count = c->loras ? below(state, 3) : 0;
    r->loras_given = true;
    const int first = below(state, 3);
    for (int i = 0; i < r->lora_count; i++) {
        out[i] = (struct lora_choice){ .weight = 0.3 * (below(state, 7) - 3),
            .text_encoder_weight = 0.5 * below(state, 3) };
        snprintf(out[i].name, sizeof(out[i].name), "%c", 'a' + (first + i) % 3);
    }
}

/* A picture to begin with, and what of it is drawn anew; for some, or all. */
static void draw_pictures(const struct company *c, uint64_t *state, struct generate_request *r) {
    static uint8_t rgb[96 * 96 * 3];
    struct error err = { 0 };
    struct picture_file *const files[] = { &r->init_image, &r->mask_image };
    const int pictures = c->inpaints ? 2 : below(state, 2) ? 1 + below(state, 2) : 0;
    for (int i = 0; i < pictures; i++) {
        const uint64_t salt = next(state);
        uint8_t *bytes = NULL;
        for (int k = 0; k < r->width * r->height * 3; k++)
            rgb[k] = i ? (uint8_t)(255 * (k / 90 % 2)) : (uint8_t)(salt + (uint64_t)k * (salt % 7));
        CHECK(png_encode(rgb, r->width, r->height, NULL, 0, &bytes, &files[i]->size, &err), "%s",
            err.message);
        files[i]->bytes = bytes;
    }
    r->strength_given = pictures > 0;
    r->strength = pictures > 0 ? 0.25 * (2 + below(state, 3)) : 0;
}

/* Some come encoded, with as many tokens as they like. */
static void draw_encoded(
    const struct company *c, uint64_t *state, struct generate_request *r, float *values) {
    if (c->context_width == 0 || below(state, 5))
        return;
    r->prompt_embeds = (struct encoded_texts){ values, 1, 1 + below(state, ENCODED_TOKENS),
        c->context_width };
    for (int64_t i = 0; i < r->prompt_embeds.tokens * c->context_width; i++)
        values[i] = (float)(below(state, 2001) - 1000) / 500;
    r->prompts = NULL;
    r->prompt_count = r->clip_skip = 0;
}

/* Longer than the text encoder's context: two pieces of it, or three. */
#define PHRASE "a blue house on a hill, the sea behind it, "
#define LONG_TEXT PHRASE PHRASE PHRASE PHRASE PHRASE PHRASE PHRASE PHRASE

/* Whatever a request can say, but for what a scheduler refuses. */
static void draw_request(
    const struct company *c, struct pipeline *pipeline, uint64_t *state, struct member *m) {
    static char boat[] = "a red boat", house[] = "a blue house on a hill, the sea behind it",
                snow[] = "snow", empty[] = "", long_text[] = LONG_TEXT,
                weights[] = "a (red:1.4) boat, [snow] BREAK ((night))",
                style[] = "a boat, style, (style:1.3)",
                long_weights[] = LONG_TEXT "(snow:0.6) BREAK [a (boat:1.3)]";
    static char *const words[] = { boat, house, snow, empty, long_text, weights, style,
        long_weights };
    const int word_count = (int)(sizeof(words) / sizeof(words[0]));
    static const int sides[] = { 64, 64, 64, 96 };
    struct error err = { 0 };
    do {
        struct generate_request r;
        struct lora_choice loras[2];
        float encoded[ENCODED_TOKENS * ENCODED_WIDTH_MAX];
        char *prompts[2] = { words[below(state, word_count)], words[below(state, word_count)] };
        generate_request_init(&r);
        r.prompts = prompts;
        r.prompt_count = 1 + (below(state, 6) == 0);
        r.negative_prompt = words[below(state, word_count)];
        r.prompt_syntax = below(state, 2) ? PROMPT_SYNTAX_A1111 : PROMPT_SYNTAX_PLAIN;
        r.long_prompt = below(state, 2) ? LONG_PROMPT_CHUNK : LONG_PROMPT_TRUNCATE;
        r.num_images = 1 + (below(state, 5) == 0) * below(state, 3);
        r.width = sides[below(state, 4)];
        r.height = sides[below(state, 4)];
        r.num_inference_steps = 1 + below(state, 8);
        r.guidance_scale = below(state, 3) == 0 ? 1 : 1 + 0.5 * below(state, 16);
        r.guidance_rescale = below(state, 4) == 0 ? 0.5 : 0;
        r.scheduler.has_kind = true;
        r.scheduler.kind = (enum scheduler_kind)below(state, SCHEDULER_COUNT);
        if (r.scheduler.kind == SCHEDULER_DDIM && below(state, 2))
            scheduler_choose(&r.scheduler, OPTION_ETA, 0.5);
        r.seed = (uint64_t)below(state, 1000);
        r.seed_given = true;
        r.rng = below(state, 2) ? RNG_CPU : RNG_CUDA;
        r.clip_skip = below(state, 2);
        r.latent_output = c->latents_only || below(state, 4) == 0;
        draw_encoded(c, state, &r, encoded);
        draw_loras(c, state, &r, loras);
        r.priority = below(state, 2 * PRIORITY_MAX + 1) - PRIORITY_MAX;
        draw_pictures(c, state, &r);
        const bool ok = pipeline_resolve(pipeline, &r, &m->first, &err) &&
                        generate_request_copy(&r, &m->asked, &err);
        free(r.init_image.bytes);
        free(r.mask_image.bytes);
        if (ok)
            return;
    } while (err.code == ERROR_INVALID);
    CHECK(false, "%s", err.message);
    exit(check_done());
}

static void draw_alone(struct pipeline *pipeline, struct member *m) {
    struct error err = { 0 };
    const bool ok = pipeline_generate(pipeline, &m->first, NULL, &m->alone, &err);
    CHECK(ok, "%s", err.message);
}

static bool is_cancelled(void *user) {
    return ((struct member *)user)->cancelled;
}

static void on_progress(int step, int steps, void *user) {
    struct member *m = user;
    CHECK(step == 0 ? m->last_step == 0 : step > m->last_step, "step %d after %d", step,
        m->last_step);
    m->last_step = step;
    m->steps = steps;
    m->cancelled = m->cancel_at && step >= m->cancel_at;
}

static void on_done(struct generate_result *result, const struct error *err, void *user) {
    struct member *m = user;
    CHECK(!m->done, "done twice");
    m->done = true;
    m->code = err ? err->code : ERROR_NONE;
    if (result)
        m->together = *result;
}

static void admit(struct studio *studio, struct member *m) {
    const struct studio_hooks hooks = {
        .is_cancelled = is_cancelled, .progress = on_progress, .done = on_done, .user = m
    };
    struct error err = { 0 };
    m->admitted = true;
    CHECK(studio_admit(studio, &m->request, &hooks, monotonic_seconds(), &err), "%s", err.message);
}

static bool same_bits(const struct generate_result *a, const struct generate_result *b) {
    const size_t latents = (size_t)a->image_count * (size_t)a->latent_channels *
                           (size_t)a->latent_height * (size_t)a->latent_width;
    if (a->image_count != b->image_count || !a->images != !b->images ||
        memcmp(a->latents, b->latents, latents * sizeof(float)) != 0)
        return false;
    for (int i = 0; a->images && i < a->image_count; i++)
        if (memcmp(a->images[i], b->images[i], (size_t)a->width * (size_t)a->height * 3) != 0)
            return false;
    return true;
}

struct seen {
    double calls, rows;
    int pictures, failed, long_texts, weighed, vectors, encoded, begun_with_pictures;
};

/* Of its longest text. */
static int tokens_of(const struct resolved_request *r) {
    return r->tokens * r->chunks;
}

static bool has_weights(const struct resolved_request *r) {
    for (int i = 0; i < r->text_count; i++)
        if (r->texts[i].weights)
            return true;
    return false;
}

static void compare(struct member *m, int index, int max_rows, struct seen *seen) {
    const struct resolved_request *r = &m->request;
    if (m->cancel_at &&
        m->code == ERROR_CANCELLED) { /* with its last steps it still had a decode */
        CHECK(m->last_step >= m->cancel_at && m->last_step <= m->steps, "cancelled at %d of %d",
            m->last_step, m->steps);
        seen->failed++;
        return;
    }
    CHECK(m->code == ERROR_NONE, "request %d: %s", index, error_code_name(m->code));
    if (m->code != ERROR_NONE)
        return;
    CHECK(m->last_step == m->steps && m->steps == r->images * r->plan->count, "%d of %d",
        m->last_step, m->steps);
    CHECK(same_bits(&m->alone, &m->together),
        "request %d at %d rows a call: %s, %d steps, %dx%d, %d images, %d adapters, %d tokens, %s",
        index, max_rows, scheduler_kind_name(r->scheduler.kind), r->asked.num_inference_steps,
        r->asked.width, r->asked.height, r->images, r->asked.lora_count, tokens_of(r),
        r->source ? r->source->mask.pixels ? "a mask" : "a picture" : "no picture");
    seen->pictures += r->images;
    seen->long_texts += tokens_of(r) > r->tokens;
    seen->weighed += has_weights(r);
    seen->vectors += r->vectors;
    seen->encoded += r->asked.prompt_embeds.values != NULL;
    seen->begun_with_pictures += r->source != NULL;
    seen->calls += m->together.timings.steps;
    seen->rows += m->together.timings.steps * m->together.timings.batch_rows_mean;
    generate_result_finish(&m->together);
}

/* All of them, coming at any time; the mean of a call's rows as the requests saw it. */
static double draw_together(
    const struct company *c, struct member *members, int max_rows, uint64_t *state) {
    struct pipeline *pipeline = open_pipeline(c, max_rows);
    struct studio *studio = pipeline_studio(pipeline);
    struct error err = { 0 };
    struct seen seen = { 0 };
    for (int i = 0; i < c->requests; i++) {
        struct member *m = &members[i];
        CHECK(pipeline_resolve(pipeline, &m->asked, &m->request, &err), "%s", err.message);
        m->admitted = m->done = m->cancelled = false;
        m->last_step = 0;
        const int evaluations = m->request.images * m->request.plan->count;
        m->cancel_at = c->fails && evaluations > 2 && below(state, 4) == 0 ? evaluations / 2 : 0;
    }
    for (int admitted = 0; admitted < c->requests || !studio_is_idle(studio);) {
        while (admitted < c->requests && (below(state, 3) || studio_is_idle(studio)))
            admit(studio, &members[admitted++]);
        CHECK(studio_work(studio, &err), "%s", err.message);
    }
    for (int i = 0; i < c->requests; i++) {
        compare(&members[i], i, max_rows, &seen);
        resolved_request_finish(&members[i].request);
    }
    const double mean = seen.calls ? seen.rows / seen.calls : 0;
    printf("%s on %s, at most %d rows a call (%.1f on average): %d pictures of %d requests, %d of "
           "them with long texts, %d with weights, %d with embeddings, %d encoded before, %d with "
           "pictures to begin with, compared with what each draws alone; %d cancelled\n",
        dtype_name(c->dtype), c->device == DEVICE_CPU ? "the CPU" : "CUDA", max_rows, mean,
        seen.pictures, c->requests, seen.long_texts, seen.weighed, seen.vectors, seen.encoded,
        seen.begun_with_pictures, seen.failed);
    CHECK(c->requests < 16 || seen.begun_with_pictures > 3, "%d with pictures",
        seen.begun_with_pictures);
    CHECK(c->requests < 16 || seen.long_texts > 0, "no text was long");
    CHECK(c->requests < 16 || !c->embeddings || seen.vectors > 0, "no embedding");
    CHECK(c->requests < 16 || !c->context_width || seen.encoded > 0, "none came encoded");
    CHECK(c->requests < 16 || seen.weighed > 0, "%d with weights", seen.weighed);
    pipeline_destroy(pipeline);
    return mean;
}

bool company_same_bits(const struct company *company, const int *max_rows, double mean_rows) {
    struct member *members = calloc((size_t)company->requests, sizeof(*members));
    struct pipeline *pipeline = open_pipeline(company, 0);
    uint64_t state = company->seed;
    double mean = 0;
    for (int i = 0; i < company->requests; i++) {
        draw_request(company, pipeline, &state, &members[i]);
        draw_alone(pipeline, &members[i]);
    }
    for (int i = 0; max_rows[i]; i++)
        mean = draw_together(company, members, max_rows[i], &state);
    for (int i = 0; i < company->requests; i++) {
        generate_result_finish(&members[i].alone);
        resolved_request_finish(&members[i].first);
        generate_request_finish(&members[i].asked);
    }
    pipeline_destroy(pipeline);
    free(members);
    CHECK(mean > mean_rows, "calls had %.1f rows on average", mean);
    return check_done() == 0;
}
