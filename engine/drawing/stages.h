/* The operations that a studio (engine/drawing/studio.h) needs, one unit of work each. Models
 * implement them (engine/drawing/model_stages.h); tests and benchmarks of the layers above use a
 * fake. */
#ifndef ENGINE_DRAWING_STAGES_H
#define ENGINE_DRAWING_STAGES_H

#include "engine/drawing/latent_colours.h"
#include "engine/drawing/sampler.h"
#include "engine/resolve/resolve.h"

/* Work in flops: of one evaluation of one image, of its decode, and of encoding all pictures that
 * the request brings. */
struct stage_work {
    double evaluation, decode, encode;
};

enum stage_begun {
    STAGE_BEGUN,
    STAGE_NO_ROOM, /* there is, once others have left; the error says what is missing */
    STAGE_FAILED,
};

/* One thread at a time. `user` is the first argument of every function. */
struct stages {
    void *user;

    bool (*measure)(void *user, const struct resolved_request *request, struct stage_work *out,
        struct error *err);
    /* Best number of images of the request's size in one UNet call. */
    int (*call_images)(void *user, const struct resolved_request *request);

    /* The VAE's output for the request's pictures, in the form that image_start_create takes. */
    bool (*encode)(
        void *user, const struct resolved_request *request, float *moments, struct error *err);
    /* Gives the request's image `index` its memory, texts and noise. The caller has filled in
     * `latents` and, if the request brings pictures, `moments`. */
    enum stage_begun (*begin)(void *user, const struct resolved_request *request, int index,
        struct image *image, struct error *err);
    /* Makes sure that there is memory for one UNet call of these images, which have one size and
     * have begun. On failure nothing has changed, and fewer images may fit. */
    bool (*ready)(void *user, struct image *const *images, int count, struct error *err);
    /* Makes that call and each image's step. After a failure none of these images can go on. */
    bool (*step)(void *user, struct image *const *images, int count, struct error *err);
    /* Fetches the latents of an image that is done and frees its memory, also on failure. */
    bool (*take)(void *user, struct image *image, struct error *err);
    /* Frees the memory of an image that has begun, at any step. */
    void (*leave)(void *user, struct image *image);
    /* Linear map from this VAE's latents to colours, for previews. Takes as long as a small encode.
     * NULL: there are no previews by a map. */
    bool (*colours)(void *user, struct latent_colours *out, struct error *err);
    /* Decodes taken latents to 8-bit RGB [height][width][3]. Sets *tiled if it decoded in tiles. */
    bool (*decode)(void *user, const struct resolved_request *request, const float *latents,
        uint8_t *out, bool *tiled, struct error *err);
    /* Whether the safety checker flags this picture; a flagged picture becomes black. NULL: there
     * is no checker. */
    bool (*check)(void *user, const struct resolved_request *request, uint8_t *pixels,
        bool *flagged, struct error *err);
};

#endif
