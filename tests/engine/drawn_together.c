#include "tests/engine/drawn_together.h"

#include "base/monotonic.h"
#include "pictures/png_encode.h"
#include "tests/check.h"
#include "tests/engine/open_pipeline.h"

#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define ENCODED_TOKENS 100
#define ENCODED_WIDTH_MAX 32
#define LATE_S 1000 /* distance of the deadlines of LATE requests */

/* How a request is meant to end. */
enum fate {
    DRAWN,
    CANCELLED,  /* after half of its steps */
    LATE,       /* times out after half of its steps */
    NOT_FINITE, /* because of its text or its adapter */
    FATES
};
static const char *const fate_names[FATES] = { "drawn", "cancelled", "late", "not finite" };
static const enum error_code fate_codes[FATES] = { ERROR_NONE, ERROR_CANCELLED, ERROR_TIMEOUT,
    ERROR_INTERNAL };

/* One request, its result when drawn alone, and its result when drawn with others. */
struct member {
    struct generate_request asked;   /* owned */
    struct resolved_request first;   /* for the pipeline that draws it alone */
    struct resolved_request request; /* for the pipeline that draws it with others */
    struct generate_result alone, together;
    enum fate fate;       /* the planned one */
    enum error_code code; /* together */
    int ends_at;          /* evaluations after which it is cancelled or late; 0: never */
    double deadline_s;    /* if it is LATE */
    bool resolved, done, cancelled;
    int last_step, steps; /* the last progress reported */
    uint64_t call;        /* the latest call that it was part of */
    bool beside[FATES];   /* kinds of requests that shared its calls */
};

/* The number of the studio's calls in this round, and a clock that the test can move. */
static uint64_t calls;
static atomic_long jumped_s; /* how far the clock is ahead */

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

