#include "models/resnet.h"

bool resnet_load(const struct weights *w, const char *prefix, const struct resnet_shape *shape,
    struct resnet *out, struct error *err) {
    const int64_t c_in = shape->c_in, c_out = shape->c_out;
    *out = (struct resnet){ .c_in = c_in,
        .c_out = c_out,
        .groups = shape->groups,
        .eps = shape->eps,
        .time_offset = shape->time_offset };
    if (norm_load(w, prefix, "norm1", c_in, &out->norm1, err) &&
        conv_load(w, prefix, "conv1", CONV_3X3, c_out, c_in, &out->conv1, err) &&
        norm_load(w, prefix, "norm2", c_out, &out->norm2, err) &&
        conv_load(w, prefix, "conv2", CONV_3X3, c_out, c_out, &out->conv2, err) &&
        (c_in == c_out ||
            conv_load(w, prefix, "conv_shortcut", CONV_1X1, c_out, c_in, &out->conv_shortcut, err)))
        return true;
    resnet_finish(out);
    return false;
}

void resnet_finish(struct resnet *resnet) {
    norm_finish(&resnet->norm1);
    norm_finish(&resnet->norm2);
    packed_destroy(resnet->conv1);
    packed_destroy(resnet->conv2);
    packed_destroy(resnet->conv_shortcut);
    *resnet = (struct resnet){ 0 };
}

bool resnet_time_part(
    const char *prefix, int64_t c_out, struct linear_part *part, struct error *err) {
    part->n = c_out;
    return layer_name(part->name, prefix, "time_emb_proj", err);
}

/* `more` and `joined` are NULL, or as in group_norm_args. */
static void norm_silu(const struct resnet *r, struct compute *c, const struct tensor *x,
    const struct tensor *more, const struct norm *norm, struct tensor *joined, struct tensor *y) {
    op_group_norm(c, &(struct group_norm_args){
                         .x = x,
                         .gamma = &norm->gamma,
                         .beta = &norm->beta,
                         .groups = r->groups,
                         .eps = r->eps,
                         .silu = true,
                         .y = y,
                         .more = more,
                         .joined = joined,
                     });
}

/* hidden = conv1(normed) + this block's part of time_add. */
static void first_conv(const struct resnet *r, struct compute *c, const struct tensor *normed,
    const struct tensor *time_add, struct tensor *hidden) {
    op_conv2d(c, &(struct conv2d_args){
                     .x = normed,
                     .weight = r->conv1,
                     .row_add = time_add,
                     .row_add_offset = r->time_offset,
                     .y = hidden,
                 });
}

/* Returns whether conv2 can add the shortcut layer to its own sum. */
static bool can_fuse(const struct resnet *r, const struct compute *c) {
    return r->conv_shortcut && c->kernels->adds_shortcuts && !c->tape;
}

/* y = conv2(silu(norm2(hidden))) + the shortcut. The shortcut is x, or the result of the shortcut
 * layer, which is already in y unless the layer is fused. */
static void second_half(const struct resnet *r, struct compute *c, struct tensor *hidden,
    const struct tensor *x, bool fused, struct tensor *y) {
    norm_silu(r, c, hidden, NULL, &r->norm2, NULL, hidden);
    struct conv2d_args args = { .x = hidden, .weight = r->conv2, .y = y };
    if (fused) {
        args.shortcut = x;
        args.shortcut_weight = r->conv_shortcut;
    } else {
        args.residual = r->conv_shortcut ? y : x;
    }
    op_conv2d(c, &args);
}

void resnet_forward(const struct resnet *resnet, struct compute *c, struct tensor *x,
    enum resnet_input input, const struct tensor *time_add, struct tensor *y) {
    const int64_t n = x->shape[0], h = x->shape[1], w = x->shape[2];
    const size_t mark = arena_mark(c->arena);

    /* With a shortcut layer, its result is put into y first. x is not needed any more, and is
     * normed in place if the caller allows it. Without a shortcut layer, x is added at the end and
     * must not change. A fused shortcut also reads x at the end. */
    const bool reuse_x = resnet->conv_shortcut && input == RESNET_OVERWRITE_INPUT;
    const bool fused = can_fuse(resnet, c) && !reuse_x;
    if (resnet->conv_shortcut && !fused)
        layer_conv(c, x, resnet->conv_shortcut, y);

    /* [n][h][w][c_out] */
    struct tensor hidden = compute_tensor_4d(c, x->dtype, n, h, w, resnet->c_out);

    /* normed: [n][h][w][c_in] */
    const size_t normed_mark = arena_mark(c->arena);
    struct tensor normed = reuse_x ? *x : compute_tensor_4d(c, x->dtype, n, h, w, resnet->c_in);
    norm_silu(resnet, c, x, NULL, &resnet->norm1, NULL, &normed);
    first_conv(resnet, c, &normed, time_add, &hidden);
    arena_release(c->arena, normed_mark);

    second_half(resnet, c, &hidden, x, fused, y);
    arena_release(c->arena, mark);
}

void resnet_forward_joined(const struct resnet *resnet, struct compute *c, const struct tensor *a,
    const struct tensor *b, const struct tensor *time_add, struct tensor *y) {
    const int64_t n = a->shape[0], h = a->shape[1], w = a->shape[2];
    const size_t mark = arena_mark(c->arena);
    struct tensor x = compute_tensor_4d(c, a->dtype, n, h, w, resnet->c_in);
    /* A tape knows the gradient of a plain concatenation only. */
    if (!c->kernels->joins || c->tape) {
        op_concat(c, &(struct concat_args){ .a = a, .b = b, .y = &x });
        resnet_forward(resnet, c, &x, RESNET_OVERWRITE_INPUT, time_add, y);
        arena_release(c->arena, mark);
        return;
    }
    struct tensor hidden = compute_tensor_4d(c, a->dtype, n, h, w, resnet->c_out);
    const size_t normed_mark = arena_mark(c->arena);
    struct tensor normed = compute_tensor_4d(c, a->dtype, n, h, w, resnet->c_in);
    norm_silu(resnet, c, a, b, &resnet->norm1, &x, &normed);
    first_conv(resnet, c, &normed, time_add, &hidden);
    arena_release(c->arena, normed_mark);
    const bool fused = can_fuse(resnet, c);
    if (resnet->conv_shortcut && !fused)
        layer_conv(c, &x, resnet->conv_shortcut, y);
    second_half(resnet, c, &hidden, &x, fused, y);
    arena_release(c->arena, mark);
}
