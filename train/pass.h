/* One forward and backward pass of a UNet over a batch, in short pieces: the device work of a
 * training step, without the optimizer.
 *
 *   prediction = unet(noisy, timesteps, context)
 *   loss[row] = mean over the row of (prediction - target)^2
 *   gradients += d (sum over rows of weights[row] loss[row]) / d parameters
 *
 * `context` is the encoded texts, or their token ids if the text encoder is trained too. A pass is
 * planned for one batch size, picture size and text length; other sizes need other passes.
 *
 * Only the thread that computes may call these functions. */
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
    const struct row_overlay *overlay;       /* the trained factors; NULL: none */
    const struct tape_parameter *parameters; /* borrowed for the call */
    int parameter_count;
    int64_t rows, height, width; /* size of the latents */
    int64_t tokens;              /* length of each text */
    bool checkpointing;
};

struct pass;

/* Everything that the options point to, except `parameters`, is borrowed until pass_destroy.
 * ERROR_NO_MEMORY says how much memory the pass takes. */
bool pass_create(const struct pass_options *options, struct pass **out, struct error *err)
    __attribute__((warn_unused_result));
void pass_destroy(struct pass *pass); /* NULL is fine */
size_t pass_bytes(const struct pass *pass);

/* The input of a pass, in host memory; borrowed until pass_begin returns. */
struct pass_batch {
    const float *noisy;       /* [rows][height][width][in_channels] */
    const float *target;      /* [rows][height][width][out_channels] */
    const int32_t *timesteps; /* [rows] */
    /* [rows][tokens][cross_attention_dim] in the UNet's activation dtype, or i32 [rows][tokens] */
    const void *context;
    const float *weights; /* [rows]: each row's factor in the sum, times the loss scale /
    gradient_accumulation_steps */
};
bool pass_begin(struct pass *pass, const struct pass_batch *batch, struct error *err)
    __attribute__((warn_unused_result));
/* Does a short piece of work. *done: the gradients have been added, and losses[rows] are set. */
bool pass_advance(struct pass *pass, bool *done, float *losses, struct error *err)
    __attribute__((warn_unused_result));
/* Computes only the losses, without a backward pass. Call it instead of pass_advance. */
bool pass_advance_forward(struct pass *pass, bool *done, float *losses, struct error *err)
    __attribute__((warn_unused_result));

#endif
