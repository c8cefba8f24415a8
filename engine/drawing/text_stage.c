#include "engine/drawing/text_stage.h"

#include "engine/prompts/encode.h"

#include <stdlib.h>
#include <string.h>

const struct text *text_stage_text(const struct resolved_request *r, int index, int text) {
    return &r->texts[text == 0 ? 0 : resolved_request_texts(r, index).first + text - 1];
}

/* context: [1][the text's tokens][hidden]. Uses the cached encoding if there is one. Texts that the
 * client sent encoded are not cached. */
static void encode_text(struct compute *c, const struct text_stage *stage,
    const struct resolved_request *r, const struct text *text, int clip_skip,
    const struct tensor *context) {
    const struct text_key key = {
        .ids = text->ids,
        .weights = text->weights,
        .id_count = (size_t)context->shape[1],
        .clip_skip = clip_skip,
        .adapters = adapter_set_text_key(r->adapters),
    };
    const bool is_kept = !c->dry_run && compute_ok(c) && !text->encoded;
    const void *found = is_kept ? text_cache_find(stage->cache, &key, tensor_bytes(context)) : NULL;
    if (found) {
        compute_upload(c, found, context);
        return;
    }
    const struct text_encoding encoding = {
        .encoder = stage->encoder,
        .text = text,
        .embeddings = r->embeddings,
        .vectors = r->vectors,
        .length = r->tokens,
        .clip_skip = clip_skip,
        .overlay = adapter_set_text_encoder(r->adapters),
    };
    text_encode(c, &encoding, context);
    const void *encoded = is_kept ? compute_view(c, context) : NULL;
    if (encoded)
        text_cache_put(stage->cache, &key, encoded, tensor_bytes(context));
}

/* Repeats the last token of an encoded text, [1][tokens][hidden], up to the end of `context`. As in
 * AUTOMATIC1111, this gives all parts of a prompt the same length. */
static void lengthen_text(struct compute *c, int64_t tokens, const struct tensor *context) {
    const int64_t missing = context->shape[1] - tokens;
    if (missing == 0 || c->dry_run)
        return;
    const size_t bytes = tensor_bytes(context) / (size_t)context->shape[1];
    struct tensor last = *context, end = *context;
    last.shape[1] = 1;
    last.data = (char *)context->data + (size_t)(tokens - 1) * bytes;
    end.shape[1] = missing;
    end.data = (char *)context->data + (size_t)tokens * bytes;
    const char *token = compute_view(c, &last);
    char *repeated = token ? malloc((size_t)missing * bytes) : NULL;
    if (token && !repeated)
        error_set(&c->error, ERROR_NO_MEMORY, "no memory for an encoded text");
    for (int64_t i = 0; repeated && i < missing; i++)
        memcpy(repeated + (size_t)i * bytes, token, bytes);
    if (repeated)
        compute_upload(c, repeated, &end);
    free(repeated);
}

/* AUTOMATIC1111 applies clip_skip to the negative prompt too, diffusers to the prompt only. */
static int clip_skip_of(const struct resolved_request *r, int text) {
    return text > 0 || r->asked.prompt_syntax == PROMPT_SYNTAX_A1111 ? r->asked.clip_skip : 0;
}

/* Computes the UNet's keys and values for one variant of a text of image `index` of the request. */
static void encode_variant(struct compute *c, const struct text_stage *stage,
    const struct resolved_request *r, int index, struct image *image, int text, int variant) {
    const struct text one = text_variant(text_stage_text(r, index, text), variant);
    const size_t mark = arena_mark(c->arena);
    const struct tensor context = compute_tensor_3d(c, unet_activation_dtype(stage->unet), 1,
        image->text_tokens[text], unet_get_config(stage->unet)->cross_attention_dim);
    struct tensor own = context;
    if (!c->dry_run)
        own.shape[1] = one.tokens;
    if (compute_ok(c))
        encode_text(c, stage, r, &one, clip_skip_of(r, text), &own);
    if (compute_ok(c))
        lengthen_text(c, own.shape[1], &context);
    sampler_encode_text(c, image->sampler, image, text, &context);
    arena_release(c->arena, mark);
}

/* Whether the text of the image has another variant at its next evaluation than the encoded one. */
static bool has_other_text(
    const struct resolved_request *r, int index, const struct image *image, int text) {
    return image->text_variants[text] !=
           text_variant_at(text_stage_text(r, index, text), image->evaluations);
}

bool text_stage_is_due(const struct resolved_request *r, int index, const struct image *image) {
    bool due = false;
    for (int text = image->guided ? 0 : 1; text <= image->parts; text++)
        due = due || has_other_text(r, index, image, text);
    return due;
}

void text_stage_encode(struct compute *c, const struct text_stage *stage,
    const struct resolved_request *r, int index, struct image *image, const struct image *like) {
    for (int text = image->guided ? 0 : 1; text <= image->parts; text++) {
        if (!has_other_text(r, index, image, text))
            continue;
        const int variant = text_variant_at(text_stage_text(r, index, text), image->evaluations);
        if (like && like->text_variants[text] == variant)
            sampler_copy_text(c, image->sampler, image, text, like);
        else
            encode_variant(c, stage, r, index, image, text, variant);
        image->text_variants[text] = variant;
    }
    compute_synchronize(c); /* so that the time is measured here */
}
