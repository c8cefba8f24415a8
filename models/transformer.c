#include "models/transformer.h"

#include <math.h>

/* Constant in diffusers, whatever the UNet's norm_eps is. */
static const float group_norm_eps = 1e-6f;
static const float layer_norm_eps = 1e-5f;

static const char *const self_qkv_leaves[3] = {
    "transformer_blocks.0.attn1.to_q",
    "transformer_blocks.0.attn1.to_k",
    "transformer_blocks.0.attn1.to_v",
};

bool transformer_load(const struct weights *w, const char *prefix,
    const struct transformer_shape *shape, struct transformer *out, struct error *err) {
    const int64_t c = shape->channels;
    const struct linear_shape square = { .n = c, .k = c, .bias = true };
    const struct linear_shape query = { .n = c, .k = c };
    const struct linear_shape ff_in = { .n = 8 * c, .k = c, .bias = true, .geglu = true };
    const struct linear_shape ff_out = { .n = c, .k = 4 * c, .bias = true };
    *out = (struct transformer){
        .channels = c,
        .heads = shape->heads,
        .groups = shape->groups,
        .k_offset = shape->context_offset,
        .v_offset = shape->context_offset + c,
    };
    /* proj_in and proj_out are 1x1 convolutions in SD-1.x and linear layers in SD-2.x; on
     * channels-last tokens these are the same. */
    if (norm_load(w, prefix, "norm", c, &out->norm, err) &&
        linear_load(w, prefix, "proj_in", square, &out->proj_in, err) &&
        norm_load(w, prefix, "transformer_blocks.0.norm1", c, &out->norm1, err) &&
        qkv_load(w, prefix, self_qkv_leaves, c, false, &out->self_qkv, err) &&
        linear_load(
            w, prefix, "transformer_blocks.0.attn1.to_out.0", square, &out->self_out, err) &&
        norm_load(w, prefix, "transformer_blocks.0.norm2", c, &out->norm2, err) &&
        linear_load(w, prefix, "transformer_blocks.0.attn2.to_q", query, &out->cross_q, err) &&
        linear_load(
            w, prefix, "transformer_blocks.0.attn2.to_out.0", square, &out->cross_out, err) &&
        norm_load(w, prefix, "transformer_blocks.0.norm3", c, &out->norm3, err) &&
        linear_load(w, prefix, "transformer_blocks.0.ff.net.0.proj", ff_in, &out->ff_in, err) &&
        linear_load(w, prefix, "transformer_blocks.0.ff.net.2", ff_out, &out->ff_out, err) &&
        linear_load(w, prefix, "proj_out", square, &out->proj_out, err))
        return true;
    transformer_finish(out);
    return false;
}

void transformer_finish(struct transformer *transformer) {
    norm_finish(&transformer->norm);
    norm_finish(&transformer->norm1);
    norm_finish(&transformer->norm2);
    norm_finish(&transformer->norm3);
    packed_destroy(transformer->proj_in);
    packed_destroy(transformer->proj_out);
    packed_destroy(transformer->self_qkv);
    packed_destroy(transformer->self_out);
    packed_destroy(transformer->cross_q);
    packed_destroy(transformer->cross_out);
    packed_destroy(transformer->ff_in);
    packed_destroy(transformer->ff_out);
    *transformer = (struct transformer){ 0 };
}

bool transformer_context_parts(
    const char *prefix, int64_t channels, struct linear_part parts[2], struct error *err) {
    parts[0].n = parts[1].n = channels;
    return layer_name(parts[0].name, prefix, "transformer_blocks.0.attn2.to_k", err) &&
           layer_name(parts[1].name, prefix, "transformer_blocks.0.attn2.to_v", err);
}

/* Returns a tensor like the tokens s, but with `channels` channels. */
static struct tensor tokens(struct compute *c, const struct tensor *s, int64_t channels) {
    return compute_tensor_3d(c, s->dtype, s->shape[0], s->shape[1], channels);
}

