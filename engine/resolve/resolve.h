/* A request resolved for one checkpoint, once, before it waits for its turn. Everything that can be
 * wrong with a request is found here; whoever draws or describes it reads the result. Any
 * thread. */
#ifndef ENGINE_RESOLVE_RESOLVE_H
#define ENGINE_RESOLVE_RESOLVE_H

#include "engine/adapters/adapters.h"
#include "engine/prompts/texts.h"
#include "engine/request/request.h"
#include "engine/resolve/source.h"

/* What resolving needs to know of a checkpoint. Everything is borrowed. */
struct resolve_figures {
    const struct tokenizer *tokenizer;
    struct embeddings *embeddings; /* NULL: there are none */
    const json_t *scheduler_json;
    const struct generate_request *defaults; /* the checkpoint's; NULL: none */
    int default_px; /* side of a picture whose size is left open */
    int vae_scale;  /* px per latent, in each direction */
    int latent_channels;
    bool inpaints;      /* the UNet has 9 channels: it needs a picture and a mask */
    int context_length; /* tokens of a text, including its begin and end marks */
    int context_width;  /* width of the context that the UNet takes, per token */
    int text_layers;
    struct adapters *adapters; /* NULL: a request can name none */
    uint64_t adapters_base;    /* adapters_base_id of this checkpoint */
};

/* Read-only once it is made. Everything is owned, except scheduler.trained_betas, which belongs to
 * the checkpoint. */
struct resolved_request {
    /* A copy with size, seed and strength filled in where they were left open. The adapters named
     * in its prompt follow its own: tag_count of them. Of its pictures only the sizes are kept, not
     * the bytes. */
    struct generate_request asked;
    int tag_count;
    struct scheduler_config scheduler;
    struct scheduler_plan *plan; /* the same for every image */
    struct source *source;       /* NULL: no picture is given */
    bool guided;
    int images; /* prompt by prompt, num_images of each */
    int latent_channels, latent_height, latent_width;
    struct text *texts; /* the negative prompt first if guided, then the prompts */
    int text_count;
    struct embedding_set *embeddings; /* held: those that the texts were made with; NULL: none */
    bool vectors;                     /* some of their vectors are in a text */
    int tokens;                       /* of a chunk: what the text encoder takes at once */
    int chunks;                       /* of the longest text */
    char **warnings;                  /* of texts that were cut and of fields without effect */
    int warning_count;
    struct adapter_set *adapters; /* NULL: the base alone */
    /* The checkpoint that the request was resolved for. `release`, if set, is called last, so that
     * the owner knows when the checkpoint is no longer needed. */
    struct resolved_for {
        void (*release)(void *model);
        void *model;
        const char *name; /* borrowed; NULL: it has no name */
    } of;
};

/* Whether resolving may take long: pictures to decode, or adapters (may be NULL) to read. */
bool resolve_would_wait(struct adapters *adapters, const struct generate_request *request);

/* Resolves a request, which is copied. Waits where resolve_would_wait says so. ERROR_INVALID names
 * the field as the API calls it, the value and what is allowed. The caller finishes *out on
 * success. */
bool resolve_request(const struct resolve_figures *figures, const struct generate_request *request,
    struct resolved_request *out, struct error *err) __attribute__((warn_unused_result));
void resolved_request_finish(struct resolved_request *request); /* zeroed is fine */

/* The seed of image `index`. */
uint64_t resolved_request_seed(const struct resolved_request *request, int index);
/* "" if the prompt came encoded. */
const char *resolved_request_prompt(const struct resolved_request *request, int index);

#endif
