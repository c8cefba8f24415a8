/* What a picture is asked with, and what comes back. No JSON here: the server's dialects and the
 * command line fill the same struct, and engine/resolve.h says what it means to a checkpoint. */
#ifndef ENGINE_REQUEST_H
#define ENGINE_REQUEST_H

#include "base/choice.h"
#include "base/error.h"
#include "base/limits.h"
#include "kernels/noise.h"
#include "engine/scheduler/scheduler.h"
#include "pictures/encode.h"

#include <stdbool.h>
#include <stdint.h>

/* Of JPEG and WebP files. */
#define PICTURE_QUALITY 90

/* Starting noise, f32 [images][channels][height][width], whatever model it was made for. */
struct init_latents {
    float *values; /* owned; NULL: none is given, and the seeds draw it */
    int64_t images, channels, height, width;
};

/* Texts that come encoded, f32 [texts][tokens][width], the width being that of the UNet's context.
 */
struct encoded_texts {
    float *values; /* owned; NULL: none are given */
    int64_t texts, tokens, width;
};

/* What becomes of a text that is longer than the text encoder's context. */
#define LONG_PROMPTS(X)                                                                            \
    X(TRUNCATE, "truncate") /* it is cut, with a warning */                                        \
    X(CHUNK, "chunk")       /* pieces are encoded one by one and lie behind each other */
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
    X(PLAIN, "plain") /* themselves */                                                             \
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

/* A PNG or JPEG file, as it was sent. */
struct picture_file {
    void *bytes; /* owned; NULL: none is given */
    size_t size;
};

/* What becomes of a picture that has not the size to be drawn. */
#define RESIZE_MODES(X)                                                                            \
    X(NONE, "none")       /* it is refused */                                                      \
    X(DEFAULT, "default") /* resized, whatever becomes of its proportions */                       \
    X(CROP, "crop")       /* resized to cover, and the middle of that */
enum resize_mode {
#define RESIZE_MODE(name, word) RESIZE_MODE_##name,
    RESIZE_MODES(RESIZE_MODE)
#undef RESIZE_MODE
};
#define RESIZE_MODE_ALLOWED "\"none\", \"default\" (resize) or \"crop\" (resize and crop)"
const char *resize_mode_name(enum resize_mode mode);
bool resize_mode_from_name(const char *name, enum resize_mode *out);

/* Zeroed plus generate_request_init is a valid request but for the prompt. Strings are owned. */
struct generate_request {
    char **prompts; /* owned, prompt_count of them; none with prompt_embeds */
    int prompt_count;
    char *negative_prompt; /* owned, may be NULL: "" */
    struct encoded_texts prompt_embeds, negative_prompt_embeds;
    char *model;       /* owned: that is meant to draw it; NULL: whichever does */
    int width, height; /* pixels; 0: that of init_latents or init_image, or the model's own */
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
    enum choice vae_tiling;     /* CHOICE_AUTO: as the server is set */
    bool latent_output;         /* return latents instead of pictures */
    enum picture_format format; /* of the files */
    bool format_given;
    int quality; /* of a format that has one; 0: PICTURE_QUALITY */
    struct init_latents init_latents;
    struct picture_file init_image, mask_image;
    bool mask_is_transparent; /* what is drawn anew is transparent in mask_image, not white */
    double strength;          /* how much of the steps init_image goes through */
    bool strength_given;
    enum resize_mode resize_mode;
    double timeout_s;          /* 0: none */
    int priority;              /* larger is sooner; 0 is everybody's */
    struct lora_choice *loras; /* owned, lora_count of them */
    int lora_count;
    bool loras_given; /* false: the server's defaults apply */
};

/* Defaults: 25 steps, guidance 7.5, one image, the model's scheduler, RNG_CPU. */
void generate_request_init(struct generate_request *request);
void generate_request_finish(struct generate_request *request);
/* *out is finished by the caller on success. ERROR_NO_MEMORY. */
bool generate_request_copy(const struct generate_request *request, struct generate_request *out,
    struct error *err) __attribute__((warn_unused_result));

/* What timeout_s may be, in words that take TIMEOUT_MAX_S. */
#define TIMEOUT_ALLOWED "seconds above 0, at most %g; leave it out for no limit"

/* Range checks that need no model: every field against base/limits.h. ERROR_INVALID names the
 * field, the value and what is allowed, with the API's field names. */
bool generate_request_check(const struct generate_request *request, struct error *err)
    __attribute__((warn_unused_result));

/* Prompts, encoded or not. */
int generate_request_texts(const struct generate_request *request);

/* What of it is about adapters. */
bool generate_request_check_loras(const struct generate_request *request, struct error *err)
    __attribute__((warn_unused_result));

struct generate_timings {
    /* From admission to the first work for it; what its own texts and decodes took, and the UNet
     * calls that its images were in, whoever else was; from admission to the end. */
    double queue_s, text_encoder_s, unet_s, vae_s, total_s;
    int steps;              /* those calls */
    double batch_rows_mean; /* of those calls */
};

/* A finished request. Pictures are 8-bit RGB, row-major. Everything is owned. */
struct generate_result {
    int image_count;
    int width, height;
    uint64_t *seeds;  /* [image_count] */
    uint8_t **images; /* [image_count], each [height][width][3]; NULL with latent_output */
    bool vae_tiled;   /* of any of them */
    bool *nsfw;       /* [image_count]: flagged, and black; NULL: nothing was checked */
    float *latents;   /* [image_count][latent_channels][h][w], always filled */
    int latent_channels, latent_height, latent_width;
    struct generate_timings timings;
};

void generate_result_finish(struct generate_result *result);

#endif
