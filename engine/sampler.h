/* Images on their way from noise to latents, one UNet call at a time.
 *
 * A sampler is memory for images of one latent size: a row for each of its terms, and a row of
 * encoded context for each text. Images come (sampler_start), take any number of ticks among
 * whatever others are there, each with its own scheduler row, timestep, guidance and texts, and
 * leave (sampler_finish), which frees their rows for others. An image's latents depend on its own
 * generator, texts and plan only, not on the images it shares calls with (the kernels' row
 * contract).
 */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include "base/limits.h"
#include "engine/brownian.h"
#include "engine/noise.h"
#include "engine/scheduler/scheduler.h"
#include "models/unet.h"

/* Zeroed where nothing is said. All pointers are borrowed until the image is finished. */
struct image {
    const struct scheduler_plan *plan;
    struct noise_generator generator; /* its initial noise, then that of its steps */
    struct brownian *brownian;        /* of a plan that draws Brownian noise, else NULL */
    const float *init_latents;        /* [c][height][width] to start from, or NULL */
    bool guided;
    double guidance_scale, guidance_rescale; /* if guided; rescale 0: off */
    int text, negative_text;                 /* rows of the sampler's texts; negative if guided */
    float *latents;  /* [c][height][width], host: the result, and scratch until then */
    int row;         /* of the sampler's terms, from sampler_start on */
    int evaluations; /* that it has taken */
};

static inline bool image_is_done(const struct image *image) {
    return image->evaluations == image->plan->count;
}

struct sampler_size {
    int64_t height, width; /* of the latents */
    int images;            /* at a time: 1..UNET_CALL_MAX_IMAGES */
    bool guided;           /* whether any image is */
    int slots;             /* the most that a plan uses */
    int texts, tokens;
};

/* In the arena; embedded, and gone when the arena is released to before sampler_init. */
struct sampler {
    const struct unet *unet; /* borrowed */
    struct sampler_size size;
    bool row_taken[UNET_CALL_MAX_IMAGES];
    /* Rows of images and of texts. f32 [images][height][width][channels]; of the terms only the
     * sample and the slots, which last from one tick to the next. */
    struct tensor terms[TERM_COUNT];
    struct tensor text_kv; /* [texts][tokens][...] */
    /* One call's, image by image in the order of the tick; `input`, `predicted`, `kv` and
     * `timesteps` have a row for each row of the UNet call: the unconditional ones first. */
    struct tensor input, predicted, kv, timesteps;
    struct tensor difference, guided; /* of guidance: conditional - unconditional, and its output */
    struct tensor noise, drawn;       /* drawn: in torch's order, [images][channels][h][w] */
    int kv_texts[2 * UNET_CALL_MAX_IMAGES]; /* which text each row of kv holds, -1: none */
};

/* Every function leaves c->error on failure, and does nothing after one. */
void sampler_init(
    struct compute *c, struct sampler *s, const struct unet *unet, const struct sampler_size *size);

/* contexts: [texts][tokens][cross_attention_dim], for the images' text and negative_text. */
void sampler_encode_texts(struct compute *c, struct sampler *s, const struct tensor *contexts);

/* Gives each image a row and its initial noise. */
void sampler_start(struct compute *c, struct sampler *s, struct image *const *images, int count);

/* One UNet call for all of the images, which are started and not done, and the evaluation's
 * updates. A dry run touches no generator. */
void sampler_tick(struct compute *c, struct sampler *s, struct image *const *images, int count);

/* Brings the latents of images that are done to the host and frees their rows. Latents that are not
 * finite are an error. */
void sampler_finish(struct compute *c, struct sampler *s, struct image *const *images, int count);

#endif
