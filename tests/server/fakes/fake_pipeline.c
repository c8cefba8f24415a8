/* A pipeline without a model, for tests of the real engine, daemon and command line. Its pictures
 * are stripes that depend on the seed.
 *
 * The model path sets its pace and whether loading fails: "fake,load_ms=300,step_ms=20,fail_load".
 * With "figures_ms=500" its device takes 500 ms to report its figures. With "images=4" four images
 * share a step. Two "heavy" models never fit into memory together. A prompt of "fail:device",
 * "fail:lost",
 * "fail:memory" or "fail:internal" fails with that error; "warn:TEXT" draws with that warning. */
#include "engine/loop/pipeline.h"
#include "tests/engine/idle_stages.h"
#include "tests/engine/no_adapters.h"
#include "tests/engine/sd15.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEFAULT_SIZE 64
#define HEAVY_BYTES ((size_t)1 << 50)

struct pipeline {
    int load_ms, step_ms, figures_ms, images;
    char *model_path;
    json_t *scheduler;
    struct tokenizer *tokenizer;
    struct studio *studio;
};

static int setting(const char *path, const char *name) {
    const char *found = strstr(path, name);
    return found ? atoi(found + strlen(name)) : 0;
}

static void sleep_ms(int ms) {
    const struct timespec time = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&time, NULL);
}

static bool told_to_fail(const char *prompt, struct error *err) {
    if (strcmp(prompt, "fail:device") == 0)
        return !error_set(err, ERROR_DEVICE, "the device does not answer");
    if (strcmp(prompt, "fail:lost") == 0)
        return !error_set(err, ERROR_DEVICE_LOST, "the GPU is lost");
    if (strcmp(prompt, "fail:memory") == 0)
        return !error_set(err, ERROR_NO_MEMORY, "not enough memory for 9 GB");
    if (strcmp(prompt, "fail:internal") == 0)
        return !error_set(err, ERROR_INTERNAL, "the picture holds a NaN");
    return false;
}

/* --- the stages of a picture --- */

static bool measure(
    void *user, const struct resolved_request *request, struct stage_work *out, struct error *err) {
    (void)user, (void)request, (void)err;
    *out = (struct stage_work){ .evaluation = 1, .decode = 0.1 };
    return true;
}

static int call_images(void *user, const struct resolved_request *request) {
    const struct pipeline *p = user;
    (void)request;
    return p->images;
}

/* Encodes every picture as its first value. */
static bool encode(
    void *user, const struct resolved_request *request, float *moments, struct error *err) {
    (void)user, (void)err;
    const size_t count = source_moments(request->source, request->latent_channels) *
                         (size_t)source_encode_count(request->source);
    for (size_t i = 0; i < count; i++)
        moments[i] = request->source->init.pixels[0];
    return true;
}

/* If no latents are given, they count up from the seed. */
static enum stage_begun begin(void *user, const struct resolved_request *request, int index,
    struct image *image, struct error *err) {
    (void)user, (void)err;
    const struct init_latents *given = &request->asked.init_latents;
    const size_t count = (size_t)request->latent_channels * (size_t)request->latent_height *
                         (size_t)request->latent_width;
    const uint64_t seed = resolved_request_seed(request, index);
    image->plan = request->plan;
    for (size_t k = 0; k < count; k++)
        image->latents[k] = given->values ? given->values[(size_t)index * count + k]
                                          : (float)(seed + k);
    return STAGE_BEGUN;
}

static bool step(void *user, struct image *const *images, int count, struct error *err) {
    const struct pipeline *p = user;
    if (p->step_ms > 0) /* even a sleep of 0 takes a while */
        sleep_ms(p->step_ms);
    for (int i = 0; i < count; i++) /* brighter with each step */
        if (images[i]->preview)
            images[i]->preview[0] = (float)images[i]->evaluations / (float)images[i]->plan->count;
    return idle_step(user, images, count, err);
}

static bool decode(void *user, const struct resolved_request *request, const float *latents,
    uint8_t *out, bool *tiled, struct error *err) {
    (void)tiled;
    (void)user;
    if (told_to_fail(resolved_request_prompt(request, 0), err))
        return false;
    const size_t bytes = (size_t)request->asked.width * (size_t)request->asked.height * 3;
    const uint64_t seed = (uint64_t)(int64_t)latents[0];
    for (size_t k = 0; k < bytes; k++)
        out[k] = (uint8_t)(seed * 31 + k / 64);
    return true;
}

/* --- the pipeline --- */