/* Only the studio's thread moves the clock, and only deadlines on that thread depend on it. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
    const int failed = __real_clock_gettime(clock, out);
    if (!failed && clock == CLOCK_MONOTONIC)
        out->tv_sec += atomic_load(&jumped_s);
    return failed;
}

static uint64_t next(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int below(uint64_t *state, int n) {
    return (int)(next(state) % (uint64_t)n);
}

static struct pipeline *open_for(const struct drawn_together *c, int max_rows) {
    const struct pipeline_options options = {
        .model_path = c->model,
        .device = { .kind = c->device },
        .dtype = { .dtype = c->dtype },
        .max_batch_rows = max_rows,
        .adapters = { .folder = c->loras },
        .embeddings_dir = c->embeddings,
    };
    return open_pipeline(&options);
}

/* Chooses no adapter, one or two, with weights of either sign. */
static void draw_loras(const struct drawn_together *c, uint64_t *state, struct generate_request *r,
    struct lora_choice *out) {
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

/* Varies some noises by a subseed, by another size, or by both. */
static void draw_variation(uint64_t state, struct generate_request *r) {
    static const int sides[] = { 64, 72, 96, 128 };
    if (below(&state, 3) == 0) {
        r->subseed_strength = 0.25 * (1 + below(&state, 4));
        r->subseed = (uint64_t)below(&state, 1000);
        r->subseed_given = true;
    }
    if (below(&state, 3) == 0) {
        r->seed_resize_from_w = sides[below(&state, 4)];
        r->seed_resize_from_h = sides[below(&state, 4)];
    }
}

/* Gives some requests, or all, a picture to begin with. Some of these also get a mask. */
static void draw_pictures(const struct drawn_together *c, uint64_t *state, struct generate_request *r) {
    static uint8_t rgb[128 * 128 * 3];
    struct error err = { 0 };
    struct picture_file *const files[] = { &r->init_image, &r->mask_image };
    const int pictures = c->inpaints ? 2 : below(state, 2) ? 1 + below(state, 2) : 0;
    int width = r->width, height = r->height;
    uint64_t own = *state + 1;
    if (pictures == 1 && below(&own, 2)) { /* latents of another size */
        r->resize_mode = RESIZE_MODE_LATENT;
        width = 64 + 32 * below(&own, 3);
        height = 64 + 32 * below(&own, 3);
    }
    if (pictures == 2)
        r->masked_content = (enum masked_content)below(&own, 3);
    for (int i = 0; i < pictures; i++) {
        const uint64_t salt = next(state);
        uint8_t *bytes = NULL;
        for (int k = 0; k < width * height * 3; k++)
            rgb[k] = i ? (uint8_t)(255 * (k / 90 % 2)) : (uint8_t)(salt + (uint64_t)k * (salt % 7));
        CHECK(png_encode(rgb, width, height, NULL, 0, &bytes, &files[i]->size, &err), "%s",
            err.message);
        files[i]->bytes = bytes;
    }
    r->strength_given = pictures > 0;
    r->strength = pictures > 0 ? 0.25 * (2 + below(state, 3)) : 0;
}

/* Some prompts come as embeddings, with a random number of tokens. */
static void draw_encoded(
    const struct drawn_together *c, uint64_t *state, struct generate_request *r, float *values) {
    if (c->context_width == 0 || below(state, 5))
        return;
    r->prompt_embeds = (struct encoded_texts){ values, 1, 1 + below(state, ENCODED_TOKENS),
        c->context_width };
    for (int64_t i = 0; i < r->prompt_embeds.tokens * c->context_width; i++)
        values[i] = (float)(below(state, 2001) - 1000) / 500;
    r->prompts = NULL;
    r->prompt_count = r->clip_skip = 0;
}

/* Gives the request an adapter or embeddings that make the UNet's output infinite or NaN. */
static void spoil(const struct drawn_together *c, uint64_t *state, struct generate_request *r,
    struct lora_choice *lora, float *values) {
    if (c->loras && below(state, 2)) {
        *lora = (struct lora_choice){ "spoils", ADAPTER_WEIGHT_MAX, 0 };
        r->loras = lora;
        r->lora_count = 1;
        return;
    }
    r->prompt_embeds = (struct encoded_texts){ values, 1, ENCODED_TOKENS, c->context_width };
    for (int64_t i = 0; i < ENCODED_TOKENS * c->context_width; i++)
        values[i] = i % 3 ? 3e38f : -3e38f;
    r->prompts = NULL;
    r->prompt_count = r->clip_skip = 0;
}

/* Longer than the text encoder's context: two or three chunks. */
#define PHRASE "a blue house on a hill, the sea behind it, "
#define LONG_TEXT PHRASE PHRASE PHRASE PHRASE PHRASE PHRASE PHRASE PHRASE

/* Draws a random request with all fields that a request can have. Repeats until the scheduler
 * accepts it. */
static void draw_request(
    const struct drawn_together *c, struct pipeline *pipeline, uint64_t *state, struct member *m) {
    static char boat[] = "a red boat", house[] = "a blue house on a hill, the sea behind it",
                snow[] = "snow", empty[] = "", long_text[] = LONG_TEXT,
                weights[] = "a (red:1.4) boat, [snow] BREAK ((night))",
                style[] = "a boat, style, (style:1.3)",
                long_weights[] = LONG_TEXT "(snow:0.6) BREAK [a (boat:1.3)]",
                edited[] = "a [red:blue:0.4] boat, [" PHRASE "|style|(snow:1.2)]",
                parts[] = "a boat :1.2 AND [a house:snow:2] AND (" PHRASE "[style|]:0.7) :-0.4",
                long_parts[] = LONG_TEXT "[at night:3] AND a boat AND snow AND style :0.5 AND a "
                                         "AND b AND c AND [d|e]";
    static char *const words[] = { boat, house, snow, empty, long_text, weights, style,
        long_weights, edited, parts, long_parts };
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
        r.width = m->fate == DRAWN ? sides[below(state, 4)] : 64; /* a size that many share */
        r.height = m->fate == DRAWN ? sides[below(state, 4)] : 64;
        r.num_inference_steps = (m->fate == DRAWN ? 1 : 4) + below(state, 8);
        r.guidance_scale = below(state, 3) == 0 ? 1 : 1 + 0.5 * below(state, 16);
        r.guidance_rescale = below(state, 4) == 0 ? 0.5 : 0;
        r.scheduler.has_kind = true;
        r.scheduler.kind = (enum scheduler_kind)below(state, SCHEDULER_COUNT);
        if (r.scheduler.kind == SCHEDULER_DDIM && below(state, 2))
            scheduler_choose(&r.scheduler, OPTION_ETA, 0.5);
        r.seed = (uint64_t)below(state, 1000);
        r.seed_given = true;
        r.rng = below(state, 2) ? RNG_CPU : RNG_CUDA;
        draw_variation(*state + 1, &r);
        r.clip_skip = below(state, 2);
        r.latent_output = c->latents_only || below(state, 4) == 0;
        if (below(state, 4) == 0) { /* several parts */
            prompts[0] = below(state, 2) ? parts : long_parts;
            r.prompt_syntax = PROMPT_SYNTAX_A1111;
            r.guidance_scale = fmax(r.guidance_scale, 1.5);
        }
        draw_encoded(c, state, &r, encoded);
        draw_loras(c, state, &r, loras);
        if (m->fate == NOT_FINITE)
            spoil(c, state, &r, loras, encoded);
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
    CHECK(ok == (m->fate != NOT_FINITE), "%s: %s", fate_names[m->fate], err.message);
    if (!ok)
        CHECK_CONTAINS(err.message, "not finite");
}

static bool is_cancelled(void *user) {
    return ((struct member *)user)->cancelled;
}

static void on_progress(int step, int steps, void *user) {
    struct member *m = user;
    CHECK(step == 0 ? m->last_step == 0 : step > m->last_step, "step %d after %d", step,
        m->last_step);
    m->call = step ? calls : 0;
    m->last_step = step;
    m->steps = steps;
    if (!m->ends_at || step < m->ends_at)
        return;
    m->cancelled = m->fate == CANCELLED;
    const double left_s = m->deadline_s - monotonic_seconds();
    if (m->fate == LATE && left_s > 0)
        atomic_fetch_add(&jumped_s, (long)left_s + 1);
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
    const double now_s = monotonic_seconds();
    m->deadline_s = now_s + m->request.asked.timeout_s;
    CHECK(studio_admit(studio, &m->request, &hooks, now_s, &err), "%s", err.message);
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

/* Records which kinds of requests shared the latest call. */
static void note_mates(const struct drawn_together *c, struct member *members) {
    int in_call[FATES] = { 0 };
    for (int i = 0; i < c->requests; i++)
        in_call[members[i].fate] += members[i].call == calls;
    for (int i = 0; i < c->requests; i++)
        for (int fate = 0; members[i].call == calls && fate < FATES; fate++)
            members[i].beside[fate] |= in_call[fate] > (members[i].fate == (enum fate)fate);
}

struct seen {
    double calls, rows;
    int pictures, long_texts, weighed, vectors, encoded, begun_with_pictures, edited, joined,
        varied;
    int ended[FATES], beside[FATES]; /* requests per fate; drawn requests beside it */
};

/* Returns the token count of the request's longest text. */
static int tokens_of(const struct resolved_request *r) {
    return r->tokens * r->chunks;
}

static bool has_weights(const struct resolved_request *r) {
    for (int i = 0; i < r->text_count; i++)
        if (r->texts[i].weights)
            return true;
    return false;
}

/* Returns how many of the request's texts change from step to step. */
static int count_edited(const struct resolved_request *r) {
    int edited = 0;
    for (int i = 0; i < r->text_count; i++)
        edited += r->texts[i].variants > 1;
    return edited;
}

static void compare(struct member *m, int index, int max_rows, struct seen *seen) {
    const struct resolved_request *r = &m->request;
    CHECK(m->code == fate_codes[m->fate], "request %d, %s: %s", index, fate_names[m->fate],
        error_code_name(m->code));
    seen->ended[m->fate]++;
    if (m->fate == CANCELLED) /* possibly after the last step, before decoding */
        CHECK(m->last_step >= m->ends_at && m->last_step <= m->steps, "cancelled at %d of %d",
            m->last_step, m->steps);
    if (m->code != ERROR_NONE)
        return;
    for (int fate = 0; fate < FATES; fate++)
        seen->beside[fate] += m->beside[fate];
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
    seen->edited += count_edited(r) > 0;
    seen->joined += resolved_request_rows(r, 0) > 2;
    seen->encoded += r->asked.prompt_embeds.values != NULL;
    seen->begun_with_pictures += r->source != NULL;
    seen->varied += r->asked.subseed_strength > 0 || r->asked.seed_resize_from_w > 0;
    seen->calls += m->together.timings.steps;
    seen->rows += m->together.timings.steps * m->together.timings.batch_rows_mean;
    generate_result_finish(&m->together);
}

static void print_seen(
    const struct drawn_together *c, int max_rows, double mean, const struct seen *seen) {
    printf(
        "%s on %s, at most %d rows a call (%.1f on average): %d pictures of %d requests, %d of "
        "them with long texts, %d with weights, %d with embeddings, %d with edited texts, %d with "
        "AND, %d encoded before, %d with pictures to begin with, %d with varied noise, compared "
        "with what each draws "
        "alone",
        dtype_name(c->dtype), c->device == DEVICE_CPU ? "the CPU" : "CUDA", max_rows, mean,
        seen->pictures, c->requests, seen->long_texts, seen->weighed, seen->vectors, seen->edited,
        seen->joined, seen->encoded, seen->begun_with_pictures, seen->varied);
    for (int fate = CANCELLED; fate < FATES; fate++)
        printf("; %d %s, with %d of the others in a call", seen->ended[fate], fate_names[fate],
            seen->beside[fate]);
    printf("\n");
}

static void check_seen(const struct drawn_together *c, const struct seen *seen) {
    if (c->requests < 16)
        return;
    CHECK(seen->begun_with_pictures > 3, "%d with pictures", seen->begun_with_pictures);
    CHECK(seen->varied > 3, "%d with varied noise", seen->varied);
    CHECK(seen->long_texts > 0, "no request had a long text");
    CHECK(!c->embeddings || seen->vectors > 0, "no request had an embedding");
    CHECK(!c->context_width || seen->encoded > 0, "no request had prompt_embeds");
    CHECK(seen->weighed > 0, "%d with weights", seen->weighed);
    CHECK(
        seen->edited > 0 && seen->joined > 0, "%d edited, %d with AND", seen->edited, seen->joined);
}

/* The members of one round, in order. A second thread resolves them while earlier ones are already
 * being drawn. */
struct arrivals {
    const struct drawn_together *setup;
    struct pipeline *pipeline;
    struct member *members;
    sem_t ready;
};

/* Returns after how many evaluations the request is to be cancelled or late (half of them), or 0 if
 * it is to be drawn or has too few steps. */
static int half_of(const struct member *m) {
    const int each = m->request.plan->count; /* one call advances every image by a step */
    return (m->fate == CANCELLED || m->fate == LATE) && each > 2 ? m->request.images * each / 2 : 0;
}

static void *make_ready(void *user) {
    struct arrivals *arrivals = user;
    for (int i = 0; i < arrivals->setup->requests; i++) {
        struct member *m = &arrivals->members[i];
        struct error err = { 0 };
        m->resolved = pipeline_resolve(arrivals->pipeline, &m->asked, &m->request, &err);
        if (!m->resolved)
            printf("request %d: %s\n", i, err.message);
        sem_post(&arrivals->ready);
    }
    return NULL;
}

static void take_next(struct studio *studio, struct arrivals *arrivals, int index) {
    struct member *m = &arrivals->members[index];
    while (sem_wait(&arrivals->ready) != 0)
        continue;
    CHECK(m->resolved, "request %d was drawn before", index);
    if (!m->resolved)
        exit(check_done());
    m->done = m->cancelled = false;
    m->last_step = 0;
    m->call = 0;
    memset(m->beside, 0, sizeof(m->beside));
    m->ends_at = half_of(m);
    if (!m->ends_at && m->fate != NOT_FINITE)
        m->fate = DRAWN;
    m->request.asked.timeout_s = m->fate == LATE ? LATE_S * (index + 1) : 0;
    admit(studio, m);
}

/* Admits all members to one studio at random moments and draws them. Returns the mean number of
 * rows in a call, as the requests report it. For each fate, adds to beside[FATES] how many drawn
 * requests shared a call with a request of that fate. */
static double draw_together(const struct drawn_together *c, struct member *members, int max_rows,
    uint64_t *state, int *beside) {
    struct arrivals arrivals = { c, open_for(c, max_rows), members, .ready = { { 0 } } };
    struct studio *studio = pipeline_studio(arrivals.pipeline);
    struct error err = { 0 };
    struct seen seen = { 0 };
    pthread_t thread;
    sem_init(&arrivals.ready, 0, 0);
    /* On a device that serves one thread at a time, the second thread would have to take turns with
     * the studio. */
    const bool own_thread = c->device == DEVICE_CPU &&
                            pthread_create(&thread, NULL, make_ready, &arrivals) == 0;
    if (!own_thread)
        make_ready(&arrivals);
    for (int admitted = 0; admitted < c->requests || !studio_is_idle(studio);) {
        while (admitted < c->requests && (below(state, 5) || studio_is_idle(studio)))
            take_next(studio, &arrivals, admitted++);
        calls++;
        CHECK(studio_work(studio, &err), "%s", err.message);
        note_mates(c, members);
    }
    if (own_thread)
        pthread_join(thread, NULL);
    for (int i = 0; i < c->requests; i++) {
        compare(&members[i], i, max_rows, &seen);
        resolved_request_finish(&members[i].request);
    }
    const double mean = seen.calls ? seen.rows / seen.calls : 0;
    print_seen(c, max_rows, mean, &seen);
    check_seen(c, &seen);
    for (int fate = 0; fate < FATES; fate++)
        beside[fate] += seen.beside[fate];
    sem_destroy(&arrivals.ready);
    pipeline_destroy(arrivals.pipeline);
    return mean;
}

/* Of every eight requests one is late, one is cancelled and one is not finite. */
static enum fate fate_of(const struct drawn_together *c, int index) {
    static const enum fate fates[8] = { [2] = LATE, [5] = CANCELLED, [6] = NOT_FINITE };
    return c->fails ? fates[index % 8] : DRAWN;
}

bool drawn_together_same_bits(
    const struct drawn_together *setup, const int *max_rows, double mean_rows) {
    struct member *members = calloc((size_t)setup->requests, sizeof(*members));
    struct pipeline *pipeline = open_for(setup, 0);
    uint64_t state = setup->seed;
    double mean = 0;
    int beside[FATES] = { 0 };
    for (int i = 0; i < setup->requests; i++) {
        members[i].fate = fate_of(setup, i);
        draw_request(setup, pipeline, &state, &members[i]);
        draw_alone(pipeline, &members[i]);
    }
    for (int i = 0; max_rows[i]; i++)
        mean = draw_together(setup, members, max_rows[i], &state, beside);
    for (int fate = CANCELLED; setup->fails && fate < FATES; fate++)
        CHECK(beside[fate] > 0, "no request was drawn beside one that is %s", fate_names[fate]);
    for (int i = 0; i < setup->requests; i++) {
        generate_result_finish(&members[i].alone);
        resolved_request_finish(&members[i].first);
        generate_request_finish(&members[i].asked);
    }
    pipeline_destroy(pipeline);
    free(members);
    CHECK(mean > mean_rows, "calls had %.1f rows on average", mean);
    return check_done() == 0;
}
