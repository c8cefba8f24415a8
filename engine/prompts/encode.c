#include "engine/prompts/encode.h"

#include "base/limits.h"
#include "kernels/recordings.h"

#include <stdlib.h>

/* ids i32 [chunks][length], context [chunks][length][hidden]. */
struct run {
    const struct text_encoder *encoder;
    struct tensor ids, context;
    int clip_skip;
};

static void run_text_encoder(struct compute *c, const void *user) {
    const struct run *r = user;
    struct tensor context = r->context;
    text_encoder_forward(r->encoder, c, &r->ids, r->clip_skip, &context);
}

static void weigh(struct compute *c, const float *weights, const struct tensor *context) {
    const void *encoded = compute_view(c, context);
    if (!encoded)
        return;
    void *weighed = malloc(tensor_bytes(context));
    bool ok = weighed || error_set(&c->error, ERROR_NO_MEMORY, "no memory for an encoded text");
    ok = ok && text_weigh(weights, context->shape[0], context->shape[1], context->shape[2],
                   context->dtype, encoded, weighed, &c->error);
    if (ok)
        compute_upload(c, weighed, context);
    free(weighed);
}

void text_encode(
    struct compute *c, const struct text_encoding *encoding, const struct tensor *context) {
    const int64_t chunks = context->shape[1] / encoding->length;
    const size_t mark = arena_mark(c->arena);
    const struct run r = {
        .encoder = encoding->encoder,
        .ids = compute_tensor_2d(c, DTYPE_I32, chunks, encoding->length),
        .context = tensor_view_3d(context, chunks, encoding->length, context->shape[2]),
        .clip_skip = encoding->clip_skip,
    };
    const uintptr_t key[] = { (uintptr_t)r.encoder, (uintptr_t)r.ids.data,
        (uintptr_t)r.context.data, (uintptr_t)chunks, (uintptr_t)encoding->length,
        (uintptr_t)r.clip_skip };
    const struct row_overlay *rows[TEXT_CHUNKS_MAX];
    for (int64_t i = 0; i < chunks; i++)
        rows[i] = encoding->overlay;
    const struct overlay overlay = { rows, (int)chunks };
    compute_upload(c, encoding->text->ids, &r.ids);
    c->overlay = encoding->overlay ? &overlay : NULL;
    compute_recorded(c, key, sizeof(key), run_text_encoder, &r);
    c->overlay = NULL;
    if (encoding->text->weights)
        weigh(c, encoding->text->weights, &r.context);
    arena_release(c->arena, mark);
}
