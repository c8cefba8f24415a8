/* CLIP's text transformer: pre-norm blocks with a causal mask, a learned position for each token,
 * and one norm at the end, which every clip_skip goes through. */
#include "models/text_encoder.h"

#include "models/layers.h"

#include <stdio.h>
#include <stdlib.h>

struct layer {
    struct norm layer_norm1, layer_norm2;
    struct packed *qkv, *out_proj;
    struct packed *fc1, *fc2;
};

struct text_encoder {
    struct text_encoder_config config;
    enum dtype activation_dtype;
    struct table token_embedding, position_embedding;
    struct layer *layers; /* owned: num_hidden_layers */
    struct norm final_layer_norm;
    struct weight_list weights; /* owned */
};

static bool layer_load(const struct weights *w, const struct text_encoder_config *config, int index,
    struct layer *out, struct error *err) {
    static const char *const qkv_leaves[3] = { "self_attn.q_proj", "self_attn.k_proj",
        "self_attn.v_proj" };
    const int64_t c = config->hidden_size, m = config->intermediate_size;
    const struct linear_shape square = { .n = c, .k = c, .bias = true };
    const struct linear_shape widen = { .n = m, .k = c, .bias = true };
    const struct linear_shape narrow = { .n = c, .k = m, .bias = true };
    char prefix[64];
    snprintf(prefix, sizeof(prefix), "text_model.encoder.layers.%d", index);
    return norm_load(w, prefix, "layer_norm1", c, &out->layer_norm1, err) &&
           qkv_load(w, prefix, qkv_leaves, c, true, &out->qkv, err) &&
           linear_load(w, prefix, "self_attn.out_proj", square, &out->out_proj, err) &&
           norm_load(w, prefix, "layer_norm2", c, &out->layer_norm2, err) &&
           linear_load(w, prefix, "mlp.fc1", widen, &out->fc1, err) &&
           linear_load(w, prefix, "mlp.fc2", narrow, &out->fc2, err);
}

static void layer_finish(struct layer *layer) {
    norm_finish(&layer->layer_norm1);
    norm_finish(&layer->layer_norm2);
    packed_destroy(layer->qkv);
    packed_destroy(layer->out_proj);
    packed_destroy(layer->fc1);
    packed_destroy(layer->fc2);
}

static bool load(const struct weights *w, struct text_encoder *e, struct error *err) {
    const struct text_encoder_config *config = &e->config;
    const int64_t c = config->hidden_size;
    for (int i = 0; i < config->num_hidden_layers; i++)
        if (!layer_load(w, config, i, &e->layers[i], err))
            return false;
    return table_load(w, "text_model.embeddings", "token_embedding", config->vocab_size, c,
               &e->token_embedding, err) &&
           table_load(w, "text_model.embeddings", "position_embedding",
               config->max_position_embeddings, c, &e->position_embedding, err) &&
           norm_load(w, "text_model", "final_layer_norm", c, &e->final_layer_norm, err) &&
           weights_end(w, err);
}

bool text_encoder_create(const struct text_encoder_config *config, const struct weights *w,
    struct text_encoder **out, struct error *err) {
    if (config->hidden_size % config->num_attention_heads) {
        return error_set(err, ERROR_INVALID,
            "text_encoder: hidden_size %d is not a multiple of num_attention_heads %d",
            config->hidden_size, config->num_attention_heads);
    }
    struct text_encoder *e = calloc(1, sizeof(*e));
    if (e) {
        e->config = *config;
        e->activation_dtype = w->kernels->activation_dtype(w->dtype);
        e->layers = calloc((size_t)config->num_hidden_layers, sizeof(*e->layers));
    }
    if (!e || !e->layers) {
        text_encoder_destroy(e);
        return error_set(err, ERROR_NO_MEMORY, "text_encoder: no memory for %d layers",
            config->num_hidden_layers);
    }
    struct weights listed = *w;
    listed.list = &e->weights;
    if (!load(&listed, e, err)) {
        text_encoder_destroy(e);
        return error_prefix(err, "text_encoder");
    }
    *out = e;
    return true;
}

void text_encoder_drop_weights(struct text_encoder *encoder) {
    for (int i = 0; encoder->layers && i < encoder->config.num_hidden_layers; i++)
        layer_finish(&encoder->layers[i]);
    free(encoder->layers);
    encoder->layers = NULL;
    table_finish(&encoder->token_embedding);
    table_finish(&encoder->position_embedding);
    norm_finish(&encoder->final_layer_norm);
    weight_list_finish(&encoder->weights);
}

void text_encoder_swap(struct text_encoder *a, struct text_encoder *b) {
    const struct text_encoder kept = *a;
    *a = *b;
    *b = kept;
}

void text_encoder_destroy(struct text_encoder *encoder) {
    if (encoder)
        text_encoder_drop_weights(encoder);
    free(encoder);
}

const struct text_encoder_config *text_encoder_get_config(const struct text_encoder *encoder) {
    return &encoder->config;
}

enum dtype text_encoder_activation_dtype(const struct text_encoder *encoder) {
    return encoder->activation_dtype;
}

const struct weight_list *text_encoder_weights(const struct text_encoder *encoder) {
    return &encoder->weights;
}

/* x [n][t][c], in place. */
static void layer_forward(
    const struct text_encoder *e, const struct layer *layer, struct compute *c, struct tensor *x) {
    const size_t mark = arena_mark(c->arena);
    const struct text_encoder_config *config = &e->config;
    const int64_t n = x->shape[0], t = x->shape[1], ch = config->hidden_size;

    /* x += out_proj(attention(layer_norm1(x))); the normed input becomes the attention's output */
    struct tensor normed = compute_tensor_3d(c, x->dtype, n, t, ch);
    layer_layer_norm(c, x, &layer->layer_norm1, config->layer_norm_eps, &normed);
    layer_self_attention(c, layer->qkv, config->num_attention_heads, true, &normed);
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

void text_encoder_forward(const struct text_encoder *encoder, struct compute *c,
    const struct tensor *ids, int clip_skip, struct tensor *y) {
    const struct text_encoder_config *config = &encoder->config;
    if (compute_ok(c) && (clip_skip < 0 || clip_skip >= config->num_hidden_layers)) {
        error_set(&c->error, ERROR_INVALID, "clip_skip %d is not in 0..%d", clip_skip,
            config->num_hidden_layers - 1);
    }
    /* y is the residual stream [n][t][hidden_size] throughout. */
    op_embedding(c, &(struct embedding_args){
                        .ids = ids,
                        .table = &encoder->token_embedding.tensor,
                        .positions = &encoder->position_embedding.tensor,
                        .y = y,
                    });
    for (int i = 0; compute_ok(c) && i < config->num_hidden_layers - clip_skip; i++)
        layer_forward(encoder, &encoder->layers[i], c, y);
    layer_layer_norm(c, y, &encoder->final_layer_norm, config->layer_norm_eps, y);
}