bool pipeline_create(
    const struct pipeline_options *options, struct pipeline **out, struct error *err) {
    const char *path = options->model_path;
    const char *slash = strrchr(path, '/');
    if (strncmp(slash ? slash + 1 : path, "fake", 4) != 0)
        return error_set(err, ERROR_NOT_FOUND, "%s: there is no such checkpoint", path);
    if (options->opened)
        options->opened(options->user);
    sleep_ms(setting(path, "load_ms="));
    if (strstr(path, "fail_load"))
        return error_set(err, ERROR_INVALID, "%s: its weights are cut short", path);
    struct pipeline *p = calloc(1, sizeof(*p));
    p->load_ms = setting(path, "load_ms=");
    p->step_ms = setting(path, "step_ms=");
    p->figures_ms = setting(path, "figures_ms=");
    p->images = setting(path, "images=") ? setting(path, "images=") : 1;
    p->model_path = strdup(path);
    p->scheduler = sd15_scheduler_json();
    *out = p;
    const struct stages stages = { .user = p,
        .measure = measure,
        .call_images = call_images,
        .encode = encode,
        .begin = begin,
        .ready = idle_ready,
        .step = step,
        .take = idle_take,
        .leave = idle_leave,
        .colours = idle_colours,
        .decode = decode };
    if (!studio_create(&stages, 0, &p->studio, err))
        return false;
    if (options->one_at_a_time)
        studio_set_one_at_a_time(p->studio);
    return tokenizer_create(BUNDLED_TOKENIZER, &p->tokenizer, err);
}

void pipeline_destroy(struct pipeline *p) {
    if (!p)
        return;
    studio_destroy(p->studio);
    json_decref(p->scheduler);
    tokenizer_destroy(p->tokenizer);
    free(p->model_path);
    free(p);
}

void pipeline_get_info(const struct pipeline *p, struct pipeline_info *out) {
    *out = (struct pipeline_info){
        .model_path = p->model_path,
        .kernels = kernels_cpu(),
        .device = "cpu",
        .dtype = DTYPE_F32,
        .activation_dtype = DTYPE_F32,
        .implementations = kernels_cpu()->implementations(DTYPE_F32),
        .default_width = DEFAULT_SIZE,
        .default_height = DEFAULT_SIZE,
        .max_tokens = 77,
        .default_scheduler = "pndm",
        .prediction_type = "epsilon",
        .scheduler_json = p->scheduler,
        .load_s = 0.001 * p->load_ms,
        .weight_bytes = strstr(p->model_path, "heavy") ? HEAVY_BYTES : 123456789,
    };
}

bool pipeline_weigh(const struct pipeline_options *options, const struct pipeline_info *like,
    struct pipeline_size *out, struct error *err) {
    (void)like;
    *out = (struct pipeline_size){ strstr(options->model_path, "heavy") ? HEAVY_BYTES : 1, 1 };
    return !strstr(options->model_path, "broken") ||
           error_set(err, ERROR_INVALID, "%s: a tensor is missing", options->model_path);
}

bool pipeline_get_figures(const struct pipeline *p, struct device_figures *out) {
    if (!p->figures_ms)
        return false;
    sleep_ms(p->figures_ms);
    *out = (struct device_figures){ .memory_total = 1000, .memory_free = 400 };
    snprintf(out->name, sizeof(out->name), "a slow device");
    return true;
}

/* Uses the real code for resolving, as for an SD-1.5 checkpoint with a small picture size and the
 * bundled tokenizer. */
bool pipeline_resolve(const struct pipeline *p, const struct generate_request *request,
    struct resolved_request *out, struct error *err) {
    struct resolve_figures figures = sd15_figures(p->tokenizer, p->scheduler);
    figures.default_px = DEFAULT_SIZE;
    if (!resolve_request(&figures, request, out, err))
        return false;
    if (strncmp(resolved_request_prompt(out, 0), "warn:", 5) == 0) {
        out->warnings = calloc(1, sizeof(char *));
        out->warnings[0] = strdup(request->prompts[0] + 5);
        out->warning_count = 1;
    }
    return true;
}

bool pipeline_count_text(const struct pipeline *p, const struct generate_request *request,
    bool negative, struct text_count *out, struct error *err) {
    const struct resolve_figures figures = sd15_figures(p->tokenizer, p->scheduler);
    return resolve_text_count(&figures, request, negative, out, err);
}

struct studio *pipeline_studio(struct pipeline *p) {
    return p->studio;
}

bool pipeline_generate(struct pipeline *p, const struct resolved_request *request,
    const struct generate_hooks *hooks, struct generate_result *result, struct error *err) {
    return studio_generate(p->studio, request, hooks, result, err);
}
