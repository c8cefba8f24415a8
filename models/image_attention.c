#include "models/image_attention.h"

bool image_attention_load(const struct weights *w, const char *prefix,
    const struct image_attention_shape *shape, struct image_attention *out, struct error *err) {
    static const char *const leaves[3] = { "to_q", "to_k", "to_v" };
    const int64_t c = shape->channels;
    const struct linear_shape square = { .n = c, .k = c, .bias = true };
    *out = (struct image_attention){
        .channels = c, .heads = shape->heads, .groups = shape->groups, .eps = shape->eps
    };
    if (norm_load(w, prefix, "group_norm", c, &out->group_norm, err) &&
        qkv_load(w, prefix, leaves, c, true, &out->qkv, err) &&
        linear_load(w, prefix, "to_out.0", square, &out->to_out, err))
        return true;
    image_attention_finish(out);
    return false;
}

void image_attention_finish(struct image_attention *attention) {
    norm_finish(&attention->group_norm);
    packed_destroy(attention->qkv);
    packed_destroy(attention->to_out);
    *attention = (struct image_attention){ 0 };
}

void image_attention_forward(
    const struct image_attention *attention, struct compute *c, struct tensor *x) {
    const size_t mark = arena_mark(c->arena);
    const int64_t n = x->shape[0], h = x->shape[1], w = x->shape[2], ch = attention->channels;

    struct tensor normed = compute_tensor_4d(c, x->dtype, n, h, w, ch);
    op_group_norm(c, &(struct group_norm_args){
                         .x = x,
                         .gamma = &attention->group_norm.gamma,
                         .beta = &attention->group_norm.beta,
                         .groups = attention->groups,
                         .eps = attention->eps,
                         .y = &normed,
                     });
    struct tensor s = tensor_view_3d(&normed, n, h * w, ch); /* later the attention's output */
    layer_self_attention(c, attention->qkv, attention->heads, false, &s);
    struct tensor pixels = tensor_view_3d(x, n, h * w, ch);
    layer_linear_add(c, &s, attention->to_out, &pixels);
    arena_release(c->arena, mark);
}
