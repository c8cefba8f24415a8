/* The architecture of a checkpoint as values. They are read from the config.json files of a
 * diffusers folder, or inferred from tensor shapes for a single file. models/config.c checks every
 * key. Names are those of diffusers and transformers. */
#ifndef MODELS_CONFIG_H
#define MODELS_CONFIG_H

#include "base/error.h"
#include "kernels/kernels.h"

#include <jansson.h>
#include <stdbool.h>

#define CONFIG_MAX_BLOCKS 8

struct text_encoder_config {
    int vocab_size, hidden_size, intermediate_size;
    int num_hidden_layers, num_attention_heads, max_position_embeddings;
    enum activation hidden_act; /* QUICK_GELU (CLIP-L) or GELU (OpenCLIP-H) */
    float layer_norm_eps;
    int eos_token_id; /* -1: not given */
};

struct unet_config {
    int sample_size; /* default latent height and width */
    int in_channels, out_channels;
    int block_count;
    int block_out_channels[CONFIG_MAX_BLOCKS];
    bool down_has_attention[CONFIG_MAX_BLOCKS]; /* CrossAttnDownBlock2D */
    bool up_has_attention[CONFIG_MAX_BLOCKS];   /* CrossAttnUpBlock2D */
    int layers_per_block;
    int heads[CONFIG_MAX_BLOCKS]; /* config key attention_head_dim: the NUMBER of heads */
    int cross_attention_dim;
    int norm_num_groups;
    float norm_eps;
    bool flip_sin_to_cos;
    float freq_shift;
    bool use_linear_projection;
    bool upcast_attention; /* f32 scores; our attention always uses them */
};

struct vae_config {
    int in_channels, out_channels, latent_channels;
    int block_count;
    int block_out_channels[CONFIG_MAX_BLOCKS];
    int layers_per_block;
    int norm_num_groups;
    int sample_size;
    float scaling_factor;
};

/* CLIP's vision tower and its preprocessing: safety_checker/config.json and
 * feature_extractor/preprocessor_config.json. */
struct safety_checker_config {
    int hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
    int image_size, patch_size, projection_dim;
    enum activation hidden_act;
    float layer_norm_eps;
    int resize; /* px of the shorter side; the middle image_size is cut out */
    float rescale_factor, image_mean[3], image_std[3];
};

/* Each function parses one config.json. ERROR_UNSUPPORTED if a key that changes the arithmetic (an
 * activation, a block type, ...) has an unknown value. The message has the key, the value and what
 * is supported. */
bool text_encoder_config_parse(const json_t *json, struct text_encoder_config *out,
    struct error *err) __attribute__((warn_unused_result));
bool unet_config_parse(const json_t *json, struct unet_config *out, struct error *err)
    __attribute__((warn_unused_result));
bool vae_config_parse(const json_t *json, struct vae_config *out, struct error *err)
    __attribute__((warn_unused_result));
/* Parses two files: the checker's config, then the preprocessor's. */
bool safety_checker_config_parse(const json_t *json, const json_t *preprocessor,
    struct safety_checker_config *out, struct error *err) __attribute__((warn_unused_result));

#endif
