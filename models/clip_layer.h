/* A pre-norm block of CLIP's transformers, which is used for text and for pictures. */
#ifndef MODELS_CLIP_LAYER_H
#define MODELS_CLIP_LAYER_H

#include "kernels/compute/compute.h"
#include "models/layers.h"

struct clip_layer_config {
    int hidden_size, intermediate_size, num_attention_heads;
    enum activation hidden_act;
    float layer_norm_eps;
    bool causal;
};

/* Returns the config of a layer, from the config of a whole transformer. All of these structs name
 * the fields as the files do. */
#define clip_layer_config_of(config, is_causal)                                                    \
    ((struct clip_layer_config){ .hidden_size = (config)->hidden_size,                             \
        .intermediate_size = (config)->intermediate_size,                                          \
        .num_attention_heads = (config)->num_attention_heads,                                      \
        .hidden_act = (config)->hidden_act,                                                        \
        .layer_norm_eps = (config)->layer_norm_eps,                                                \
        .causal = (is_causal) })

struct clip_layer {
    struct norm layer_norm1, layer_norm2;
    struct packed *qkv, *out_proj; /* owned, like the next two */
    struct packed *fc1, *fc2;
};

/* Loads layer number `index` below `prefix`, for example "text_model.encoder.layers". */
bool clip_layer_load(const struct weights *w, const char *prefix, int index,
    const struct clip_layer_config *config, struct clip_layer *out, struct error *err)
    __attribute__((warn_unused_result));
void clip_layer_finish(struct clip_layer *layer);

/* x [n][t][hidden_size], in place. */
void clip_layer_forward(struct compute *c, const struct clip_layer *layer,
    const struct clip_layer_config *config, struct tensor *x);

#endif
