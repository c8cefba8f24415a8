/* Takes images from noise to latents, one UNet call at a time.
 *
 * A sampler is the memory for images of one latent size: per image one row of its terms, and two of
 * encoded context for its texts. Images join (sampler_place, sampler_encode_text, sampler_start),
 * take any number of ticks beside whatever other images are there, each with its own scheduler row,
 * timestep, guidance and texts, and leave (sampler_finish, sampler_leave), which frees their rows
 * for others. The latents of an image depend only on its own generator, texts and plan, not on the
 * images it shares calls with (the kernels' row contract). */
#ifndef ENGINE_DRAWING_SAMPLER_H
#define ENGINE_DRAWING_SAMPLER_H

#include "base/limits.h"
#include "engine/resolve/source.h"
#include "engine/scheduler/brownian.h"
#include "engine/scheduler/scheduler.h"
#include "kernels/random/noise.h"
#include "models/unet.h"

struct sampler;

/* Number of evaluations whose timesteps are encoded together. The layers' weights are read that
 * many times less often, and the first evaluation waits for all of them. */
#define SAMPLER_TIME_LINES 16

/* Members not mentioned are zero. All pointers are borrowed until the image has left. */
struct image {
    const struct scheduler_plan *plan;
    struct noise_generator generator; /* draws its initial noise, then that of its steps */
    struct brownian *brownian;        /* for a plan that draws Brownian noise, else NULL */
    const float *init_latents;        /* [c][height][width] to start from, or NULL */
    const float *moments; /* of the request's pictures (engine/resolve/source.h), or NULL */
    const struct image_start *start; /* during sampler_start: made from the pictures; or NULL */
    bool keeps; /* after each step, restore the part of the picture that the mask keeps */
    const struct row_overlay *overlay; /* of the UNet's weights, for all its rows; NULL: none */
    bool guided;
    double guidance_scale, guidance_rescale; /* if guided; rescale 0: off */
    int text_tokens[2]; /* tokens of the text without guidance (if guided), and of the prompt */
    /* [c][height][width], host: the next tick writes here what the image would be if the model's
     * output were right; NULL: no preview is wanted. */
    float *preview;
    enum prediction_type prediction; /* what the model's output is */
    float *latents;          /* [c][height][width], host: the result, and scratch until then */
    struct sampler *sampler; /* holds its rows, from sampler_place on; NULL before and after */
    int row;                 /* its row of the sampler's terms */
    int evaluations;         /* evaluations it has taken */
    bool is_finite;          /* after sampler_finish: whether the latents are */
};

static inline bool image_is_done(const struct image *image) {
    return image->evaluations == image->plan->count;
}

/* Rows of a UNet call: one unconditional row if guided, and one with the prompt. */
static inline int image_rows(const struct image *image) {
    return image->guided ? 2 : 1;
}

struct sampler_size {
    int64_t height, width; /* of the latents */
    int images;            /* at once: 1..SAMPLER_MAX_IMAGES */
    int call_images;       /* in one UNet call: 1..UNET_CALL_MAX_IMAGES */
    int tokens;            /* of the longest text */
};

/* Lives in the arena. The struct itself is embedded, and invalid once the arena is released to
 * before sampler_init. */
struct sampler {
    const struct unet *unet; /* borrowed */
    struct sampler_size size;
    bool row_taken[SAMPLER_MAX_IMAGES];
    /* Rows of images: f32 [images][height][width][channels]. Of the terms only the sample and the
     * slots keep their values from one tick to the next. */
    struct tensor terms[TERM_COUNT];
    /* Rows of images that inpaint. A UNet of 4 channels needs the picture's latents, the noise
     * added to them, and the mask (one channel); one of 9 channels needs only `shown`: the mask and
     * the masked picture that it sees beside the sample. */
    struct tensor init, init_noise, mask, shown;
    /* [2 images][tokens][...]: without guidance, and with the prompt. Undefined after the end of
     * each text. */
    struct tensor text_kv;
    /* [images * SAMPLER_TIME_LINES][...]: what the timesteps of each image's next evaluations add,
     * computed with its own adapters. `timesteps`: f32, those being encoded. */
    struct tensor time_table, timesteps;
    int time_first[SAMPLER_MAX_IMAGES]; /* evaluation of the first line of each image, -1: none */
    /* For one call, image by image in the order of the tick. `input`, `predicted`, `kv`, `lengths`
     * (i32, of the texts) and `time_ids` (into time_table) have one row per row of the UNet call,
     * unconditional rows first. */
    struct tensor input, predicted, kv, lengths, time_ids;
    struct tensor scaled; /* input without what is shown beside it; only if that is something */
    struct tensor difference, guided; /* of guidance: conditional - unconditional, and its output */
    struct tensor noise, drawn;       /* drawn: in torch's order, [images][channels][h][w] */
    int kv_texts[2 * UNET_CALL_MAX_IMAGES]; /* row of text_kv that each row of kv holds, or -1 */
};

/* On failure every function that takes a `struct compute` sets c->error; once it is set, they do
 * nothing. */
void sampler_init(
    struct compute *c, struct sampler *s, const struct unet *unet, const struct sampler_size *size);

/* Takes over all rows of `from`, which has the same latent size and no larger limits. The caller
 * updates the images' own pointers. */
void sampler_move(struct compute *c, struct sampler *s, const struct sampler *from);

/* Gives the image rows; false if all are taken. */
bool sampler_place(struct sampler *s, struct image *image);
/* Frees the image's rows, at any step. */
void sampler_leave(struct image *image);

/* Sets one of the image's texts, [1][its text_tokens][cross_attention_dim]: the prompt, or the one
 * without guidance. */
void sampler_encode_text(struct compute *c, struct sampler *s, struct image *image, bool prompt,
    const struct tensor *context);
/* Copies the texts of another image in this sampler that has the same ones. */
void sampler_copy_texts(
    struct compute *c, struct sampler *s, struct image *image, const struct image *like);

/* Gives images that have rows their initial noise, or the start made from their pictures. */
void sampler_start(struct compute *c, struct sampler *s, struct image *const *images, int count);

/* Makes one UNet call for all of the images, which must be started and not done, and applies the
 * evaluation's updates. A dry run touches no generator. */
void sampler_tick(struct compute *c, struct sampler *s, struct image *const *images, int count);

/* Copies the latents of images that are done to the host, and sets is_finite. */
void sampler_finish(struct compute *c, struct sampler *s, struct image *const *images, int count);

#endif
