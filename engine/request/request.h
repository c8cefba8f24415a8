/* A request for pictures, and its result. There is no JSON here: the server's dialects and the
 * command line fill in the same struct, and engine/resolve/resolve.h completes it for a
 * checkpoint. */
#ifndef ENGINE_REQUEST_REQUEST_H
#define ENGINE_REQUEST_REQUEST_H

#include "base/error.h"
#include "base/limits.h"
#include "engine/request/generate_fields.h"
#include "engine/scheduler/scheduler.h"

#include <stdbool.h>
#include <stdint.h>

/* Default quality of JPEG and WebP files. */
#define PICTURE_QUALITY 90

/* Starting noise, f32 [images][channels][height][width]. Its shape may be that of any model. */
struct init_latents {
    float *values; /* owned; NULL: not given, the seeds draw the noise */
    int64_t images, channels, height, width;
};

/* Texts that the client sent encoded, f32 [texts][tokens][width]. The width must be that of the
 * UNet's context. */
struct encoded_texts {
    float *values; /* owned; NULL: not given */
    int64_t texts, tokens, width;
};

/* One adapter of a request. */
struct lora_choice {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    double weight, text_encoder_weight;
};

/* A PNG, JPEG or WebP file as the client sent it. */
struct picture_file {
    void *bytes; /* owned; NULL: not given */
    size_t size;
};

/* For messages: the values of resize_mode that allow a picture of another size. */
#define RESIZE_MODES_THAT_FIT                                                                      \
    "\"default\" (resize it), \"crop\" (resize and crop it), \"fill\" (resize it and fill the "    \
    "rest) or \"latent\" (resize its latents)"

/* A zeroed request after generate_request_init is valid except for the missing prompt. A field of a
 * plain type in GENERATE_FIELDS has two members here: TYPE NAME and bool NAME_given; strings are
 * owned. A size of 0 is taken from init_latents or init_image, or is the model's own. */
struct generate_request {
    char **prompts; /* owned, [prompt_count]; 0 prompts with prompt_embeds */
    int prompt_count;
    struct encoded_texts prompt_embeds, negative_prompt_embeds;
#define MEMBER_OTHER(type, name)
#define MEMBER_TEXT(type, name)                                                                    \
    type name;                                                                                     \
    bool name##_given;
#define MEMBER_INTEGER MEMBER_TEXT
#define MEMBER_NUMBER MEMBER_TEXT
#define MEMBER_WORD MEMBER_TEXT
#define MEMBER_FLAG MEMBER_TEXT
#define MEMBER(kind, type, name, ...) MEMBER_##kind(type, name)
    GENERATE_FIELDS(MEMBER)
#undef MEMBER
    /* Bit i: field i has a default of the client's API, not a value of the client. */
    uint64_t assumed;
    struct scheduler_choice scheduler;
    bool latent_output;         /* return latents instead of pictures */
    enum picture_format format; /* of the picture files */
    bool format_given;
    struct init_latents init_latents;
    struct picture_file init_image, mask_image;
    bool mask_is_transparent;  /* draw transparent pixels of mask_image anew, not white ones */
    struct lora_choice *loras; /* owned, [lora_count] */
    int lora_count;
    bool loras_given; /* false: use the server's default adapters */
    /* A tag of a prompt that names no adapter is left out with a warning, as AUTOMATIC1111 does,
     * and not refused. */
    bool unknown_tags_pass;
};

extern const struct generate_field generate_fields[GENERATE_FIELD_COUNT];

/* Finds a field by its name; NULL if there is none. */
const struct generate_field *generate_field_named(const char *name);

/* Marks a field of a plain type as given. */
void generate_field_set_given(const struct generate_field *field, struct generate_request *request);

/* Sets the defaults of GENERATE_FIELDS, and the model's scheduler. */
void generate_request_init(struct generate_request *request);
void generate_request_finish(struct generate_request *request);
/* Copies a request. The caller finishes *out on success. ERROR_NO_MEMORY. */
bool generate_request_copy(const struct generate_request *request, struct generate_request *out,
    struct error *err) __attribute__((warn_unused_result));

/* Checks every field against base/limits.h, as far as this needs no model. ERROR_INVALID names the
 * field as the API does, its value and what is allowed. */
bool generate_request_check(const struct generate_request *request, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the number of prompts, encoded or not. */
int generate_request_texts(const struct generate_request *request);

/* Checks only the adapters of the request. generate_request_check calls this. */
bool generate_request_check_loras(const struct generate_request *request, struct error *err)
    __attribute__((warn_unused_result));

struct generate_timings {
    /* queue_s: from admission to the request's first unit of work. text_encoder_s, vae_s: its own
     * texts and decodes. unet_s: all UNet calls with its images, shared or not. total_s: from
     * admission to the end. */
    double queue_s, text_encoder_s, unet_s, vae_s, total_s;
    int steps;              /* number of UNet calls with its images */
    double batch_rows_mean; /* mean rows of these calls */
};

/* The result of a request. Pictures are 8-bit RGB, row-major. All members are owned. */
struct generate_result {
    int image_count;
    int width, height;
    uint64_t *seeds;  /* [image_count] */
    uint8_t **images; /* [image_count], each [height][width][3]; NULL with latent_output */
    bool vae_tiled;   /* at least one image was decoded in tiles */
    bool *nsfw;       /* [image_count]: flagged, and so black; NULL: nothing was checked */
    float *latents;   /* [image_count][latent_channels][h][w], always filled */
    int latent_channels, latent_height, latent_width;
    struct generate_timings timings;
};

void generate_result_finish(struct generate_result *result);

#endif
