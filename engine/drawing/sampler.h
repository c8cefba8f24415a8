/* Takes images from noise to latents, one UNet call at a time.
 *
 * A sampler is the memory for images of one latent size. Each image has one row of terms, and rows
 * of encoded context for its texts: the one without guidance, and the parts of its prompt. Most
 * prompts have one part; several are drawn together (Liu et al., 2022, "Compositional Visual
 * Generation with Composable Diffusion Models"). Images join (sampler_place, sampler_encode_text,
 * sampler_start) and take part in any number of ticks (one UNet call each) together with other
 * images. Each image has its own scheduler row, timestep, guidance and texts. When it leaves
 * (sampler_finish, sampler_leave), its rows are free for others. The latents of an image depend
 * only on its own generator, texts and plan, not on the images it shares calls with (the kernels'
 * row contract). */
#ifndef ENGINE_DRAWING_SAMPLER_H
#define ENGINE_DRAWING_SAMPLER_H

#include "base/limits.h"
#include "engine/resolve/source.h"
#include "engine/scheduler/brownian.h"
#include "engine/scheduler/scheduler.h"
#include "kernels/random/noise.h"
#include "models/unet.h"

struct sampler;

/* Number of evaluations whose timesteps are encoded together. A larger number reads the layers'
 * weights less often, but the first evaluation waits until all are encoded. */
#define SAMPLER_TIME_LINES 16

/* The texts of an image: the one without guidance, and the parts of its prompt. */
#define IMAGE_TEXTS_MAX (1 + PROMPT_PARTS_MAX)

/* Members that the caller does not need are zero. All pointers are borrowed until the image has
 * left. */
struct image {
    const struct scheduler_plan *plan;
    struct noise_generator generator; /* draws the initial noise, then that of the steps */
    struct brownian *brownian;        /* if the plan draws Brownian noise, else NULL */
    const float *init_latents; /* initial noise, [c][height][width]; NULL: the generator draws it */
    const float *moments;      /* of the encoded pictures (engine/resolve/source.h), or NULL */
    const struct image_start *start; /* made from the pictures; only set during sampler_start */
    bool keeps; /* each step restores the part of the picture that the mask keeps */
    const struct row_overlay *overlay;       /* of the UNet, for all its rows; NULL: none */
    bool guided;                             /* always if plan->must_guide */
    double guidance_scale, guidance_rescale; /* if guided; rescale 0: off */
    int parts;                               /* of the prompt; 1 if not guided */
    double part_weights[PROMPT_PARTS_MAX];   /* [parts], if guided: factors for guidance_scale */
    /* The number of tokens of each text. text_variants is for the image's owner: which variant of
     * the text is encoded; -1: none. The first text is the one without guidance (if guided), then
     * come the parts. */
    int text_tokens[IMAGE_TEXTS_MAX], text_variants[IMAGE_TEXTS_MAX];
    /* [c][height][width], host. The next tick writes here its prediction of the final latents.
     * NULL: no preview is wanted. */
    float *preview;
    enum prediction_type prediction; /* meaning of the model's output */
    float *latents;                  /* [c][height][width], host: scratch, then the result */
    struct sampler *sampler; /* owns its rows, from sampler_place to sampler_leave; or NULL */
    int row;                 /* its row in sampler.terms */
    int evaluations;         /* number of evaluations done */
    bool is_finite;          /* from sampler_finish: the latents are finite */
};

static inline bool image_is_done(const struct image *image) {
    return image->evaluations == image->plan->count;
}

/* Returns the rows that the image takes in a UNet call: an unconditional row if guided, and a row
 * for each part of the prompt. */
static inline int image_rows(const struct image *image) {
    return image->guided + image->parts;
}

