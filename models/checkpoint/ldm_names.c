/* The rules are those of the module names in the original Stable Diffusion code base. */
#include "models/checkpoint/ldm_names.h"

#include <stdio.h>
#include <string.h>

int ldm_number_after(const char *text, const char *prefix, const char **rest) {
    size_t length = strlen(prefix);
    if (strncmp(text, prefix, length) != 0)
        return -1;
    int number = 0, digits = 0;
    const char *at = text + length;
    for (; *at >= '0' && *at <= '9' && digits < 4; at++, digits++)
        number = number * 10 + (*at - '0');
    if (digits == 0 || digits > 3 || *at != '.')
        return -1;
    *rest = at + 1;
    return number;
}

static const char *after(const char *text, const char *prefix) {
    size_t length = strlen(prefix);
    return strncmp(text, prefix, length) == 0 ? text + length : NULL;
}

struct leaf {
    const char *ldm, *diffusers;
};

static const struct leaf unet_resnet[] = { { "in_layers.0.", "norm1." },
    { "in_layers.2.", "conv1." }, { "emb_layers.1.", "time_emb_proj." },
    { "out_layers.0.", "norm2." }, { "out_layers.3.", "conv2." },
    { "skip_connection.", "conv_shortcut." }, { NULL, NULL } };

static const struct leaf unet_plain[] = { { "input_blocks.0.0.", "conv_in." },
    { "time_embed.0.", "time_embedding.linear_1." },
    { "time_embed.2.", "time_embedding.linear_2." }, { "out.0.", "conv_norm_out." },
    { "out.2.", "conv_out." }, { NULL, NULL } };

static const struct leaf vae_resnet[] = { { "norm1.", "norm1." }, { "conv1.", "conv1." },
    { "norm2.", "norm2." }, { "conv2.", "conv2." }, { "nin_shortcut.", "conv_shortcut." },
    { NULL, NULL } };

static const struct leaf vae_attention[] = { { "norm.", "group_norm." }, { "q.", "to_q." },
    { "k.", "to_k." }, { "v.", "to_v." }, { "proj_out.", "to_out.0." }, { NULL, NULL } };

static const struct leaf vae_plain[] = { { "encoder.conv_in.", "encoder.conv_in." },
    { "encoder.conv_out.", "encoder.conv_out." }, { "encoder.norm_out.", "encoder.conv_norm_out." },
    { "decoder.conv_in.", "decoder.conv_in." }, { "decoder.conv_out.", "decoder.conv_out." },
    { "decoder.norm_out.", "decoder.conv_norm_out." }, { "quant_conv.", "quant_conv." },
    { "post_quant_conv.", "post_quant_conv." }, { NULL, NULL } };

static const struct leaf open_clip_layer[] = { { "ln_1.", "layer_norm1." },
    { "ln_2.", "layer_norm2." }, { "attn.in_proj_", "self_attn.?_proj." },
    { "attn.out_proj.", "self_attn.out_proj." }, { "mlp.c_fc.", "mlp.fc1." },
    { "mlp.c_proj.", "mlp.fc2." }, { NULL, NULL } };

static const struct leaf open_clip_plain[] = { { "token_embedding.",
                                                   "text_model.embeddings.token_embedding." },
    { "positional_embedding", "text_model.embeddings.position_embedding.weight" },
    { "ln_final.", "text_model.final_layer_norm." }, { NULL, NULL } };

/* Replaces the leaf at the beginning of `text` and writes stem + new leaf + the rest. Returns false
 * if no leaf of the table begins `text`. */
static bool put(
    struct ldm_name *out, const char *stem, const struct leaf *leafs, const char *text) {
    for (; leafs->ldm; leafs++) {
        const char *rest = after(text, leafs->ldm);
        if (rest)
            return snprintf(out->name, sizeof(out->name), "%s%s%s", stem, leafs->diffusers, rest) <
                   (int)sizeof(out->name);
    }
    return false;
}

static bool put_text(struct ldm_name *out, const char *stem, const char *rest) {
    return snprintf(out->name, sizeof(out->name), "%s%s", stem, rest) < (int)sizeof(out->name);
}

static bool unet_input_block(
    const char *text, const struct ldm_layout *layout, struct ldm_name *out) {
    const char *rest, *leaf;
    int block = ldm_number_after(text, "input_blocks.", &rest);
    int module = block > 0 ? ldm_number_after(rest, "", &leaf) : -1;
    if (module < 0)
        return false;
    int per_level = layout->unet_layers_per_block + 1;
    int level = (block - 1) / per_level, layer = (block - 1) % per_level;
    char stem[64];
    if (layer == layout->unet_layers_per_block) {
        const char *op = module == 0 ? after(leaf, "op.") : NULL;
        snprintf(stem, sizeof(stem), "down_blocks.%d.downsamplers.0.conv.", level);
        return op && put_text(out, stem, op);
    }
    snprintf(stem, sizeof(stem), "down_blocks.%d.%s.%d.", level,
        module == 0 ? "resnets" : "attentions", layer);
    if (module == 0)
        return put(out, stem, unet_resnet, leaf);
    return module == 1 && put_text(out, stem, leaf);
}

