/* The VAE's attention over all pixels of an image:
 *
 *   x += to_out(attention(group_norm(x))), with biases everywhere.
 *
 * A VAE has one head as wide as the image has channels; diffusers' unconditional UNets have more
 * heads.
 */
#ifndef MODELS_IMAGE_ATTENTION_H
#define MODELS_IMAGE_ATTENTION_H

#include "models/layers.h"

struct image_attention {
    int64_t channels;
    int heads, groups;
    float eps;
    struct norm group_norm;
    struct packed *qkv, *to_out;
};

struct image_attention_shape {
    int64_t channels;
    int heads, groups;
    float eps;
};

bool image_attention_load(const struct weights *w, const char *prefix,
    const struct image_attention_shape *shape, struct image_attention *out, struct error *err)
    __attribute__((warn_unused_result));
void image_attention_finish(struct image_attention *attention);

/* x [n][h][w][channels], in place. */
void image_attention_forward(
    const struct image_attention *attention, struct compute *c, struct tensor *x);

#endif
