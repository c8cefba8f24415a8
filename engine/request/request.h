/* A request for pictures, and its result. No JSON here: the server's dialects and the command line
 * fill the same struct, and engine/resolve/resolve.h completes it for a checkpoint. */
#ifndef ENGINE_REQUEST_REQUEST_H
#define ENGINE_REQUEST_REQUEST_H

#include "base/choice.h"
#include "base/error.h"
#include "base/limits.h"
#include "engine/scheduler/scheduler.h"
#include "kernels/random/noise.h"
#include "pictures/encode.h"

#include <stdbool.h>
#include <stdint.h>

/* Default quality of JPEG and WebP files. */
#define PICTURE_QUALITY 90

/* Starting noise, f32 [images][channels][height][width], for any model. */
struct init_latents {
    float *values; /* owned; NULL: none is given, and the seeds draw the noise */
    int64_t images, channels, height, width;
};

/* Texts that come encoded, f32 [texts][tokens][width]; width is that of the UNet's context. */
struct encoded_texts {
    float *values; /* owned; NULL: none are given */
    int64_t texts, tokens, width;
};

/* What happens to a text that is longer than the text encoder's context. */
#define LONG_PROMPTS(X)                                                                            \
    X(TRUNCATE, "truncate") /* it is cut, with a warning */                                        \
    X(CHUNK, "chunk")       /* pieces are encoded one by one and concatenated */
enum long_prompt {
#define LONG_PROMPT(name, word) LONG_PROMPT_##name,
    LONG_PROMPTS(LONG_PROMPT)
#undef LONG_PROMPT
};
#define LONG_PROMPT_ALLOWED                                                                        \
    "\"truncate\" or \"chunk\": cut what the text encoder does not take, or encode it in pieces"
const char *long_prompt_name(enum long_prompt kind);
bool long_prompt_from_name(const char *name, enum long_prompt *out);

/* What brackets and colons in a text mean. */
#define PROMPT_SYNTAXES(X)                                                                         \
    X(PLAIN, "plain") /* nothing special */                                                        \
    X(A1111, "a1111") /* weights, chunks and adapters, as in AUTOMATIC1111 (docs/prompts.md) */
enum prompt_syntax {
#define PROMPT_SYNTAX(name, word) PROMPT_SYNTAX_##name,
    PROMPT_SYNTAXES(PROMPT_SYNTAX)
#undef PROMPT_SYNTAX
};
#define PROMPT_SYNTAX_ALLOWED                                                                      \
    "\"plain\" or \"a1111\": as it stands there, or with AUTOMATIC1111's weights, BREAK and tags"
const char *prompt_syntax_name(enum prompt_syntax syntax);
bool prompt_syntax_from_name(const char *name, enum prompt_syntax *out);

/* One adapter of a request. */
struct lora_choice {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    double weight, text_encoder_weight;
};

/* A PNG or JPEG file as it was sent. */
struct picture_file {
    void *bytes; /* owned; NULL: none is given */
    size_t size;
};

/* What happens to a picture that does not have the size to be drawn. */
#define RESIZE_MODES(X)                                                                            \
    X(NONE, "none")       /* it is refused */                                                      \
    X(DEFAULT, "default") /* it is resized, without keeping its proportions */                     \
    X(CROP, "crop")       /* it is resized to cover the size, then cropped to the middle */
enum resize_mode {
#define RESIZE_MODE(name, word) RESIZE_MODE_##name,
    RESIZE_MODES(RESIZE_MODE)
#undef RESIZE_MODE
};
#define RESIZE_MODE_ALLOWED "\"none\", \"default\" (resize) or \"crop\" (resize and crop)"
const char *resize_mode_name(enum resize_mode mode);
bool resize_mode_from_name(const char *name, enum resize_mode *out);

/* A zeroed request after generate_request_init is valid except for the missing prompt. Strings are
 * owned. */
struct generate_request {
    char **prompts; /* owned, prompt_count of them; none with prompt_embeds */
    int prompt_count;
    char *negative_prompt; /* owned; NULL: "" */
    struct encoded_texts prompt_embeds, negative_prompt_embeds;
    char *model;       /* owned: the model that must draw it; NULL: any */
    int width, height; /* pixels; 0: the size of init_latents or init_image, or the model's own */
    int num_inference_steps;
    double guidance_scale; /* guidance is on if > 1 */
    double guidance_rescale;
    struct scheduler_choice scheduler;
    uint64_t seed; /* image k of the request uses seed + k */
    bool seed_given;
    enum rng_kind rng;
    int num_images; /* per prompt */
    int clip_skip;  /* as diffusers counts: 0 is the last layer */
    enum prompt_syntax prompt_syntax;
    enum long_prompt long_prompt;
    bool long_prompt_given;
    enum choice vae_tiling;     /* CHOICE_AUTO: the server's setting */
    bool latent_output;         /* return latents instead of pictures */
    enum picture_format format; /* of the files */
    bool format_given;
    int quality; /* of formats that have one; 0: PICTURE_QUALITY */
    struct init_latents init_latents;
    struct picture_file init_image, mask_image;
    bool mask_is_transparent; /* transparent pixels of mask_image are drawn anew, not white ones */
    double strength;          /* fraction of the steps that init_image goes through */
    bool strength_given;
    enum resize_mode resize_mode;
    double timeout_s;          /* 0: none */
    int priority;              /* larger is sooner; 0 is the default */
    struct lora_choice *loras; /* owned, lora_count of them */
    int lora_count;
    bool loras_given; /* false: the server's default adapters apply */
};

/* Defaults: 25 steps, guidance 7.5, one image, the model's scheduler, RNG_CPU. */
void generate_request_init(struct generate_request *request);
void generate_request_finish(struct generate_request *request);
/* *out is finished by the caller on success. ERROR_NO_MEMORY. */
bool generate_request_copy(const struct generate_request *request, struct generate_request *out,
    struct error *err) __attribute__((warn_unused_result));

/* What timeout_s may be, for messages; takes TIMEOUT_MAX_S. */
#define TIMEOUT_ALLOWED "seconds above 0, at most %g; leave it out for no limit"

/* Checks the ranges that need no model: every field against base/limits.h. ERROR_INVALID names the
 * field as the API calls it, the value and what is allowed. */
bool generate_request_check(const struct generate_request *request, struct error *err)
    __attribute__((warn_unused_result));

/* Number of prompts, encoded or not. */
int generate_request_texts(const struct generate_request *request);

/* The part of generate_request_check that is about adapters. */
bool generate_request_check_loras(const struct generate_request *request, struct error *err)
    __attribute__((warn_unused_result));

struct generate_timings {
    /* queue_s: from admission to the first work for it. text_encoder_s, vae_s: its own texts and
     * decodes. unet_s: the UNet calls that its images were in, shared or not. total_s: from
     * admission to the end. */
    double queue_s, text_encoder_s, unet_s, vae_s, total_s;
    int steps;              /* number of those UNet calls */
    double batch_rows_mean; /* of those UNet calls */
};

/* A finished request. Pictures are 8-bit RGB, row-major. Everything is owned. */
struct generate_result {
    int image_count;
    int width, height;
    uint64_t *seeds;  /* [image_count] */
    uint8_t **images; /* [image_count], each [height][width][3]; NULL with latent_output */
    bool vae_tiled;   /* at least one image was decoded in tiles */
    bool *nsfw;       /* [image_count]: flagged, and black; NULL: nothing was checked */
    float *latents;   /* [image_count][latent_channels][h][w], always filled */
    int latent_channels, latent_height, latent_width;
    struct generate_timings timings;
};

void generate_result_finish(struct generate_result *result);

#endif
