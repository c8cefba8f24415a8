/* The operations that a studio (engine/drawing/studio.h) needs. Each is one unit of work. The
 * models implement them (engine/drawing/model_stages.h); tests and benchmarks of the studio and the
 * engine use a fake. */
#ifndef ENGINE_DRAWING_STAGES_H
#define ENGINE_DRAWING_STAGES_H

#include "engine/drawing/latent_colours.h"
#include "engine/drawing/sampler.h"
#include "engine/resolve/resolve.h"

/* Flops of one evaluation of the image that has most rows, of decoding one image, and of encoding
 * all pictures of the request. */
struct stage_work {
    double evaluation, decode, encode;
};

enum stage_begun {
    STAGE_BEGUN,
    STAGE_NO_ROOM, /* until other images leave; the error says what is missing */
    STAGE_FAILED,
};

/* Used by one thread at a time. `user` is the first argument of every function. */
struct stages {
    void *user;

    bool (*measure)(void *user, const struct resolved_request *request, struct stage_work *out,
        struct error *err);
    /* Returns the best number of images of the request's size in one UNet call, if each has two
     * rows. */
    int (*call_images)(void *user, const struct resolved_request *request);

    /* Encodes the request's pictures with the VAE. Writes `moments` in the form that
     * image_start_create takes. */
    bool (*encode)(
        void *user, const struct resolved_request *request, float *moments, struct error *err);
    /* Gives image `index` of the request its memory, texts and noise. The caller has filled in
     * `latents` and, if the request has pictures, `moments`. */
    enum stage_begun (*begin)(void *user, const struct resolved_request *request, int index,
        struct image *image, struct error *err);
    /* Reserves memory for one UNet call of these images, which have begun and have one size. On
     * failure nothing has changed, and the caller may try fewer images. */
    bool (*ready)(void *user, struct image *const *images, int count, struct error *err);
    /* Gives an image of the call that `ready` prepared the texts of its next evaluation. *seconds:
     * how long this took, without waiting for earlier calls of the UNet; 0 if the image has these
     * texts already. A failure is one of the call. NULL: texts never change. */
    bool (*renew_texts)(void *user, struct image *image, double *seconds, struct error *err);
    /* Makes the UNet call that `ready` prepared, and the scheduler step of each image. After a
     * failure none of these images can continue. */
    bool (*step)(void *user, struct image *const *images, int count, struct error *err);
    /* Fetches the latents of a finished image and frees its memory, even on failure. */
    bool (*take)(void *user, struct image *image, struct error *err);
    /* Frees the memory of an image that has begun. May be called at any step. */
    void (*leave)(void *user, struct image *image);
    /* Fits the linear map from this VAE's latents to colours, for previews. Takes as long as
     * encoding a small picture. NULL: previews by a map are not available. */
    bool (*colours)(void *user, struct latent_colours *out, struct error *err);
    /* Decodes latents that `take` fetched to 8-bit RGB [height][width][3]. Sets *tiled if it
     * decoded in tiles. */
    bool (*decode)(void *user, const struct resolved_request *request, const float *latents,
        uint8_t *out, bool *tiled, struct error *err);
    /* Runs the safety checker on a picture. A flagged picture becomes black and sets *flagged.
     * NULL: there is no checker. */
    bool (*check)(void *user, const struct resolved_request *request, uint8_t *pixels,
        bool *flagged, struct error *err);
};

#endif