void transformer_enter(
    const struct transformer *t, struct compute *c, const struct tensor *x, struct tensor *s) {
    const size_t mark = arena_mark(c->arena);
    const int64_t n = x->shape[0], h = x->shape[1], w = x->shape[2];
    struct tensor normed = compute_tensor_4d(c, x->dtype, n, h, w, t->channels);
    op_group_norm(c, &(struct group_norm_args){
                         .x = x,
                         .gamma = &t->norm.gamma,
                         .beta = &t->norm.beta,
                         .groups = t->groups,
                         .eps = group_norm_eps,
                         .y = &normed,
                     });
    const struct tensor normed_tokens = tensor_view_3d(&normed, n, h * w, t->channels);
    layer_linear(c, &normed_tokens, t->proj_in, s);
    arena_release(c->arena, mark);
}

void transformer_self_attention(const struct transformer *t, struct compute *c, struct tensor *s) {
    const size_t mark = arena_mark(c->arena);
    struct tensor normed = tokens(c, s, t->channels); /* later the attention's output */
    layer_layer_norm(c, s, &t->norm1, layer_norm_eps, &normed);
    layer_self_attention(c, t->self_qkv, t->heads, false, &normed);
    layer_linear_add(c, &normed, t->self_out, s);
    arena_release(c->arena, mark);
}

void transformer_cross_attention(const struct transformer *t, struct compute *c, struct tensor *s,
    const struct transformer_context *context) {
    const size_t mark = arena_mark(c->arena);
    const int64_t head_dim = t->channels / t->heads;
    struct tensor normed = tokens(c, s, t->channels); /* later the attention's output */
    struct tensor query = tokens(c, s, t->channels);
    layer_layer_norm(c, s, &t->norm2, layer_norm_eps, &normed);
    layer_linear(c, &normed, t->cross_q, &query);
    op_attention(c, &(struct attention_args){
                        .q = &query,
                        .k = context->kv,
                        .v = context->kv,
                        .k_offset = t->k_offset,
                        .v_offset = t->v_offset,
                        .heads = t->heads,
                        .head_dim = (int)head_dim,
                        .scale = 1.0f / sqrtf((float)head_dim),
                        .y = &normed,
                        .lengths = context->lengths,
                    });
    layer_linear_add(c, &normed, t->cross_out, s);
    arena_release(c->arena, mark);
}

void transformer_feed_forward(const struct transformer *t, struct compute *c, struct tensor *s) {
    const size_t mark = arena_mark(c->arena);
    struct tensor gated = tokens(c, s, 4 * t->channels);
    const size_t normed_mark = arena_mark(c->arena);
    struct tensor normed = tokens(c, s, t->channels);
    layer_layer_norm(c, s, &t->norm3, layer_norm_eps, &normed);
    layer_linear(c, &normed, t->ff_in, &gated);
    arena_release(c->arena, normed_mark);
    layer_linear_add(c, &gated, t->ff_out, s);
    arena_release(c->arena, mark);
}

void transformer_leave(
    const struct transformer *t, struct compute *c, const struct tensor *s, struct tensor *x) {
    struct tensor image = tensor_view_3d(x, s->shape[0], s->shape[1], t->channels);
    layer_linear_add(c, s, t->proj_out, &image);
}

void transformer_forward(const struct transformer *transformer, struct compute *c, struct tensor *x,
    const struct transformer_context *context) {
    const size_t mark = arena_mark(c->arena);
    struct tensor s = compute_tensor_3d(
        c, x->dtype, x->shape[0], x->shape[1] * x->shape[2], transformer->channels);
    transformer_enter(transformer, c, x, &s);
    transformer_self_attention(transformer, c, &s);
    transformer_cross_attention(transformer, c, &s, context);
    transformer_feed_forward(transformer, c, &s);
    transformer_leave(transformer, c, &s, x);
    arena_release(c->arena, mark);
}
