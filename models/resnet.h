/* ResnetBlock2D, the convolutional half of UNet and VAE:
 *
 *   h = conv1(silu(norm1(x))) + time_emb_proj(silu(temb))
 *   y = conv2(silu(norm2(h))) + (conv_shortcut(x) if the channels differ, else x)
 */
#ifndef MODELS_RESNET_H
#define MODELS_RESNET_H

#include "models/layers.h"

struct resnet {
    int64_t c_in, c_out;
    int groups;
    float eps;
    struct norm norm1, norm2;
    struct packed *conv1, *conv2;
    struct packed *time_emb_proj; /* NULL in a VAE */
    struct packed *conv_shortcut; /* NULL if c_in == c_out */
};

struct resnet_shape {
    int64_t c_in, c_out;
    int64_t temb_channels; /* 0: no time embedding */
    int groups;
    float eps;
};

bool resnet_load(const struct weights *w, const char *prefix, const struct resnet_shape *shape,
    struct resnet *out, struct error *err) __attribute__((warn_unused_result));
void resnet_finish(struct resnet *resnet);

/* What may become of the input. */
enum resnet_input {
    RESNET_KEEP_INPUT,
    RESNET_OVERWRITE_INPUT, /* nobody reads x afterwards: saves a copy of it */
};

/* x [n][h][w][c_in], y [n][h][w][c_out]; y may be x if there is no shortcut. silu_temb is
 * silu(temb) [n][temb_channels], the same for every block and so computed once, or NULL. */
void resnet_forward(const struct resnet *resnet, struct compute *c, struct tensor *x,
    enum resnet_input input, const struct tensor *silu_temb, struct tensor *y);

#endif
