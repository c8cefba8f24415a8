/* One forward and backward of a UNet over a batch, in short steps: what a training step does on the
 * device, but for the optimizer.
 *
 *   prediction = unet(noisy, timesteps, context)
 *   loss[row] = mean over the row of (prediction - target)^2
 *   gradients += d (sum over rows of weights[row] loss[row]) / d parameters
 *
 * with `context` the encoded texts, or their token ids where the text encoder is trained too. A
 * pass is planned for one size of batch, pictures and texts; other sizes are other passes.
 *
 * One thread at a time, the one that computes. */
#ifndef TRAIN_PASS_H
#define TRAIN_PASS_H

#include "kernels/tape.h"
#include "models/text_encoder.h"
#include "models/unet.h"

#define TRAIN_PASS_ROWS_MAX 256

struct pass_options {
    const struct kernels *kernels;
    const struct unet *unet;
    const struct text_encoder *text_encoder; /* NULL: texts come encoded */
    const struct row_overlay *overlay;       /* the factors that are trained; NULL: none are */
    const struct tape_parameter *parameters; /* borrowed for the call */
    int parameter_count;
    int64_t rows, height, width; /* of the latents */
    int64_t tokens;              /* of each text */
    bool checkpointing;
};

struct pass;

/* Everything behind the options' pointers, but for `parameters`, is borrowed as long as the pass.
 * ERROR_NO_MEMORY names what it takes. */
bool pass_create(const struct pass_options *options, struct pass **out, struct error *err)
    __attribute__((warn_unused_result));
void pass_destroy(struct pass *pass); /* NULL is fine */
/* What pass_create would take of the device, without taking any of it. */
bool pass_measure(const struct pass_options *options, size_t *bytes, struct error *err)
    __attribute__((warn_unused_result));
size_t pass_bytes(const struct pass *pass);

/* Host memory, borrowed until pass_begin returns. */
struct pass_batch {
    const float *noisy;       /* [rows][height][width][in_channels] */
    const float *target;      /* [rows][height][width][out_channels] */
    const int32_t *timesteps; /* [rows] */
    /* [rows][tokens][cross_attention_dim] in the UNet's activation dtype, or i32 [rows][tokens] */
    const void *context;
    const float *weights; /* [rows]: of each row's loss in the sum, scales of all kinds included */
};
bool pass_begin(struct pass *pass, const struct pass_batch *batch, struct error *err)
    __attribute__((warn_unused_result));
/* A short piece of it. *done: the gradients have been added, and losses[rows] are written. */
bool pass_advance(struct pass *pass, bool *done, float *losses, struct error *err)
    __attribute__((warn_unused_result));
/* The losses alone, without a backward: instead of pass_advance. */
bool pass_advance_forward(struct pass *pass, bool *done, float *losses, struct error *err)
    __attribute__((warn_unused_result));

#endif
