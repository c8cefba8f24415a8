/* What is done to the images of a studio (engine/studio.h), a unit of work at a time: by models
 * (engine/model_stages.h), or, in tests and benchmarks of all that stands above them, by something
 * that only pretends. */
#ifndef ENGINE_STAGES_H
#define ENGINE_STAGES_H

#include "engine/latent_colours.h"
#include "engine/resolve.h"
#include "engine/sampler.h"

/* Work, in flops: of one evaluation of one image, of its decode, and of encoding all pictures that
 * the request brings. */
struct stage_work {
    double evaluation, decode, encode;
};

enum stage_begun {
    STAGE_BEGUN,
    STAGE_NO_ROOM, /* there is, once others have left; the error says what was missing */
    STAGE_FAILED,
};

/* One thread at a time. `user` is the first argument of all. */
struct stages {
    void *user;

    bool (*measure)(void *user, const struct resolved_request *request, struct stage_work *out,
        struct error *err);
    /* The images of the request's size that one UNet call best has. */
    int (*call_images)(void *user, const struct resolved_request *request);

    /* What the VAE makes of the request's pictures, as image_start_create takes it. */
    bool (*encode)(
        void *user, const struct resolved_request *request, float *moments, struct error *err);
    /* Gives the request's image `index` memory, its texts and its noise. The caller has filled in
     * `latents` and, if the request brings pictures, `moments`. */
    enum stage_begun (*begin)(void *user, const struct resolved_request *request, int index,
        struct image *image, struct error *err);
    /* Makes sure of the memory of one UNet call of these images, which are of one size and have
     * begun. Nothing has happened if it fails: fewer images may do. */
    bool (*ready)(void *user, struct image *const *images, int count, struct error *err);
    /* That call, and each image's step. After a failure none of them can go on. */
    bool (*step)(void *user, struct image *const *images, int count, struct error *err);
    /* The latents of an image that is done, and its memory back, also on failure. */
    bool (*take)(void *user, struct image *image, struct error *err);
    /* An image that has begun gives its memory back, wherever it stands. */
    void (*leave)(void *user, struct image *image);
    /* How its VAE's latents look, for previews; as long as a small encode. NULL: there are none. */
    bool (*colours)(void *user, struct latent_colours *out, struct error *err);
    /* Taken latents to 8-bit RGB [height][width][3]; *tiled: in tiles. */
    bool (*decode)(void *user, const struct resolved_request *request, const float *latents,
        uint8_t *out, bool *tiled, struct error *err);
    /* Whether the safety checker flags that picture, which it makes black then. NULL: there is
     * none. */
    bool (*check)(void *user, const struct resolved_request *request, uint8_t *pixels,
        bool *flagged, struct error *err);
};

#endif
