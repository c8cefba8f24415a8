#include "engine/prompts/encode.h"

#include "base/limits.h"
#include "kernels/compute/recordings.h"

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

/* --- vectors --- */

/* The arguments of text_encoder_forward_vectors, on the host. */
struct vector_plan {
    int32_t *ids, *order; /* ids [tokens], 0 at vectors; order [vectors]: 0, 1, 2, ... */
    void *values;         /* [vectors][width], in the text encoder's dtype */
    struct text_vector_run *runs;
    int run_count;
};

static void vector_plan_finish(struct vector_plan *plan) {
    free(plan->ids);
    free(plan->order);
    free(plan->values);
    free(plan->runs);
}

static const float *find_vector(const struct embedding_set *set, int32_t id) {
    const struct embedding *e = embedding_set_find(set, id);
    return e && e->values ? e->values + (int64_t)(id - e->first_id) * e->width : NULL;
}

static bool vector_plan_alloc(
    struct vector_plan *plan, const struct text *text, size_t vector_bytes) {
    const size_t vectors = (size_t)text->vectors;
    plan->ids = calloc((size_t)text->tokens, sizeof(*plan->ids));
    plan->order = calloc(vectors, sizeof(*plan->order));
    plan->values = calloc(vectors, vector_bytes);
    plan->runs = calloc(vectors, sizeof(*plan->runs));
    return plan->ids && plan->order && plan->values && plan->runs;
}

/* Adds a vector to the last run if it follows that run in the same chunk; else begins a new run. */
static void add_to_run(struct vector_plan *plan, int place, int length, int vector) {
    struct text_vector_run *last = plan->runs + plan->run_count - 1;
    const int row = place / length, at = place % length;
    if (plan->run_count > 0 && last->row == row && last->at + last->count == at)
        last->count++;
    else
        plan->runs[plan->run_count++] = (struct text_vector_run){ row, at, vector, 1 };
}

static bool vector_plan_fill(
    struct vector_plan *plan, const struct text_encoding *e, struct error *err) {
    const enum dtype dtype = text_encoder_vector_dtype(e->encoder);
    const int64_t width = text_encoder_get_config(e->encoder)->hidden_size;
    const size_t bytes = (size_t)width * dtype_size(dtype);
    int vector = 0;
    if (!vector_plan_alloc(plan, e->text, bytes))
        return error_set(err, ERROR_NO_MEMORY, "no memory for a text's vectors");
    for (int i = 0; i < e->text->tokens; i++) {
        const int32_t id = e->text->ids[i];
        if (id < EMBEDDING_ID_FIRST) {
            plan->ids[i] = id;
            continue;
        }
        const float *values = find_vector(e->embeddings, id);
        if (!values)
            return error_set(err, ERROR_INTERNAL, "a vector of no embedding");
        convert_elements(
            (char *)plan->values + (size_t)vector * bytes, dtype, values, DTYPE_F32, width);
        add_to_run(plan, i, e->length, vector);
        plan->order[vector] = vector;
        vector++;
    }
    return true;
}

/* Encodes a text with vectors. The call is not recorded, because the vectors are in different
 * places in each text. */
static void run_with_vectors(
    struct compute *c, const struct text_encoding *e, const struct run *r) {
    const int64_t most = c->dry_run ? r->context.shape[0] * r->context.shape[1] : e->text->vectors;
    struct tensor context = r->context;
    struct text_vectors vectors = {
        .values = compute_tensor_2d(
            c, text_encoder_vector_dtype(e->encoder), most, context.shape[2]),
        .ids = compute_tensor_2d(c, DTYPE_I32, most, 1),
    };
    struct vector_plan plan = { 0 };
    if (compute_ok(c) && !c->dry_run && vector_plan_fill(&plan, e, &c->error)) {
        compute_upload(c, plan.values, &vectors.values);
        compute_upload(c, plan.order, &vectors.ids);
        compute_upload(c, plan.ids, &r->ids);
        vectors.runs = plan.runs;
        vectors.run_count = plan.run_count;
    }
    text_encoder_forward_vectors(e->encoder, c, &r->ids, &vectors, r->clip_skip, &context);
    vector_plan_finish(&plan);
}

static void run_plainly(struct compute *c, const struct text_encoding *e, const struct run *r) {
    const uintptr_t key[] = { (uintptr_t)r->encoder, (uintptr_t)r->ids.data,
        (uintptr_t)r->context.data, (uintptr_t)r->ids.shape[0], (uintptr_t)e->length,
        (uintptr_t)r->clip_skip };
    compute_upload(c, e->text->ids, &r->ids);
    compute_recorded(c, key, sizeof(key), run_text_encoder, r);
}

/* Uploads a text that the client sent encoded: [1][tokens][width] in f32. */
static void upload_encoded(struct compute *c, const float *encoded, const struct tensor *context) {
    void *converted = malloc(tensor_bytes(context));
    if (!converted) {
        error_set(&c->error, ERROR_NO_MEMORY, "no memory for an encoded text");
        return;
    }
    convert_elements(converted, context->dtype, encoded, DTYPE_F32, tensor_elements(context));
    compute_upload(c, converted, context);
    free(converted);
}

void text_encode(
    struct compute *c, const struct text_encoding *encoding, const struct tensor *context) {
    const struct text *text = encoding->text;
    if (text->encoded && !c->dry_run) {
        if (compute_ok(c))
            upload_encoded(c, text->encoded, context);
        return;
    }
    const int64_t chunks = context->shape[1] / encoding->length;
    const size_t mark = arena_mark(c->arena);
    const struct run r = {
        .encoder = encoding->encoder,
        .ids = compute_tensor_2d(c, DTYPE_I32, chunks, encoding->length),
        .context = tensor_view_3d(context, chunks, encoding->length, context->shape[2]),
        .clip_skip = encoding->clip_skip,
    };
    const struct row_overlay *rows[TEXT_CHUNKS_MAX];
    for (int64_t i = 0; i < chunks; i++)
        rows[i] = encoding->overlay;
    const struct overlay overlay = { rows, (int)chunks };
    c->overlay = encoding->overlay ? &overlay : NULL;
    if (text->vectors > 0 || (c->dry_run && encoding->vectors))
        run_with_vectors(c, encoding, &r);
    else
        run_plainly(c, encoding, &r);
    c->overlay = NULL;
    if (text->weights)
        weigh(c, text->weights, &r.context);
    arena_release(c->arena, mark);
}
