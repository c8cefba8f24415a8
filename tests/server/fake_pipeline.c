/* A pipeline without a model, under the real engine, the real daemon and the real command line: its
 * pictures are stripes of the seed, its pace and its failures are told to it.
 *
 * The model path sets the pace: "fake,load_ms=300,step_ms=20,fail_load"; with "figures_ms=500" it
 * has a device that takes so long to say how it is. A prompt of "fail:device", "fail:lost",
 * "fail:memory" or "fail:internal" fails so; "warn:TEXT" draws with that warning. */
#include "engine/pipeline.h"

#include "base/monotonic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEFAULT_SIZE 64

struct pipeline {
    int load_ms, step_ms, figures_ms;
    char *model_path;
    json_t *scheduler;
    struct tokenizer *tokenizer;
};

static int setting(const char *path, const char *name) {
    const char *found = strstr(path, name);
    return found ? atoi(found + strlen(name)) : 0;
}

static void sleep_ms(int ms) {
    const struct timespec time = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&time, NULL);
}

bool pipeline_create(
    const struct pipeline_options *options, struct pipeline **out, struct error *err) {
    static const char json[] =
        "{\"_class_name\": \"PNDMScheduler\", \"beta_start\": 0.00085, \"beta_end\": 0.012,"
        " \"beta_schedule\": \"scaled_linear\", \"num_train_timesteps\": 1000,"
        " \"set_alpha_to_one\": false, \"skip_prk_steps\": true, \"steps_offset\": 1,"
        " \"clip_sample\": false, \"trained_betas\": null}";
    const char *path = options->model_path;
    if (strncmp(path, "fake", 4) != 0)
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
    p->model_path = strdup(path);
    p->scheduler = json_loads(json, 0, NULL);
    *out = p;
    return tokenizer_create(BUNDLED_TOKENIZER, &p->tokenizer, err);
}

void pipeline_destroy(struct pipeline *p) {
    if (!p)
        return;
    json_decref(p->scheduler);
    tokenizer_destroy(p->tokenizer);
    free(p->model_path);
    free(p);
}

void pipeline_get_info(const struct pipeline *p, struct pipeline_info *out) {
    *out = (struct pipeline_info){
        .model_path = p->model_path,
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
        .weight_bytes = 123456789,
    };
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

static void draw(const struct resolved_request *request, struct generate_result *out) {
    const struct generate_request *r = &request->asked;
    out->width = r->width;
    out->height = r->height;
    out->image_count = request->images;
    out->latent_channels = request->latent_channels;
    out->latent_width = request->latent_width;
    out->latent_height = request->latent_height;
    out->seeds = calloc((size_t)out->image_count, sizeof(*out->seeds));
    size_t latent = (size_t)4 * (size_t)out->latent_width * (size_t)out->latent_height;
    out->latents = calloc((size_t)out->image_count * latent, sizeof(float));
    if (!r->latent_output)
        out->images = calloc((size_t)out->image_count, sizeof(*out->images));
    size_t bytes = (size_t)out->width * (size_t)out->height * 3;
    for (int i = 0; i < out->image_count; i++) {
        out->seeds[i] = resolved_request_seed(request, i);
        for (size_t k = 0; k < latent; k++)
            out->latents[(size_t)i * latent + k] =
                r->init_latents.values ? r->init_latents.values[(size_t)i * latent + k]
                                       : (float)(out->seeds[i] + k);
        if (r->latent_output)
            continue;
        out->images[i] = malloc(bytes);
        for (size_t k = 0; k < bytes; k++)
            out->images[i][k] = (uint8_t)(out->seeds[i] * 31 + k / 64);
    }
    out->timings.steps = r->num_inference_steps;
}

bool pipeline_get_figures(const struct pipeline *p, struct device_figures *out) {
    if (!p->figures_ms)
        return false;
    sleep_ms(p->figures_ms);
    *out = (struct device_figures){ .memory_total = 1000, .memory_free = 400 };
    snprintf(out->name, sizeof(out->name), "a slow device");
    return true;
}

/* The real resolving, as of an SD-1.5 checkpoint with a small picture and the bundled tokenizer. */
bool pipeline_resolve(const struct pipeline *p, const struct generate_request *request,
    struct resolved_request *out, struct error *err) {
    const struct resolve_figures figures = {
        .tokenizer = p->tokenizer,
        .scheduler_json = p->scheduler,
        .default_px = DEFAULT_SIZE,
        .vae_scale = 8,
        .latent_channels = 4,
        .context_length = 77,
        .text_layers = 12,
    };
    if (!resolve_request(&figures, request, out, err))
        return false;
    if (strncmp(request->prompts[0], "warn:", 5) == 0) {
        out->warnings = calloc(1, sizeof(char *));
        out->warnings[0] = strdup(request->prompts[0] + 5);
        out->warning_count = 1;
    }
    return true;
}

bool pipeline_generate(struct pipeline *p, const struct resolved_request *request,
    const struct generate_hooks *hooks, struct generate_result *result, struct error *err) {
    const struct generate_request *asked = &request->asked;
    double now = monotonic_seconds(), begun = hooks->begun_s > 0 ? hooks->begun_s : now;
    memset(result, 0, sizeof(*result));
    for (int step = 0; step <= asked->num_inference_steps; step++) {
        if (hooks->progress && !hooks->progress(step, asked->num_inference_steps, hooks->user))
            return error_set(err, ERROR_CANCELLED, "cancelled at step %d", step);
        if (asked->timeout_s > 0 && monotonic_seconds() - begun > asked->timeout_s)
            return error_set(
                err, ERROR_TIMEOUT, "timeout_s: not done after %g s", asked->timeout_s);
        if (step < asked->num_inference_steps)
            sleep_ms(p->step_ms);
    }
    if (told_to_fail(asked->prompts[0], err))
        return false;
    draw(request, result);
    result->timings.queue_s = now - begun;
    result->timings.unet_s = monotonic_seconds() - now;
    result->timings.total_s = monotonic_seconds() - begun;
    return true;
}
