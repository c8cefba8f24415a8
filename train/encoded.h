/* Pictures and captions as a training step reads them, each computed once: the mean and the
 * logarithm of the variance of the VAE's posterior, of which a step samples afresh, and the text
 * encoder's output, or, where that is trained, the token ids. Mirrored pictures are encoded apart.
 *
 * In host memory: 16 bytes for each latent channel and pixel of a picture with its mirror image,
 * and a text encoder's output for each different caption. One thread at a time, the one that
 * computes. */
#ifndef TRAIN_ENCODED_H
#define TRAIN_ENCODED_H

#include "models/text_encoder.h"
#include "models/tokenizer/tokenizer.h"
#include "models/vae.h"
#include "train/source.h"

struct encoded_options {
    const struct kernels *kernels;
    const struct vae *vae; /* with its encoder */
    const struct text_encoder *text_encoder;
    const struct tokenizer *tokenizer;
    const struct train_source *source;
    bool mirrored; /* mirror images too */
    bool ids_only; /* of captions: the text encoder is trained */
    /* Where a picture has more than its size: a part that is drawn for it, once; else the middle.
     */
    bool random_crop;
    uint64_t seed; /* of that */
};

struct encoded;

/* Everything is borrowed as long as it. Nothing is encoded yet. */
bool encoded_create(const struct encoded_options *options, struct encoded **out, struct error *err)
    __attribute__((warn_unused_result));
void encoded_destroy(struct encoded *encoded); /* NULL is fine */
/* What all of it will take of the host's memory. */
size_t encoded_bytes(const struct encoded *encoded);

/* Encodes one more picture or caption; *done when there are none left. Gives the device's memory
 * back when it is done. */
bool encoded_advance(struct encoded *encoded, bool *done, struct error *err)
    __attribute__((warn_unused_result));

/* Once that is done; f32 [height][width][channels], latents. */
struct encoded_picture {
    int64_t height, width;
    const float *mean, *log_variance;
};
struct encoded_picture encoded_picture(const struct encoded *encoded, int64_t item, bool mirrored);

/* [tokens][hidden_size] in the text encoder's activation dtype, or i32 [tokens]. */
const void *encoded_caption(const struct encoded *encoded, int64_t item, int which);
const void *encoded_no_caption(const struct encoded *encoded); /* of the empty text */
size_t encoded_caption_bytes(const struct encoded *encoded);

#endif
