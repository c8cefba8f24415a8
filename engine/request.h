/* What a picture is asked with, resolved and range-checked, and what comes back. No JSON here: the
 * server's dialects and the command line fill the same struct. */
#ifndef ENGINE_REQUEST_H
#define ENGINE_REQUEST_H

#include "base/error.h"
#include "engine/noise.h"
#include "engine/scheduler/scheduler.h"

#include <stdbool.h>
#include <stdint.h>

/* Zeroed plus generate_request_init is a valid request but for the prompt. Strings are owned. */
struct generate_request {
    char **prompts; /* owned, prompt_count of them */
    int prompt_count;
    char *negative_prompt; /* owned, may be NULL: "" */
    int width, height;     /* pixels; 0 means the model's own size */
    int num_inference_steps;
    double guidance_scale; /* guidance is on if > 1 */
    double guidance_rescale;
    struct scheduler_options scheduler;
    uint64_t seed; /* image k of the request uses seed + k */
    bool seed_given;
    enum rng_kind rng;
    int num_images;      /* per prompt */
    int clip_skip;       /* as diffusers counts: 0 is the last layer */
    bool latent_output;  /* return latents instead of pictures */
    float *init_latents; /* owned or NULL: f32 [images][4][h/8][w/8] starting noise */
    double timeout_s;    /* 0: none */
};

/* Defaults: 25 steps, guidance 7.5, one image, the model's scheduler, RNG_CPU. */
void generate_request_init(struct generate_request *request);
void generate_request_finish(struct generate_request *request);

/* Range checks that need no model: every field against base/limits.h. ERROR_INVALID names the
 * field, the value and what is allowed, with the API's field names. */
bool generate_request_check(const struct generate_request *request, struct error *err)
    __attribute__((warn_unused_result));

struct generate_timings {
    double queue_s, text_encoder_s, unet_s, vae_s, total_s;
    int steps; /* UNet calls */
};

/* A finished request. Pictures are 8-bit RGB, row-major. Everything is owned. */
struct generate_result {
    int image_count;
    int width, height;
    uint64_t *seeds;  /* [image_count] */
    uint8_t **images; /* [image_count], each [height][width][3]; NULL with latent_output */
    float *latents;   /* [image_count][latent_channels][h][w], always filled */
    int latent_channels, latent_height, latent_width;
    char **warnings;
    int warning_count;
    struct generate_timings timings;
};

void generate_result_finish(struct generate_result *result);

#endif
