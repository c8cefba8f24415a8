/* Resolves a request for one checkpoint, once, before the request is queued. All mistakes in a
 * request are found here. The code that draws or describes the request reads only the result. Any
 * thread. */
#ifndef ENGINE_RESOLVE_RESOLVE_H
#define ENGINE_RESOLVE_RESOLVE_H

#include "engine/adapters/adapters.h"
#include "engine/prompts/texts.h"
#include "engine/request/request.h"
#include "engine/resolve/source.h"

/* The properties of a checkpoint that resolving needs. All borrowed. */
struct resolve_figures {
    const struct tokenizer *tokenizer;
    struct embeddings *embeddings; /* NULL: no embeddings */
    const json_t *scheduler_json;
    const struct generate_request *defaults; /* the checkpoint's; NULL: none */
    int default_px;                          /* side of a picture without a given size */
    int vae_scale;                           /* px per latent, in each direction */
    int latent_channels;
    bool inpaints;      /* the UNet has 9 channels: it needs a picture and a mask */
    int context_length; /* tokens of a text with its begin and end marks */
    int context_width;  /* width of the UNet's context, per token */
    int text_layers;
    struct adapters *adapters; /* NULL: requests cannot name adapters */
    uint64_t adapters_base;    /* adapters_base_id of this checkpoint */
};

/* Immutable. All members are owned, except scheduler.trained_betas, which belongs to the
 * checkpoint. */
struct resolved_request {
    /* A copy of the request with size, seed and strength filled in if they were left open. Its last
     * `tag_count` adapters come from tags in the prompt. The bytes of its pictures are dropped;
     * their sizes remain. */
    struct generate_request asked;
    int tag_count;
    struct scheduler_config scheduler;
    struct scheduler_plan *plan; /* shared by all images */
    struct source *source;       /* NULL: no picture was given */
    bool guided;
    int images; /* num_images of each prompt, prompt by prompt */
    int latent_channels, latent_height, latent_width;
    /* [text_count]. If guided, the negative prompt first; then the prompts, of which each has one
     * text, or one for each part that AND joins. */
    struct text *texts;
    int text_count;
    struct prompt_texts {
        int first, count; /* in `texts` */
        int tokens;       /* of the longest of them; the others are lengthened to it */
    } * prompts;          /* owned: one for each prompt; NULL: there is one, of one text */
    struct embedding_set *embeddings; /* held: the set that the texts use; NULL: none */
    bool vectors;                     /* at least one text contains vectors */
    int tokens;                       /* of a chunk, the text encoder's context */
    int chunks;                       /* of the longest text */
    char **warnings;                  /* about cut texts and fields without effect */
    int warning_count;
    struct adapter_set *adapters; /* NULL: the base weights alone */
    /* The checkpoint that the request was resolved for. `release`, if set, is called when the
     * request is finished: the checkpoint's weights and adapters are no longer used then. */
    struct resolved_for {
        void (*release)(void *model);
        void *model;
        const char *name; /* borrowed; NULL: no name */
    } of;
};

/* Whether resolving may take long, because pictures must be decoded, adapters read or long prompts
 * parsed. `adapters` may be NULL. */
bool resolve_would_wait(struct adapters *adapters, const struct generate_request *request);

/* Resolves a copy of the request. Waits if resolve_would_wait says so. ERROR_INVALID names the
 * field as the API does, its value and what is allowed. The caller finishes *out on success. */
bool resolve_request(const struct resolve_figures *figures, const struct generate_request *request,
    struct resolved_request *out, struct error *err) __attribute__((warn_unused_result));
void resolved_request_finish(struct resolved_request *request); /* zeroed is fine */

/* Counts the tokens of the request's first prompt, or of its negative prompt, which must be given,
 * as they would be drawn: with the defaults of the checkpoint, and with the edits that take place
 * in the evaluations of the request's num_inference_steps and scheduler. Reads no other field.
 * ERROR_INVALID where resolve_request refuses one of these. The caller finishes *out on success. */
bool resolve_text_count(const struct resolve_figures *figures,
    const struct generate_request *request, bool negative, struct text_count *out,
    struct error *err) __attribute__((warn_unused_result));

/* Returns the seed of image `index`. */
uint64_t resolved_request_seed(const struct resolved_request *request, int index);
/* Returns the subseed of image `index`; it has an effect only with a subseed_strength. */
uint64_t resolved_request_subseed(const struct resolved_request *request, int index);
/* Returns how the first noise of image `index` differs from what its seed draws. */
struct noise_variation resolved_request_variation(
    const struct resolved_request *request, int index);
/* Returns the texts of the prompt of image `index`. */
struct prompt_texts resolved_request_texts(const struct resolved_request *request, int index);
/* Returns the rows that image `index` takes in a UNet call: one for each text of its prompt and, if
 * it is guided, one for the text without guidance. */
int resolved_request_rows(const struct resolved_request *request, int index);
/* Returns the prompt of image `index`; "" if the client sent the prompt encoded. */
const char *resolved_request_prompt(const struct resolved_request *request, int index);

#endif
