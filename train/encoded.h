/* Pictures and captions as a training step reads them: the mean and the logarithm of the variance
 * of the VAE's posterior, of which a step samples afresh, and the text encoder's output, or, where
 * that is trained, the token ids.
 *
 * Each is computed once and kept on disk (train/cache.h) by what it follows from: the picture's
 * bytes, its size, crop and side, the mask beside it, the text's tokens, the models' weights and
 * what computes with them. Host memory holds one picture. What is cut anew each time, or masked at
 * random, is encoded each time and kept nowhere.
 *
 * One thread at a time, the one that computes. */
#ifndef TRAIN_ENCODED_H
#define TRAIN_ENCODED_H

#include "models/text_encoder.h"
#include "models/tokenizer/tokenizer.h"
#include "models/vae.h"
#include "train/data/mask.h"
#include "train/source.h"

enum encoded_masks {
    ENCODED_MASKS_NONE,
    ENCODED_MASKS_DRAWN, /* each time */
    ENCODED_MASKS_FILES, /* the source's */
};

struct encoded_options {
    const struct kernels *kernels;
    const struct vae *vae; /* with its encoder */
    const struct text_encoder *text_encoder;
    const struct tokenizer *tokenizer;
    struct digest vae_weights, text_encoder_weights; /* as they lie in the file, and their dtype */
    const struct train_source *source;
    const char *cache; /* a folder, made when it is needed */
    enum encoded_masks masks;
    bool flipped;     /* mirror images too, but of held-out pictures */
    bool ids_only;    /* of captions: the text encoder is trained */
    bool center_crop; /* pictures that have more than their size give their middle; else a part: */
    bool cut_once;    /* drawn once for each, by `seed`; else each time */
    uint64_t seed;
    /* Brings the models' weights back, which may have been dropped once everything was in the
     * cache, and some of that is gone. NULL: they are never dropped. */
    bool (*load_models)(void *user, struct error *err);
    void *user;
};

struct encoded;

/* Everything is borrowed as long as it. Nothing is encoded yet; where pictures will be encoded each
 * time, the device's memory for that is taken. */
bool encoded_create(const struct encoded_options *options, struct encoded **out, struct error *err)
    __attribute__((warn_unused_result));
void encoded_destroy(struct encoded *encoded); /* NULL is fine */

struct encoded_memory {
    size_t host;
    size_t device; /* that stays taken while the job runs */
    uint64_t disk; /* of the cache; what others have there already is counted too */
};
struct encoded_memory encoded_get_memory(const struct encoded *encoded);
/* Whether there is still something to be encoded, in the cache's stead or each time. */
bool encoded_uses_models(const struct encoded *encoded);

/* A piece of filling the cache: *done when nothing is missing. Unless there is something to be
 * encoded each time, the models are not used any more then. What vanishes from the cache afterwards
 * is encoded again, after load_models. What else is called needs not wait for that. */
bool encoded_advance(struct encoded *encoded, bool *done, struct error *err)
    __attribute__((warn_unused_result));

/* Whether the crop is drawn each time, and how it is cut otherwise; held-out pictures always give
 * their middle. */
bool encoded_is_cut_anew(const struct encoded *encoded, int64_t item);
struct crop encoded_crop(const struct encoded *encoded, int64_t item);

/* Whether it helps to say now which pictures come next: they are encoded each time, and none is
 * being decoded ahead (train/source.h). */
bool encoded_waits_for_pixels(const struct encoded *encoded);
/* A picture will be asked for, or with `masked` the same masked, by a `drawn` shape or the source's
 * mask. False: no more needs be said now. */
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
/* The same of the picture with grey where it is masked, and the mask, [height][width]. `shape`:
 * what is drawn with ENCODED_MASKS_DRAWN, in the crop's pixels. */
bool encoded_masked_picture(struct encoded *encoded, int64_t item, const struct crop *crop,
    const struct mask_shape *shape, float *mean, float *log_variance, float *mask,
    struct error *err) __attribute__((warn_unused_result));

/* [tokens][hidden_size] in the text encoder's activation dtype, or i32 [tokens]. */
bool encoded_caption(struct encoded *encoded, int64_t item, int which, void *out, struct error *err)
    __attribute__((warn_unused_result));
bool encoded_no_caption(struct encoded *encoded, void *out, struct error *err)
    __attribute__((warn_unused_result));
size_t encoded_caption_bytes(const struct encoded *encoded);

#endif
