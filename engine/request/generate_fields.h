/* Every field of a request for pictures, in one table, named as in diffusers.
 *
 * A field of a plain type is one line of GENERATE_FIELDS and the code that uses its member of
 * struct generate_request. The line also defines how the field appears in the bodies of POST
 * /generate, of jobs and of Hugging Face's route, beside the own fields of OpenAI's routes, and
 * among the flags of `latentd generate`. It drives range checks, refusals, the parameters in
 * answers and in pictures, the JSON schemas and docs/fields.md. Fields of other types have kind
 * OTHER: their members stand in struct generate_request, and server/generation/generate_json.c
 * reads them. */
#ifndef ENGINE_REQUEST_GENERATE_FIELDS_H
#define ENGINE_REQUEST_GENERATE_FIELDS_H

#include "base/choice.h"
#include "base/fields.h"
#include "base/limits.h"
#include "kernels/random/noise.h"
#include "pictures/encode.h"

/* Each enum is in the order of its field's words. */
enum long_prompt { LONG_PROMPT_TRUNCATE, LONG_PROMPT_CHUNK };
enum prompt_syntax { PROMPT_SYNTAX_PLAIN, PROMPT_SYNTAX_A1111 };
enum resize_mode {
    RESIZE_MODE_NONE,
    RESIZE_MODE_DEFAULT,
    RESIZE_MODE_CROP,
    RESIZE_MODE_FILL,
    RESIZE_MODE_LATENT,
};
enum masked_content { MASKED_ORIGINAL, MASKED_NOISE, MASKED_NOTHING };

/* OpenAI's routes that take a field under the same name. */
enum {
    OPENAI_GENERATIONS = 1 << 0,
    OPENAI_EDITS = 1 << 1,
    OPENAI_VARIATIONS = 1 << 2,
    OPENAI_ALL = 7,
};

/* When a field is among the parameters of an answer. */
enum field_echo {
    ECHO_ALWAYS,     /* in the answer and in each picture's file */
    ECHO_SET,        /* answer and file, if it is not the default */
    ECHO_WITH_IMAGE, /* answer and file, if there is an init_image */
    ECHO_ANSWER,     /* only in the answer: says nothing about a single picture */
    ECHO_ANSWER_SET, /* only in the answer, if it is not the default */
    ECHO_NEVER,
};

/* X(kind, C type, name, columns of struct generate_field), in the order of an answer's parameters.
 */
