/* Pictures and captions in the form that a training step reads. For a picture: the mean and the
 * log-variance of the VAE's posterior, which each step samples anew. For a caption: the text
 * encoder's output, or the token ids if the text encoder is trained.
 *
 * Each is computed once and kept on disk (train/examples/cache.h). Its name there is derived from
 * everything it depends on: the picture's bytes, its size, crop and flip, its mask, the text's
 * tokens, the models' weights and the code that computes. Host memory holds one picture. Pictures
 * that are cropped anew each time, or masked at random, are encoded each time and not kept.
 *
 * One thread at a time, the one that computes. */
#ifndef TRAIN_EXAMPLES_ENCODED_H
#define TRAIN_EXAMPLES_ENCODED_H

#include "models/text_encoder.h"
#include "models/tokenizer/tokenizer.h"
#include "models/vae.h"
#include "train/data/mask.h"
#include "train/examples/source.h"

enum encoded_masks {
    ENCODED_MASKS_NONE,
    ENCODED_MASKS_DRAWN, /* drawn each time */
    ENCODED_MASKS_FILES, /* from the source's files */
};

struct encoded_options {
    const struct kernels *kernels;
    const struct vae *vae; /* with its encoder */
    const struct text_encoder *text_encoder;
    const struct tokenizer *tokenizer;
    struct digest vae_weights, text_encoder_weights; /* as stored in the file, and their dtype */
    const struct train_source *source;
    const char *cache; /* a folder, made when needed */
    enum encoded_masks masks;
    bool flipped;     /* mirror images too, except of held-out pictures */
    bool ids_only;    /* captions as token ids: the text encoder is trained */
    bool center_crop; /* pictures larger than their size are cropped to the middle; else to a random
                         part */
    bool cut_once;    /* that part is drawn once per picture, from `seed`; else each time */
    uint64_t seed;
    /* Brings back the models' weights, which may have been dropped once everything was in the
     * cache, if some of it is gone. NULL: they are never dropped. */
    bool (*load_models)(void *user, struct error *err);
    void *user;
};

struct encoded;

/* Everything is borrowed until encoded_destroy. Nothing is encoded yet. If pictures will be encoded
 * each time, takes the device memory for that. */
bool encoded_create(const struct encoded_options *options, struct encoded **out, struct error *err)
    __attribute__((warn_unused_result));
void encoded_destroy(struct encoded *encoded); /* NULL is fine */

struct encoded_memory {
    size_t host;
    size_t device; /* taken as long as the job runs */
    uint64_t disk; /* of the cache, including what earlier jobs left there */
};
struct encoded_memory encoded_get_memory(const struct encoded *encoded);
/* Whether anything is still to be encoded, to fill the cache or each time. */
bool encoded_uses_models(const struct encoded *encoded);

/* One piece of filling the cache; *done when nothing is missing. From then on the models are not
 * used, unless something is encoded each time. What disappears from the cache later is encoded
 * again, after load_models. The other functions may be called before this is done. */
bool encoded_advance(struct encoded *encoded, bool *done, struct error *err)
    __attribute__((warn_unused_result));

/* Whether the crop is drawn each time, and the fixed crop otherwise. Held-out pictures always use
 * the middle. */
bool encoded_is_cut_anew(const struct encoded *encoded, int64_t item);
struct crop encoded_crop(const struct encoded *encoded, int64_t item);

/* Whether encoded_expect helps now: pictures are encoded each time, and none is being decoded ahead
 * (train/examples/source.h). */
bool encoded_waits_for_pixels(const struct encoded *encoded);
/* Says that a picture will be asked for; with `masked`, the masked picture, with a `drawn` shape or
 * the source's mask. False: no more need be said now. */
bool encoded_expect(
    const struct encoded *encoded, int64_t item, const struct crop *crop, bool masked, bool drawn);

/* In latents. */
struct encoded_size {
    int64_t height, width;
};
struct encoded_size encoded_size(const struct encoded *encoded, int64_t item);

/* f32 [height][width][channels] each. */
bool encoded_picture(struct encoded *encoded, int64_t item, const struct crop *crop, float *mean,
    float *log_variance, struct error *err) __attribute__((warn_unused_result));
/* The same for the picture with its masked part in grey, and the mask, [height][width]. `shape`:
 * the drawn mask with ENCODED_MASKS_DRAWN, in pixels of the crop. */
bool encoded_masked_picture(struct encoded *encoded, int64_t item, const struct crop *crop,
    const struct mask_shape *shape, float *mean, float *log_variance, float *mask,
    struct error *err) __attribute__((warn_unused_result));

/* Caption number `which`, and the empty caption: [tokens][hidden_size] in the text encoder's
 * activation dtype, or i32 [tokens]. */
bool encoded_caption(struct encoded *encoded, int64_t item, int which, void *out, struct error *err)
    __attribute__((warn_unused_result));
bool encoded_no_caption(struct encoded *encoded, void *out, struct error *err)
    __attribute__((warn_unused_result));
size_t encoded_caption_bytes(const struct encoded *encoded);

#endif
