/* A few layers of every kind, with a model's names, as targets for made-up adapters. */
#ifndef TESTS_MODELS_SMALL_SMALL_TARGETS_H
#define TESTS_MODELS_SMALL_SMALL_TARGETS_H

#include "models/adapter/adapter.h"

#define SMALL_BLOCK "down_blocks.0.attentions.0.transformer_blocks.0."

static struct named_weight small_unet[] = {
    { .name = "conv_in", .n = 8, .k = 4, .has_bias = true, .is_conv = true, .kind = CONV_3X3 },
    { .name = "down_blocks.0.resnets.0.conv1",
        .n = 8,
        .k = 8,
        .has_bias = true,
        .is_conv = true,
        .kind = CONV_3X3 },
    { .name = "down_blocks.0.attentions.0.proj_in", .n = 8, .k = 8, .has_bias = true },
    { .name = SMALL_BLOCK "attn1.to_q", .n = 8, .k = 8 },
    { .name = SMALL_BLOCK "attn2.to_k", .n = 8, .k = 768 },
    { .name = SMALL_BLOCK "attn1.to_out.0", .n = 8, .k = 8, .has_bias = true },
};
static struct named_resident small_norms[] = {
    { .name = "conv_norm_out",
        .weight = { .dtype = DTYPE_F32, .rank = 1, .shape = { 8 } },
        .bias = { .dtype = DTYPE_F32, .rank = 1, .shape = { 8 } } },
};
static struct named_weight small_text[] = {
    { .name = "text_model.encoder.layers.0.self_attn.q_proj", .n = 12, .k = 12, .has_bias = true },
};
static const struct weight_list small_unet_list = { .items = small_unet,
    .count = sizeof(small_unet) / sizeof(small_unet[0]),
    .residents = small_norms,
    .resident_count = 1 };
static const struct weight_list small_text_list = { .items = small_text,
    .count = sizeof(small_text) / sizeof(small_text[0]) };
static const struct adapter_targets small_targets = { &small_unet_list, &small_text_list };

#endif
