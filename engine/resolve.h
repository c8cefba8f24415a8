/* What a request means to one checkpoint, resolved once and before it waits for its turn: whatever
 * can be wrong with it is found here, and whoever draws it or describes it reads the result. From
 * any thread. */
#ifndef ENGINE_RESOLVE_H
#define ENGINE_RESOLVE_H

#include "engine/adapters/adapters.h"
#include "engine/prompts/texts.h"
#include "engine/request.h"
#include "engine/source.h"

/* What resolving has to know of a checkpoint; everything borrowed. */
struct resolve_figures {
    const struct tokenizer *tokenizer;
    struct embeddings *embeddings; /* NULL: there are none */
    const json_t *scheduler_json;
    int default_px; /* a side of a picture whose size is left open */
    int vae_scale;  /* px that one latent covers, in each direction */
    int latent_channels;
    bool inpaints;      /* the UNet has 9 channels: it needs a picture and a mask */
    int context_length; /* tokens of a text, its begin and end marks included */
    int context_width;  /* numbers that the UNet takes for each */
    int text_layers;
    struct adapters *adapters; /* NULL: a request can name none */
    uint64_t adapters_base;    /* its number of this checkpoint (adapters_base_id) */
};

/* Read-only once it is made. Everything is owned, but for scheduler.trained_betas, which is the
 * checkpoint's. */
struct resolved_request {
    /* With the size, the seed and the strength, if it left them open, and behind its own adapters
     * those that its prompt names: tag_count of them. Its pictures' bytes are gone, their sizes are
     * left. */
    struct generate_request asked;
    int tag_count;
    struct scheduler_config scheduler;
    struct scheduler_plan *plan; /* of every image */
    struct source *source;       /* NULL: no picture is given */
    bool guided;
    int images; /* prompt by prompt, num_images of each */
    int latent_channels, latent_height, latent_width;
    struct text *texts; /* the negative prompt first if guided, then the prompts */
    int text_count;
    struct embedding_set *embeddings; /* held: those that texts were made with; NULL: none */
    bool vectors;                     /* some of them are in a text */
    int tokens;                       /* of a chunk: what the text encoder takes at a time */
    int chunks;                       /* of the longest text */
    char **warnings;                  /* of texts that were cut, fields without effect */
    int warning_count;
    struct adapter_set *adapters; /* NULL: the base alone */
    /* Of the checkpoint for which it was resolved, whose owner may want to know how long it is
     * needed: called last, if it is there. */
    struct resolved_for {
        void (*release)(void *model);
        void *model;
        const char *name; /* borrowed; NULL: nobody said */
    } of;
};

/* Whether it may take long: pictures to decode, adapters (NULL: there are none) to read. */
bool resolve_would_wait(struct adapters *adapters, const struct generate_request *request);

/* `request` is copied. Waits where resolve_would_wait says so. ERROR_INVALID names the field, by
 * its name in the API, the value and what is allowed. The caller finishes *out on success. */
bool resolve_request(const struct resolve_figures *figures, const struct generate_request *request,
    struct resolved_request *out, struct error *err) __attribute__((warn_unused_result));
void resolved_request_finish(struct resolved_request *request); /* zeroed is fine */

/* Of image `index`. */
uint64_t resolved_request_seed(const struct resolved_request *request, int index);
/* "" where it came encoded. */
const char *resolved_request_prompt(const struct resolved_request *request, int index);

#endif