static bool unet_output_block(
    const char *text, const struct ldm_layout *layout, struct ldm_name *out) {
    const char *rest, *leaf;
    int block = ldm_number_after(text, "output_blocks.", &rest);
    int module = block >= 0 ? ldm_number_after(rest, "", &leaf) : -1;
    if (module < 0)
        return false;
    int per_level = layout->unet_layers_per_block + 1;
    int level = block / per_level, layer = block % per_level;
    char stem[64];
    /* The upsampler is the last module of its block: .1 without attention before it, else .2. */
    const char *conv = module > 0 ? after(leaf, "conv.") : NULL;
    if (conv) {
        snprintf(stem, sizeof(stem), "up_blocks.%d.upsamplers.0.conv.", level);
        return layer == per_level - 1 && module <= 2 && put_text(out, stem, conv);
    }
    snprintf(stem, sizeof(stem), "up_blocks.%d.%s.%d.", level,
        module == 0 ? "resnets" : "attentions", layer);
    if (module == 0)
        return put(out, stem, unet_resnet, leaf);
    return module == 1 && put_text(out, stem, leaf);
}

static bool unet_name(const char *text, const struct ldm_layout *layout, struct ldm_name *out) {
    const char *leaf;
    int module = ldm_number_after(text, "middle_block.", &leaf);
    if (module == 0 || module == 2)
        return put(
            out, module ? "mid_block.resnets.1." : "mid_block.resnets.0.", unet_resnet, leaf);
    if (module == 1)
        return put_text(out, "mid_block.attentions.0.", leaf);
    return put(out, "", unet_plain, text) || unet_input_block(text, layout, out) ||
           unet_output_block(text, layout, out);
}

/* Translates encoder.down.I.block.J.*, decoder.up.I.block.J.* and their resamplers. */
static bool vae_level(const char *text, const struct ldm_layout *layout, struct ldm_name *out) {
    const char *rest, *leaf, *conv;
    char stem[64];
    bool up = after(text, "decoder.");
    int level = ldm_number_after(text, up ? "decoder.up." : "encoder.down.", &rest);
    if (level < 0 || level >= layout->vae_levels)
        return false;
    const char *side = up ? "decoder.up" : "encoder.down";
    if (up)
        level = layout->vae_levels - 1 - level;
    conv = after(rest, up ? "upsample.conv." : "downsample.conv.");
    if (conv) {
        snprintf(stem, sizeof(stem), "%s_blocks.%d.%s.0.conv.", side, level,
            up ? "upsamplers" : "downsamplers");
        return put_text(out, stem, conv);
    }
    int layer = ldm_number_after(rest, "block.", &leaf);
    snprintf(stem, sizeof(stem), "%s_blocks.%d.resnets.%d.", side, level, layer);
    return layer >= 0 && put(out, stem, vae_resnet, leaf);
}

static bool vae_name(const char *text, const struct ldm_layout *layout, struct ldm_name *out) {
    for (int decoder = 0; decoder < 2; decoder++) {
        const char *mid = after(text, decoder ? "decoder.mid." : "encoder.mid.");
        if (!mid)
            continue;
        static const struct {
            const char *ldm, *diffusers;
            const struct leaf *leafs;
        } modules[] = {
            { "block_1.", "resnets.0.", vae_resnet },
            { "attn_1.", "attentions.0.", vae_attention },
            { "block_2.", "resnets.1.", vae_resnet },
        };
        for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++) {
            char stem[64];
            const char *leaf = after(mid, modules[i].ldm);
            snprintf(stem, sizeof(stem), "%s.mid_block.%s", decoder ? "decoder" : "encoder",
                modules[i].diffusers);
            if (leaf)
                return put(out, stem, modules[i].leafs, leaf);
        }
        return false;
    }
    return put(out, "", vae_plain, text) || vae_level(text, layout, out);
}

static enum ldm_kind open_clip_name(
    const char *text, const struct ldm_layout *layout, struct ldm_name *out) {
    const char *leaf;
    int layer = ldm_number_after(text, "transformer.resblocks.", &leaf);
    if (layer >= layout->open_clip_layers)
        return LDM_IGNORED; /* SD-2 reads the state before the last layer */
    if (layer >= 0) {
        char stem[64];
        snprintf(stem, sizeof(stem), "text_model.encoder.layers.%d.", layer);
        out->stacked_qkv = after(leaf, "attn.in_proj_") != NULL;
        return put(out, stem, open_clip_layer, leaf) ? LDM_TENSOR : LDM_UNKNOWN;
    }
    if (after(text, "text_projection") || after(text, "logit_scale") || after(text, "attn_mask"))
        return LDM_IGNORED;
    return put(out, "", open_clip_plain, text) ? LDM_TENSOR : LDM_UNKNOWN;
}

