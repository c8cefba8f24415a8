/* Pictures and captions in the form that a training step reads. For a picture: the mean and the
 * log-variance of the VAE's posterior, which each step samples anew. For a caption: the text
 * encoder's output, or the token ids if the text encoder is trained.
 *
 * Each result is computed once and kept on disk (train/examples/cache.h). The name of its file is
 * derived from everything that the result depends on: the picture's bytes, its size, crop and flip,
 * its mask, the text's tokens, the models' weights and the code that computes. Host memory holds
 * one picture. Pictures that are cropped anew each time, or masked at random, are encoded each time
 * and not kept, and so are shuffled captions.
 *
 * Only the thread that computes may call these functions. */
#ifndef TRAIN_EXAMPLES_ENCODED_H
#define TRAIN_EXAMPLES_ENCODED_H

#include "models/text_encoder.h"
#include "models/tokenizer/tokenizer.h"
#include "models/vae.h"
#include "train/data/mask.h"
#include "train/examples/shuffle.h"
#include "train/examples/source.h"

enum encoded_masks {
    ENCODED_MASKS_NONE,
    ENCODED_MASKS_DRAWN, /* drawn anew in each use */
    ENCODED_MASKS_FILES, /* from the source's files */
};

struct encoded_options {
    const struct kernels *kernels;
    const struct vae *vae; /* must have its encoder */
    const struct text_encoder *text_encoder;
    const struct tokenizer *tokenizer;
    struct digest vae_weights, text_encoder_weights; /* of the bytes in the file and the dtype */
    const struct train_source *source;
    const char *cache; /* path of a folder; created when needed */
    enum encoded_masks masks;
    bool flipped;     /* mirror images too, except of held-out pictures */
    bool ids_only;    /* captions as token ids, to train the text encoder */
    bool center_crop; /* larger pictures: crop to the middle; false: to a random part */
    bool cut_once;    /* draw the random part once per picture, from `seed` */
    uint64_t seed;
    /* Ranks that fill one cache together: which of them this is, and their number; 0 stands for
     * 1. */
    int rank, world;
    const struct shuffle_options *shuffle; /* of the captions to train on; NULL: they are not */
    /* Loads the models' weights again. They may be dropped when everything is in the cache, and are
     * needed again if entries disappear. NULL: they are never dropped. */
    bool (*load_models)(void *user, struct error *err);
    void *user;
};

struct encoded;

/* Encodes nothing yet. Everything in the options is borrowed until encoded_destroy. If pictures
 * must be encoded in each use, takes the device memory for that. */
bool encoded_create(const struct encoded_options *options, struct encoded **out, struct error *err)
    __attribute__((warn_unused_result));
void encoded_destroy(struct encoded *encoded); /* NULL is fine */

struct encoded_memory {
    size_t host;
    size_t device; /* taken while the job runs */
    uint64_t disk; /* size of the cache, with entries of earlier jobs */
};
struct encoded_memory encoded_get_memory(const struct encoded *encoded);
/* Return whether a model is still needed: to fill the cache, or to encode pictures, or shuffled
 * captions, in each use. */
bool encoded_uses_vae(const struct encoded *encoded);
bool encoded_uses_text_encoder(const struct encoded *encoded);

/* Does one piece of filling the cache; *done is set when nothing is missing. After that a model is
 * not used, unless something is encoded with it in each use. If entries disappear from the cache
 * later, load_models is called and they are encoded again. The other functions may be
 * called before *done. */
bool encoded_advance(struct encoded *encoded, bool *done, struct error *err)
    __attribute__((warn_unused_result));
/* With several ranks encoded_advance first fills a share of the cache only, another one on each
 * rank. When all ranks are done with their shares, call this: encoded_advance then goes through the
 * whole cache and encodes what is not there. Returns false if it has done so already. */
bool encoded_begin_rest(struct encoded *encoded);

/* encoded_is_cut_anew returns whether a picture's crop is drawn in each use. If it is not,
 * encoded_crop returns the crop. Held-out pictures always use the middle. */
bool encoded_is_cut_anew(const struct encoded *encoded, int64_t item);
struct crop encoded_crop(const struct encoded *encoded, int64_t item);

/* Returns whether encoded_expect is useful now: pictures are encoded in each use, and none is being
 * decoded ahead (train/examples/source.h). */
bool encoded_waits_for_pixels(const struct encoded *encoded);
/* Announces that a picture will be asked for. `masked`: the masked picture, with a mask that is
 * `drawn` or the source's. Returns false if no more pictures need to be announced now. */
bool encoded_expect(
    const struct encoded *encoded, int64_t item, const struct crop *crop, bool masked, bool drawn);

/* In latents. */
struct encoded_size {
    int64_t height, width;
};
struct encoded_size encoded_size(const struct encoded *encoded, int64_t item);

/* Returns mean and log-variance, f32 [height][width][channels] each. */
bool encoded_picture(struct encoded *encoded, int64_t item, const struct crop *crop, float *mean,
    float *log_variance, struct error *err) __attribute__((warn_unused_result));
/* Does what encoded_picture does, for the picture with its masked part in grey, and returns the
 * mask, [height][width]. `shape` is the drawn mask (ENCODED_MASKS_DRAWN), in pixels of the crop. */
bool encoded_masked_picture(struct encoded *encoded, int64_t item, const struct crop *crop,
    const struct mask_shape *shape, float *mean, float *log_variance, float *mask,
    struct error *err) __attribute__((warn_unused_result));

/* Return caption number `which`, or the empty caption: [tokens][hidden_size] in the text encoder's
 * activation dtype, or i32 [tokens]. `key`: the caption is shuffled with this key; NULL: as it
 * is. */
bool encoded_caption(struct encoded *encoded, int64_t item, int which, const uint64_t *key,
    void *out, struct error *err) __attribute__((warn_unused_result));
bool encoded_no_caption(struct encoded *encoded, void *out, struct error *err)
    __attribute__((warn_unused_result));
size_t encoded_caption_bytes(const struct encoded *encoded);

#endif
