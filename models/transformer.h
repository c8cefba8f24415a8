/* Transformer2DModel with one BasicTransformerBlock: here the UNet attends to the whole image and
 * to the prompt.
 *
 *   s = proj_in(group_norm(x))                as tokens [n][h*w][c]
 *   s += to_out(attention(norm1(s)))          self-attention
 *   s += to_out(attention(norm2(s), context)) cross-attention
 *   s += ff2(geglu(ff0(norm3(s))))
 *   x += proj_out(s)
 *
 * The keys and values of the context depend on the prompt only. The UNet computes them once for all
 * blocks (unet_encode_context), and each block finds its own part in that tensor.
 */
#ifndef MODELS_TRANSFORMER_H
#define MODELS_TRANSFORMER_H

#include "models/layers.h"

struct transformer {
    int64_t channels;
    int heads;
    int groups;
    int64_t k_offset, v_offset; /* of this block's part in the context's keys, values */
    struct norm norm;
    struct packed *proj_in, *proj_out;
    struct norm norm1, norm2, norm3;
    struct packed *self_qkv, *self_out;
    struct packed *cross_q, *cross_out;
    struct packed *ff_in, *ff_out;
};

struct transformer_shape {
    int64_t channels;
    int heads;
    int groups;
    /* The number of channels before this block's in the context's keys and values. */
    int64_t context_offset;
};

/* Loads all layers except to_k and to_v of the cross-attention. */
bool transformer_load(const struct weights *w, const char *prefix,
    const struct transformer_shape *shape, struct transformer *out, struct error *err)
    __attribute__((warn_unused_result));
void transformer_finish(struct transformer *transformer);

/* Describes the two layers that transformer_load leaves out: [channels][cross_attention_dim] each,
 * without bias. */
bool transformer_context_parts(const char *prefix, int64_t channels, struct linear_part parts[2],
    struct error *err) __attribute__((warn_unused_result));

/* The context of the cross-attentions: kv [n][t][...], and lengths i32 [n], the number of tokens in
 * each row; NULL if every row has t. */
struct transformer_context {
    const struct tensor *kv, *lengths;
};

/* x [n][h][w][channels], in place. */
void transformer_forward(const struct transformer *transformer, struct compute *c, struct tensor *x,
    const struct transformer_context *context);

/* The parts of transformer_forward, in order. `s` is the token tensor [n][h*w][channels]. */
void transformer_enter(
    const struct transformer *t, struct compute *c, const struct tensor *x, struct tensor *s);
void transformer_self_attention(const struct transformer *t, struct compute *c, struct tensor *s);
void transformer_cross_attention(const struct transformer *t, struct compute *c, struct tensor *s,
    const struct transformer_context *context);
void transformer_feed_forward(const struct transformer *t, struct compute *c, struct tensor *s);
void transformer_leave(
    const struct transformer *t, struct compute *c, const struct tensor *s, struct tensor *x);

#endif
