#include "models/clip_layer.h"

#include <stdio.h>

bool clip_layer_load(const struct weights *w, const char *prefix, int index,
    const struct clip_layer_config *config, struct clip_layer *out, struct error *err) {
    static const char *const qkv_leaves[3] = { "self_attn.q_proj", "self_attn.k_proj",
        "self_attn.v_proj" };
    const int64_t c = config->hidden_size, m = config->intermediate_size;
    const struct linear_shape square = { .n = c, .k = c, .bias = true };
    const struct linear_shape widen = { .n = m, .k = c, .bias = true };
    const struct linear_shape narrow = { .n = c, .k = m, .bias = true };
    char name[64];
    snprintf(name, sizeof(name), "%s.%d", prefix, index);
    return norm_load(w, name, "layer_norm1", c, &out->layer_norm1, err) &&
           qkv_load(w, name, qkv_leaves, c, true, &out->qkv, err) &&
           linear_load(w, name, "self_attn.out_proj", square, &out->out_proj, err) &&
           norm_load(w, name, "layer_norm2", c, &out->layer_norm2, err) &&
           linear_load(w, name, "mlp.fc1", widen, &out->fc1, err) &&
           linear_load(w, name, "mlp.fc2", narrow, &out->fc2, err);
}

void clip_layer_finish(struct clip_layer *layer) {
    norm_finish(&layer->layer_norm1);
    norm_finish(&layer->layer_norm2);
    packed_destroy(layer->qkv);
    packed_destroy(layer->out_proj);
    packed_destroy(layer->fc1);
    packed_destroy(layer->fc2);
}

void clip_layer_forward(struct compute *c, const struct clip_layer *layer,
    const struct clip_layer_config *config, struct tensor *x) {
    const size_t mark = arena_mark(c->arena);
    const int64_t n = x->shape[0], t = x->shape[1], ch = config->hidden_size;

    /* x += out_proj(attention(layer_norm1(x))); `normed` is reused for the attention's output */
    struct tensor normed = compute_tensor_3d(c, x->dtype, n, t, ch);
    layer_layer_norm(c, x, &layer->layer_norm1, config->layer_norm_eps, &normed);
    layer_self_attention(c, layer->qkv, config->num_attention_heads, config->causal, &normed);
    layer_linear_add(c, &normed, layer->out_proj, x);

    /* x += fc2(act(fc1(layer_norm2(x)))) */
    struct tensor hidden = compute_tensor_3d(c, x->dtype, n, t, config->intermediate_size);
    layer_layer_norm(c, x, &layer->layer_norm2, config->layer_norm_eps, &normed);
    op_linear(c, &(struct linear_args){
                     .x = &normed,
                     .weight = layer->fc1,
                     .activation = config->hidden_act,
                     .y = &hidden,
                 });
    layer_linear_add(c, &hidden, layer->fc2, x);
    arena_release(c->arena, mark);
}