/* Prefixes of tensor names that training leaves in a file beside the model's own tensors. */
static const char *const ignored[] = { "model_ema.", "betas", "alphas_cumprod", "sqrt_", "log_",
    "posterior_", "logvar", "lvlb_weights", "scale_factor", "global_step", "epoch",
    "optimizer_states.", "lr_schedulers.", "callbacks.", "v_pred", "ztsnr",
    "first_stage_model.loss.", "first_stage_model.model_ema.",
    "cond_stage_model.transformer.text_projection.", "cond_stage_model.logit_scale", NULL };

enum ldm_kind ldm_translate(
    const char *ldm_name, const struct ldm_layout *layout, struct ldm_name *out) {
    memset(out, 0, sizeof(*out));
    for (int i = 0; ignored[i]; i++)
        if (after(ldm_name, ignored[i]))
            return LDM_IGNORED;
    const char *text;
    if ((text = after(ldm_name, "model.diffusion_model."))) {
        out->component = COMPONENT_UNET;
        return unet_name(text, layout, out) ? LDM_TENSOR : LDM_UNKNOWN;
    }
    if ((text = after(ldm_name, "first_stage_model."))) {
        out->component = COMPONENT_VAE;
        return vae_name(text, layout, out) ? LDM_TENSOR : LDM_UNKNOWN;
    }
    out->component = COMPONENT_TEXT_ENCODER;
    if ((text = after(ldm_name, "cond_stage_model.model.")))
        return open_clip_name(text, layout, out);
    if ((text = after(ldm_name, "cond_stage_model.transformer.")))
        return put_text(out, after(text, "text_model.") ? "" : "text_model.", text) ? LDM_TENSOR
                                                                                    : LDM_UNKNOWN;
    return LDM_UNKNOWN;
}

/* Does the reverse of put: writes stem + LDM leaf for the diffusers leaf `text`, which must match
 * as a whole. */
static bool put_ldm(
    char *out, size_t size, const char *stem, const struct leaf *leafs, const char *text) {
    for (; leafs->ldm; leafs++)
        if (strcmp(leafs->diffusers, text) == 0)
            return snprintf(out, size, "%s%s", stem, leafs->ldm) < (int)size;
    return false;
}

/* Translates a resnet, an attention or a resampler of input_blocks or output_blocks. `layer` ends
 * in a dot. */
static bool block_layer(
    const char *layer, int layers_per_block, bool attends, char *out, size_t size) {
    const char *rest, *leaf;
    char stem[64];
    const bool up = after(layer, "up_blocks.");
    const int level = ldm_number_after(layer, up ? "up_blocks." : "down_blocks.", &rest);
    if (level < 0)
        return false;
    const char *side = up ? "output_blocks" : "input_blocks";
    const int first = level * (layers_per_block + 1) + (up ? 0 : 1);
    if (strcmp(rest, up ? "upsamplers.0.conv." : "downsamplers.0.conv.") == 0)
        return snprintf(out, size, "%s.%d.%d.%s.", side, first + layers_per_block,
                   !up       ? 0
                   : attends ? 2
                             : 1,
                   up ? "conv" : "op") < (int)size;
    int number = ldm_number_after(rest, "resnets.", &leaf);
    if (number >= 0) {
        snprintf(stem, sizeof(stem), "%s.%d.0.", side, first + number);
        return put_ldm(out, size, stem, unet_resnet, leaf);
    }
    number = ldm_number_after(rest, "attentions.", &leaf);
    return number >= 0 && snprintf(out, size, "%s.%d.1.%s", side, first + number, leaf) < (int)size;
}

bool ldm_unet_layer(const char *layer, int layers_per_block, bool attends, char *out, size_t size) {
    char dotted[SAFETENSORS_MAX_NAME_BYTES + 2], stem[64];
    const char *leaf;
    snprintf(dotted, sizeof(dotted), "%s.", layer);
    const int resnet = ldm_number_after(dotted, "mid_block.resnets.", &leaf);
    bool ok;
    if (resnet >= 0) {
        snprintf(stem, sizeof(stem), "middle_block.%d.", 2 * resnet);
        ok = put_ldm(out, size, stem, unet_resnet, leaf);
    } else if ((leaf = after(dotted, "mid_block.attentions.0."))) {
        ok = snprintf(out, size, "middle_block.1.%s", leaf) < (int)size;
    } else {
        ok = put_ldm(out, size, "", unet_plain, dotted) ||
             block_layer(dotted, layers_per_block, attends, out, size);
    }
    if (ok)
        out[strlen(out) - 1] = 0; /* the dot */
    return ok;
}