struct sampler_size {
    int64_t height, width; /* of the latents */
    int images;            /* with rows at once: 1..SAMPLER_MAX_IMAGES */
    int call_images;       /* in one UNet call: 1..UNET_CALL_MAX_IMAGES */
    int call_rows;         /* of one UNet call: 1..UNET_CALL_MAX_ROWS */
    int parts;             /* most parts of a prompt: 1..PROMPT_PARTS_MAX */
    int tokens;            /* of the longest text */
};

/* The struct is embedded by its user; its tensors are in the arena. It is invalid once the arena is
 * released to a mark from before sampler_init. */
struct sampler {
    const struct unet *unet; /* borrowed */
    struct sampler_size size;
    bool row_taken[SAMPLER_MAX_IMAGES];
    /* f32 [images][height][width][channels]: one row per image. Only the sample and the slots keep
     * their values from one tick to the next. */
    struct tensor terms[TERM_COUNT];
    /* One row per image, for inpainting. With a UNet of 4 input channels: the picture's latents,
     * the noise added to them, and the mask (one channel). With one of 9 channels: only `shown`,
     * the mask and the masked picture that follow the sample in the input. */
    struct tensor init, init_noise, mask, shown;
    /* [images * (1 + parts)][tokens][...]: for each image the text without guidance, then the parts
     * of its prompt. Values after the end of a text are undefined. */
    struct tensor text_kv;
    /* time_table: [images * SAMPLER_TIME_LINES][...], the terms that the timesteps of each image's
     * next evaluations add, computed with the image's adapters. timesteps: f32, those being
     * encoded. */
    struct tensor time_table, timesteps;
    int time_first[SAMPLER_MAX_IMAGES]; /* evaluation of each image's first line; -1: none */
    /* The tensors of one UNet call, in the order of the tick's images. `input`, `predicted`, `kv`,
     * `lengths` (i32, of the texts) and `time_ids` (into time_table) have one row per row of the
     * call, unconditional rows first; the parts of an image are neighbours. */
    struct tensor input, predicted, kv, lengths, time_ids;
    struct tensor scaled;             /* divided samples, if the UNet also takes `shown` */
    struct tensor difference, guided; /* conditional - unconditional; guidance's output */
    struct tensor noise, drawn;       /* drawn: in torch's order, [images][channels][h][w] */
    int kv_texts[UNET_CALL_MAX_ROWS]; /* row of text_kv in each row of kv, or -1 */
};

/* Every function that takes a `struct compute` sets c->error on failure, and does nothing if it is
 * already set. */
void sampler_init(
    struct compute *c, struct sampler *s, const struct unet *unet, const struct sampler_size *size);

/* Copies all rows of `from`, which has the same latent size and no larger limits. The caller
 * updates the pointers in the images. */
void sampler_move(struct compute *c, struct sampler *s, const struct sampler *from);

/* Gives the image its rows. Returns false if all rows are taken. */
bool sampler_place(struct sampler *s, struct image *image);
/* Frees the image's rows. May be called at any step. */
void sampler_leave(struct image *image);

/* Encodes text number `text` of the image (see text_tokens), [1][its text_tokens]
 * [cross_attention_dim]. May be called again before any tick, for another text of this length. */
void sampler_encode_text(struct compute *c, struct sampler *s, struct image *image, int text,
    const struct tensor *context);
/* Copies the encoded text from `like`, an image in this sampler with the same text there. */
void sampler_copy_text(
    struct compute *c, struct sampler *s, struct image *image, int text, const struct image *like);

/* Gives the images their initial noise, or the start made from their pictures. Call it after
 * sampler_place. */
void sampler_start(struct compute *c, struct sampler *s, struct image *const *images, int count);

/* Makes one UNet call for all of the images and applies the updates of this evaluation. The images
 * must be started and not done. A dry run leaves the generators unchanged. */
void sampler_tick(struct compute *c, struct sampler *s, struct image *const *images, int count);

/* Copies the latents of finished images to the host, and sets is_finite. */
void sampler_finish(struct compute *c, struct sampler *s, struct image *const *images, int count);

#endif
