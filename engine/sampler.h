/* Images on their way from noise to latents, one UNet call at a time.
 *
 * A sampler is memory for images of one latent size: for each a row of its terms, and two of
 * encoded context, that of its texts. Images come (sampler_place, sampler_encode_text,
 * sampler_start), take any number of ticks among whatever others are there, each with its own
 * scheduler row, timestep, guidance and texts, and leave (sampler_finish, sampler_leave), which
 * frees their rows for others. An image's latents depend on its own generator, texts and plan only,
 * not on the images it shares calls with (the kernels' row contract).
 */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include "base/limits.h"
#include "engine/brownian.h"
#include "engine/source.h"
#include "kernels/noise.h"
#include "engine/scheduler/scheduler.h"
#include "models/unet.h"

struct sampler;

/* Evaluations whose timesteps are encoded at a time: their layers' weights are as many times read
 * less often, and the first evaluation waits for all of them. */
#define SAMPLER_TIME_LINES 16

/* Zeroed where nothing is said. All pointers are borrowed until the image has left. */
struct image {
    const struct scheduler_plan *plan;
    struct noise_generator generator; /* its initial noise, then that of its steps */
    struct brownian *brownian;        /* of a plan that draws Brownian noise, else NULL */
    const float *init_latents;        /* [c][height][width] to start from, or NULL */
    const float *moments;             /* of the request's pictures (engine/source.h), or NULL */
    const struct image_start *start;  /* during sampler_start: what the pictures came to, or NULL */
    bool keeps;                       /* what a mask leaves of a picture, step by step */
    const struct row_overlay *overlay; /* of the UNet's weights, for all its rows; NULL: none */
    bool guided;
    double guidance_scale, guidance_rescale; /* if guided; rescale 0: off */
    int text_tokens[2];                      /* without guidance (if guided), and with the prompt */
    /* [c][height][width], host: the next tick leaves here what the image would be if the model's
     * output were right; NULL: nobody wants to know. */
    float *preview;
    enum prediction_type prediction; /* what that output is */
    float *latents;          /* [c][height][width], host: the result, and scratch until then */
    struct sampler *sampler; /* where its rows are, from sampler_place on; NULL before and after */
    int row;                 /* of the sampler's terms */
    int evaluations;         /* that it has taken */
    bool is_finite;          /* after sampler_finish: whether the latents are */
};

static inline bool image_is_done(const struct image *image) {
    return image->evaluations == image->plan->count;
}

/* Rows of a UNet call: one without guidance and one with the prompt. */
static inline int image_rows(const struct image *image) {
    return image->guided ? 2 : 1;
}

struct sampler_size {
    int64_t height, width; /* of the latents */
    int images;            /* here at a time: 1..SAMPLER_MAX_IMAGES */
    int call_images;       /* in one UNet call: 1..UNET_CALL_MAX_IMAGES */
    int tokens;            /* of the longest text */
};

/* In the arena; embedded, and gone when the arena is released to before sampler_init. */
struct sampler {
    const struct unet *unet; /* borrowed */
    struct sampler_size size;
    bool row_taken[SAMPLER_MAX_IMAGES];
    /* Rows of images: f32 [images][height][width][channels]; of the terms only the sample and the
     * slots, which last from one tick to the next. */
    struct tensor terms[TERM_COUNT];
    /* Rows of images that inpaint. By 4 channels: the picture's latents, what noises them, and the
     * mask (one channel). By 9: what the UNet is shown beside the sample, mask and masked picture;
     * the others are not there. */
    struct tensor init, init_noise, mask, shown;
    /* [2 images][tokens][...]: without guidance, with the prompt; behind a text's own tokens lies
     * anything. */
    struct tensor text_kv;
    /* [images * SAMPLER_TIME_LINES][...]: what the timesteps of an image's next evaluations add, by
     * its own adapters; `timesteps` f32, of those that are being encoded. */
    struct tensor time_table, timesteps;
    int time_first[SAMPLER_MAX_IMAGES]; /* the evaluation of an image's first line, -1: none */
    /* One call's, image by image in the order of the tick; `input`, `predicted`, `kv`, `lengths`
     * (i32, of the texts) and `time_ids` (of time_table) have a row for each row of the UNet call:
     * the unconditional ones first. */
    struct tensor input, predicted, kv, lengths, time_ids;
    struct tensor scaled; /* input without what is shown beside it; only where something is */
    struct tensor difference, guided; /* of guidance: conditional - unconditional, and its output */
    struct tensor noise, drawn;       /* drawn: in torch's order, [images][channels][h][w] */
    int kv_texts[2 * UNET_CALL_MAX_IMAGES]; /* which row of text_kv each row of kv is, -1: none */
};

/* Every function that takes a `struct compute` leaves c->error on failure, and does nothing after
 * one. */
void sampler_init(
    struct compute *c, struct sampler *s, const struct unet *unet, const struct sampler_size *size);

/* Takes over all rows of `from`, which is of the same latents and has no more of anything; the
 * images' own pointers are the caller's to change. */
void sampler_move(struct compute *c, struct sampler *s, const struct sampler *from);

/* Gives the image rows; false if all are taken. */
bool sampler_place(struct sampler *s, struct image *image);
/* Takes them back, wherever the image stands. */
void sampler_leave(struct image *image);

/* One of the image's texts, [1][its text_tokens][cross_attention_dim]: with the prompt, or without
 * guidance. */
void sampler_encode_text(struct compute *c, struct sampler *s, struct image *image, bool prompt,
    const struct tensor *context);
/* The texts of another image here that has the same. */
void sampler_copy_texts(
    struct compute *c, struct sampler *s, struct image *image, const struct image *like);

/* Gives images that have rows their initial noise, or what their pictures came to. */
void sampler_start(struct compute *c, struct sampler *s, struct image *const *images, int count);

/* One UNet call for all of the images, which are started and not done, and the evaluation's
 * updates. A dry run touches no generator. */
void sampler_tick(struct compute *c, struct sampler *s, struct image *const *images, int count);

/* Brings the latents of images that are done to the host, and says whether they are finite. */
void sampler_finish(struct compute *c, struct sampler *s, struct image *const *images, int count);

#endif
