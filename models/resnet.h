/* ResnetBlock2D, the convolutional half of UNet and VAE:
 *
 *   h = conv1(silu(norm1(x))) + time_emb_proj(silu(temb))
 *   y = conv2(silu(norm2(h))) + (conv_shortcut(x) if the channels differ, else x)
 *
 * time_emb_proj does not depend on x. The UNet computes it for all blocks as one layer, and each
 * block finds its own part in that tensor.
 */
#ifndef MODELS_RESNET_H
#define MODELS_RESNET_H

#include "models/layers.h"

struct resnet {
    int64_t c_in, c_out;
    int groups;
    float eps;
    int64_t time_offset; /* index of this block's channels in time_add */
    struct norm norm1, norm2;
    struct packed *conv1, *conv2;
    struct packed *conv_shortcut; /* NULL if c_in == c_out */
};

struct resnet_shape {
    int64_t c_in, c_out;
    int groups;
    float eps;
    /* The number of channels before this block's in time_add. */
    int64_t time_offset;
};

/* Loads all layers except time_emb_proj. */
bool resnet_load(const struct weights *w, const char *prefix, const struct resnet_shape *shape,
    struct resnet *out, struct error *err) __attribute__((warn_unused_result));
void resnet_finish(struct resnet *resnet);

/* Describes the layer that resnet_load leaves out, [c_out][temb_channels], with bias. */
bool resnet_time_part(const char *prefix, int64_t c_out, struct linear_part *part,
    struct error *err) __attribute__((warn_unused_result));

/* Whether a resnet may overwrite its input. */
enum resnet_input {
    RESNET_KEEP_INPUT,
    RESNET_OVERWRITE_INPUT, /* x is not read afterwards, which saves a copy */
};

/* x [n][h][w][c_in], y [n][h][w][c_out]; y may be x if there is no shortcut. time_add [n][...]:
 * every block's time_emb_proj(silu(temb)), or NULL in a VAE. */
void resnet_forward(const struct resnet *resnet, struct compute *c, struct tensor *x,
    enum resnet_input input, const struct tensor *time_add, struct tensor *y);

/* Does what resnet_forward does, for an input in two tensors, [n][h][w][...] each, which together
 * have c_in channels. y may be one of them. */
void resnet_forward_joined(const struct resnet *resnet, struct compute *c, const struct tensor *a,
    const struct tensor *b, const struct tensor *time_add, struct tensor *y);

#endif
