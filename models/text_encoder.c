/* CLIP's text transformer: pre-norm blocks with a causal mask, a learned position for each token,
 * and one norm at the end. That norm is applied whatever clip_skip is. */
#include "models/text_encoder.h"

#include "models/clip_layer.h"

#include <stdlib.h>

struct text_encoder {
    struct text_encoder_config config;
    enum dtype activation_dtype;
    struct table token_embedding, position_embedding;
    struct clip_layer *layers; /* owned: [num_hidden_layers] */
    struct norm final_layer_norm;
    struct weight_list weights; /* owned */
};

static bool load(const struct weights *w, struct text_encoder *e, struct error *err) {
    const struct text_encoder_config *config = &e->config;
    const int64_t c = config->hidden_size;
    const struct clip_layer_config of_layer = clip_layer_config_of(config, true);
    for (int i = 0; i < config->num_hidden_layers; i++)
        if (!clip_layer_load(w, "text_model.encoder.layers", i, &of_layer, &e->layers[i], err))
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
        clip_layer_finish(&encoder->layers[i]);
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

enum dtype text_encoder_vector_dtype(const struct text_encoder *encoder) {
    return encoder->token_embedding.tensor.dtype;
}

/* Replaces the tokens of a run in y [n][t][c] by the run's vectors, each with its position
 * added. */
static void put_vectors(const struct text_encoder *e, struct compute *c,
    const struct text_vectors *vectors, const struct text_vector_run *run, struct tensor *y) {
    const int64_t t = y->shape[1], width = y->shape[2], count = run->count;
    const struct tensor own = tensor_rows(&vectors->ids, run->first, count);
    const struct tensor tokens = tensor_view_3d(y, y->shape[0] * t, 1, width);
    const struct tensor there = tensor_rows(&tokens, run->row * t + run->at, count);
    const struct tensor ids = tensor_view_2d(&own, 1, count);
    const struct tensor positions = tensor_rows(&e->position_embedding.tensor, run->at, count);
    struct tensor row = tensor_view_3d(&there, 1, count, width);
    op_embedding(c, &(struct embedding_args){
                        .ids = &ids,
                        .table = &vectors->values,
                        .positions = &positions,
                        .y = &row,
                    });
}

void text_encoder_forward(const struct text_encoder *encoder, struct compute *c,
    const struct tensor *ids, int clip_skip, struct tensor *y) {
    text_encoder_forward_vectors(encoder, c, ids, NULL, clip_skip, y);
}

void text_encoder_forward_vectors(const struct text_encoder *encoder, struct compute *c,
    const struct tensor *ids, const struct text_vectors *vectors, int clip_skip, struct tensor *y) {
    const struct text_encoder_config *config = &encoder->config;
    const struct clip_layer_config of_layer = clip_layer_config_of(config, true);
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
    for (int i = 0; vectors && i < vectors->run_count; i++)
        put_vectors(encoder, c, vectors, &vectors->runs[i], y);
    for (int i = 0; compute_ok(c) && i < config->num_hidden_layers - clip_skip; i++)
        clip_layer_forward(c, &encoder->layers[i], &of_layer, y);
    layer_layer_norm(c, y, &encoder->final_layer_norm, config->layer_norm_eps, y);
}