#define GENERATE_FIELDS(X)                                                                         \
    X(OTHER, , prompt, .help = "a text, or a list of texts")                                       \
    X(OTHER, , prompt_embeds, .help = "texts that are encoded already, instead of prompt")         \
    X(TEXT, char *, negative_prompt, .openai = OPENAI_ALL, .by_model = true,                       \
        .help = "what not to draw")                                                                \
    X(OTHER, , negative_prompt_embeds,                                                             \
        .help = "negative texts that are encoded already, instead of negative_prompt")             \
    X(INTEGER, int, width, SIZE_RANGE, .sdapi = "width",                                           \
        .help = "width of the pictures in pixels")                                                 \
    X(INTEGER, int, height, SIZE_RANGE, .sdapi = "height",                                         \
        .help = "height of the pictures in pixels")                                                \
    X(INTEGER, int, num_inference_steps, .min = 1, .max = STEPS_MAX, .value = 25,                  \
        .openai = OPENAI_ALL, .sdapi = "steps", .flag = "steps", .by_model = true,                 \
        .help = "number of steps of the scheduler")                                                \
    X(NUMBER, double, guidance_scale, .max = GUIDANCE_SCALE_MAX, .value = 7.5,                     \
        .openai = OPENAI_ALL, .sdapi = "cfg_scale", .by_model = true,                              \
        .help = "1 or less turns guidance off and halves the work")                                \
    X(NUMBER, double, guidance_rescale, .max = 1, .openai = OPENAI_ALL, .by_model = true,          \
        .help =                                                                                    \
            "how far guided predictions are rescaled to the prompt's; for v-prediction models")    \
    X(OTHER, , scheduler, .openai = OPENAI_ALL, .by_model = true,                                  \
        .help = "the scheduler's name, or its name and options; otherwise the model's")            \
    X(WORD, enum rng_kind, rng, FIELD_WORDS("cpu", "cuda"), .openai = OPENAI_ALL,                  \
        .help = "which of torch's random generators draws the noise")                              \
    X(INTEGER, int, num_images, .min = 1, .max = IMAGES_PER_REQUEST_MAX, .value = 1,               \
        .sdapi = "batch_size", .help = "number of pictures of each prompt")                        \
    X(INTEGER, int, clip_skip, .max = CLIP_SKIP_MAX, .openai = OPENAI_ALL,                         \
        .sdapi = "CLIP_stop_at_last_layers", .by_model = true,                                     \
        .help = "last layers of the text encoder that are left out, as diffusers counts")          \
    X(WORD, enum long_prompt, long_prompt, FIELD_WORDS("truncate", "chunk"), .openai = OPENAI_ALL, \
        .by_model = true,                                                                          \
        .help = "cut texts of more than 75 tokens, or encode them in pieces of 75")                \
    X(WORD, enum prompt_syntax, prompt_syntax, FIELD_WORDS("plain", "a1111"),                      \
        .help =                                                                                    \
            "brackets in texts: themselves, or AUTOMATIC1111's weights, edits, AND, LoRA tags")    \
    X(OTHER, , loras, .openai = OPENAI_ALL,                                                        \
        .help = "adapters and their weights; otherwise the server's defaults; [] for none")        \
    X(OTHER, , init_image, .sdapi = "init_images",                                                 \
        .help = "the start picture: a PNG, JPEG or WebP file in base64, or a data URL")            \
    X(OTHER, , mask_image, .sdapi = "mask",                                                        \
        .help = "a picture of the same size: the white part of init_image is drawn anew")          \
    X(NUMBER, double, strength, .max = 1, .openai = OPENAI_EDITS | OPENAI_VARIATIONS,              \
        .echo = ECHO_WITH_IMAGE, .sdapi = "denoising_strength", .standard = "0.8; 1 with a mask",  \
        .help = "share of the steps that init_image goes through")                                 \
    X(WORD, enum masked_content, masked_content, FIELD_WORDS("original", "noise", "nothing"),      \
        .echo = ECHO_SET,                                                                          \
        .help = "latents with which the masked part begins: init_image's, the seed's noise, or 0") \
    X(WORD, enum resize_mode, resize_mode,                                                         \
        FIELD_WORDS("none", "default", "crop", "fill", "latent"), .echo = ECHO_WITH_IMAGE,         \
        .help = "an init_image of another size: refuse it, resize it, resize and crop it, resize " \
                "it and fill the rest with its edges, or resize its latents")                      \
    X(INTEGER, uint64_t, seed, .max = SEED_MAX, .openai = OPENAI_ALL, .standard = "random",        \
        .note = "leave it out for a random one",                                                   \
        .help = "image k uses seed + k; with a subseed_strength, all use seed")                    \
    X(INTEGER, uint64_t, subseed, .max = SEED_MAX, .openai = OPENAI_ALL, .standard = "random",     \
        .note = "leave it out for a random one",                                                   \
        .help = "image k varies by subseed + k; without a subseed_strength, `warnings` say that "  \
                "it has no effect")                                                                \
    X(NUMBER, double, subseed_strength, .max = 1, .openai = OPENAI_ALL, .echo = ECHO_SET,          \
        .help = "how far the seed's noise is turned towards the subseed's: 1 is all the way")      \
    X(INTEGER, int, seed_resize_from_w, SIZE_OF_NOISE, .openai = OPENAI_ALL,                       \
        .help = "the width for which the seed's noise is made; put into the middle of another")    \
    X(INTEGER, int, seed_resize_from_h, SIZE_OF_NOISE, .openai = OPENAI_ALL,                       \
        .help = "the height beside it")                                                            \
    X(OTHER, , output, .standard = "\"png\"",                                                      \
        .help = "\"png\", \"jpeg\", \"webp\" or \"latent\"; or send an Accept header")             \
    X(INTEGER, int, priority, .min = -PRIORITY_MAX, .max = PRIORITY_MAX, .echo = ECHO_ANSWER,      \
        .openai = OPENAI_ALL, .no_flag = true,                                                     \
        .help = "larger is drawn sooner; where keys are needed, above 0 needs an API key that "    \
                "may prioritize")                                                                  \
    X(WORD, enum choice, vae_tiling, CHOICE_WORDS, .echo = ECHO_SET, .by_model = true,             \
        .help = "decode and encode large pictures in tiles; auto: as the daemon is set")           \
    X(INTEGER, int, quality, .min = 1, .max = PICTURE_QUALITY_MAX, .zero_is_unset = true,          \
        .echo = ECHO_ANSWER_SET, .sdapi = "jpeg_quality", .standard = "90",                        \
        .help = "quality of JPEG and WebP files")                                                  \
    X(NUMBER, double, timeout_s, .max = TIMEOUT_MAX_S, .zero_is_unset = true,                      \
        .echo = ECHO_ANSWER_SET, .openai = OPENAI_ALL, .no_flag = true, .unit = "seconds",         \
        .note = "leave it out for no limit",                                                       \
        .help = "seconds after which an accepted request ends, drawn or not")                      \
    X(TEXT, char *, model, .echo = ECHO_NEVER, .no_flag = true,                                    \
        .help = "the request is refused unless this model is in use")

#define GENERATE_FIELD_ID(kind, type, name, ...) GENERATE_##name,
enum generate_field_id { GENERATE_FIELDS(GENERATE_FIELD_ID) GENERATE_FIELD_COUNT };
#undef GENERATE_FIELD_ID

struct generate_field {
    FIELD_COLUMNS;        /* of struct generate_request */
    size_t given;         /* offset of the member NAME_given */
    enum field_echo echo; /* for plain types */
    unsigned openai;      /* a set of OPENAI_... */
    const char *sdapi;    /* AUTOMATIC1111's name of it; NULL: the same */
    const char *flag;     /* of `latentd generate`; NULL: the name, with dashes */
    bool by_model;        /* a checkpoint may bring a default (defaults.h) */
    bool no_flag;         /* no flag in `latentd generate`, or a special one */
    const char *standard; /* the default in words if it is no constant, or NULL */
};

#define SIZE_RANGE                                                                                 \
    .min = IMAGE_MIN_PX, .max = IMAGE_MAX_PX, .multiple = IMAGE_MULTIPLE_PX,                       \
    .zero_is_unset = true, .standard = "the model's", .by_model = true,                            \
    .note = "leave it out for the model's size"

#define SIZE_OF_NOISE                                                                              \
    .min = IMAGE_MIN_PX, .max = IMAGE_MAX_PX, .multiple = IMAGE_MULTIPLE_PX,                       \
    .zero_is_unset = true, .standard = "that of the pictures", .echo = ECHO_SET

#endif
