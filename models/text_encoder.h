/* CLIP's text transformer: turns token ids into the context that the UNet attends to. */
#ifndef MODELS_TEXT_ENCODER_H
#define MODELS_TEXT_ENCODER_H

#include "kernels/compute/compute.h"
#include "models/config.h"
#include "models/weights.h"

struct text_encoder;

/* Copies the config and packs the weights; neither is needed afterwards. Errors begin with
 * "text_encoder: ". */
bool text_encoder_create(const struct text_encoder_config *config, const struct weights *w,
    struct text_encoder **out, struct error *err) __attribute__((warn_unused_result));
/* Frees the memory of the weights. Afterwards the model still has its config, but cannot
 * compute. */
void text_encoder_drop_weights(struct text_encoder *encoder);
/* Exchanges the contents of two models, so that a model that dropped its weights gets the weights
 * of another one wherever it is borrowed. */
void text_encoder_swap(struct text_encoder *a, struct text_encoder *b);
void text_encoder_destroy(struct text_encoder *encoder); /* NULL is fine */

const struct text_encoder_config *text_encoder_get_config(const struct text_encoder *encoder);
/* Returns the dtype of activations, which is also that of the context. */
enum dtype text_encoder_activation_dtype(const struct text_encoder *encoder);

/* Returns the list that says which packed weight holds the tensors of each layer. Borrowed. */
const struct weight_list *text_encoder_weights(const struct text_encoder *encoder);

/* Vectors that replace the embeddings of tokens. A run replaces `count` tokens of row `row`, from
 * token `at` on, by the vectors from `first` on. */
struct text_vector_run {
    int row, at, first, count;
};
struct text_vectors {
    struct tensor values; /* [all vectors][hidden_size] in text_encoder_vector_dtype */
    struct tensor ids;    /* i32 [all vectors][1]: 0, 1, 2, ... */
    const struct text_vector_run *runs;
    int run_count;
};
enum dtype text_encoder_vector_dtype(const struct text_encoder *encoder);

/* ids i32 [n][t], t <= max_position_embeddings, each id < vocab_size. y [n][t][hidden_size] in the
 * activation dtype: the hidden state after layer (last - clip_skip), through final_layer_norm.
 * clip_skip is as in diffusers: 0 is the last layer; 0 <= clip_skip < num_hidden_layers. */
void text_encoder_forward(const struct text_encoder *encoder, struct compute *c,
    const struct tensor *ids, int clip_skip, struct tensor *y);
/* Does what text_encoder_forward does, with `vectors` (or NULL) in place of some tokens. The ids of
 * these tokens may be any valid ones. */
void text_encoder_forward_vectors(const struct text_encoder *encoder, struct compute *c,
    const struct tensor *ids, const struct text_vectors *vectors, int clip_skip, struct tensor *y);

#endif
